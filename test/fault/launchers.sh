#!/usr/bin/env bash
# launchers.sh ZEROTRAIN: started by srun, flux, mpirun or torchrun, once for each rank: by their variables, set by hand, and
# by the real programs where they are installed. The bits must be those of one command; whatever dies, all
# processes end, with the right exit code, and nothing is left running.
# shellcheck disable=SC2034,SC2154,SC2086,SC2015,SC2016,SC2046 # common.bash uses and sets some; words are to be split
suite=launchers
. "$(dirname "$0")/common.bash"
unset MASTER_ADDR MASTER_PORT ZT_JOB_SECRET_FILE ZT_TCP_INTERFACE
(umask 077 && head -c 32 /dev/urandom >"$tmp/secret")
port=$((13000 + $$ % 9000))

# Variables of rank $1 of $2.
torchrun_sets() {
    echo RANK="$1" WORLD_SIZE="$2" LOCAL_RANK="$1" LOCAL_WORLD_SIZE="$2" MASTER_ADDR=localhost MASTER_PORT=$port
}
mpirun_sets() {
    echo OMPI_COMM_WORLD_RANK="$1" OMPI_COMM_WORLD_SIZE="$2" OMPI_COMM_WORLD_LOCAL_RANK="$1" \
        OMPI_COMM_WORLD_LOCAL_SIZE="$2" PMIX_NAMESPACE=$$.$case_no
}
flux_sets() {
    echo FLUX_TASK_RANK="$1" FLUX_JOB_SIZE="$2" FLUX_TASK_LOCAL_ID="$1" FLUX_JOB_NNODES=1 FLUX_JOB_ID=f$$.$case_no \
        PMI_RANK="$1" PMI_SIZE="$2"
}
# Two ranks on a host.
srun_sets() {
    echo SLURM_PROCID="$1" SLURM_STEP_NUM_TASKS="$2" SLURM_LOCALID=$(($1 % 2)) SLURM_STEP_NUM_NODES=$((($2 + 1) / 2)) \
        SLURMD_NODENAME=n$(($1 / 2)) SLURM_JOB_ID=$$ SLURM_STEP_ID=$case_no MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        ZT_JOB_SECRET_FILE="$tmp/secret"
}

# rank HOW RANK WORLD ARG...: one process, in the background; before it may stand a command in `with`.
with=()
ranks=()
rank() {
    local how=$1 r=$2 n=$3 to=
    shift 3
    [ "$r" = 0 ] || to=.$r
    # shellcheck disable=SC2046 # words are what is wanted
    ZT_TEST_MARK=$$.$case_no env --default-signal=INT,QUIT,TERM,HUP $("${how}_sets" "$r" "$n") "${with[@]}" \
        "$zerotrain" --device=cpu "$@" >"$tmp/out$to" 2>"$tmp/err$to" &
    ranks[r]=$!
    [ "$r" != 0 ] || pid=$!
}
new_case() {
    case_no=$((case_no + 1))
    ranks=()
    : >"$tmp/out"
}
# ranks_of HOW WORLD ARG...: all of them; rank 0 last, as nothing promises an order.
ranks_of() {
    local how=$1 n=$2 i
    shift 2
    new_case
    for ((i = n - 1; i >= 0; i--)); do
        rank "$how" $i "$n" "$@"
    done
}
# all_end NAME CODE OTHERS PATTERN: rank 0 with CODE, the others with OTHERS (one that was killed: with that).
all_end() {
    local name=$1 others=$3 i got
    { wait "$pid"; } 2>/dev/null # not for its code, which verdict looks at: bash would tell of its death
    for ((i = 1; i < ${#ranks[@]}; i++)); do
        wait "${ranks[i]}"
        got=$?
        # shellcheck disable=SC2053
        [[ $got == $others ]] || fail "$name" "rank $i ended with $got, not $others: $(tail -n 2 "$tmp/err.$i")"
    done
    verdict "$name" "$2" "${4:-}"
}

endless() { # HOW WORLD OPTION...
    ranks_of "$@" --log_dir="$tmp/run$case_no" --set train.steps=1000000 \
        --set train_micro_batch_size_per_gpu=2 recipes/quickstart.yaml
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
}
trains() { grep -q '"step"' "$tmp/run$((case_no - 1))/metrics.jsonl" 2>/dev/null || ended; }
called() { # NAME: marked processes of that name
    local p
    for p in $(marked); do
        ! grep -qsx "$1" "/proc/$p/comm" || echo "$p"
    done
}

# ---- the bits of one command ----

short=(--set train.steps=5 --set parallel.threads=1 --set scheduler.params.warmup_steps=2
    --set train_micro_batch_size_per_gpu=2 --set zero_optimization.stage=3 recipes/quickstart.yaml)
bits() { # FOLDER
    grep -o '"digest": *"[0-9a-f]*"' "$1/summary.json"
    grep -oE '"(loss|grad_norm)": *[-0-9.e]*' "$1/metrics.jsonl"
}
"$zerotrain" --device=cpu --num_gpus=3 --log_dir="$tmp/one" "${short[@]}" >"$tmp/out" 2>&1 ||
    fail "one command" "$(tail -n 3 "$tmp/out")"
same() { # NAME FOLDER
    local one many
    one=$(bits "$tmp/one")
    many=$(bits "$2")
    if [[ $one == *digest* && $one == *loss* && $one == "$many" ]]; then
        echo "ok $suite $1"
    else
        fail "$1" "these bits are not those: $(echo "$many" / "$one" | tr '\n' ' ')"
    fi
}
for how in torchrun mpirun flux srun; do
    ranks_of $how 3 --log_dir="$tmp/$how" "${short[@]}"
    all_end "variables of $how" 0 0
    same "bits by $how" "$tmp/$how"
done

# ---- CPUs as the launcher has bound them ----

if [ "$(nproc)" -ge 2 ]; then
    new_case
    mapfile -t cpus < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
    for r in 1 0; do
        with=(taskset -c "${cpus[r]}")
        rank mpirun $r 2 --log_dir="$tmp/bound" --set train.steps=1000000 --set train_micro_batch_size_per_gpu=2 \
            recipes/quickstart.yaml
    done
    with=()
    until_true grep -qs '"step"' "$tmp/bound/metrics.jsonl"
    for r in 0 1; do
        on=$(sed -n 's/^Cpus_allowed_list:\t//p' "/proc/$(called "zerotrain-r$r")/status")
        [ "$on" = "${cpus[r]}" ] || fail "CPUs" "rank $r runs on $on, not ${cpus[r]}"
    done
    kill -TERM "${ranks[@]}"
    all_end "ranks keep their CPUs" 143 143
else
    echo "skip $suite ranks keep their CPUs: there is only one"
fi

# ---- what a launcher sends to all counts once ----

endless srun 4
kill -INT "${ranks[@]}"
all_end "an interrupt of all lets the step end" 130 130 'finishing this step'

endless torchrun 3 --set checkpoint.dir="$tmp/ckpt"
kill -TERM "${ranks[@]}"
all_end "pre-emption of all saves" 7 7 'ending after this step'
[ -e "$tmp/ckpt/latest" ] || fail "pre-emption" "there is no checkpoint"

endless mpirun 3
kill -TERM "${ranks[2]}"
all_end "a signal to one is for all" 143 143 'got signal 15'

# Slurm signals every process of a step: agents and workers too.
endless srun 4 --set checkpoint.dir="$tmp/ckpt2"
kill -USR1 "${ranks[@]}" $(called zerotrain-agent) $(called 'zerotrain-r.')
all_end "pre-emption of every process saves" 7 7 'ending after this step'
[ -e "$tmp/ckpt2/latest" ] || fail "pre-emption" "there is no checkpoint"

# ---- deaths ----

for how in torchrun srun; do
    endless $how 4
    hit 9 "$(called zerotrain-r3)"
    all_end "kill -9 of a worker ($how)" 137 137 'rank 3 on .* failed first: signal 9'

    endless $how 4
    hit 9 "${ranks[3]}"
    wait "${ranks[3]}" 2>/dev/null
    unset 'ranks[3]'
    all_end "kill -9 of a process that waits ($how)" 1 1 'the process of rank 3 on .* has ended before the job'

    endless $how 4
    hit 9 "$pid"
    all_end "kill -9 of rank 0 ($how)" 137 75
    grep -q 'the process of rank 0 is gone' "$tmp/err.1" || fail "kill -9 of rank 0" "$(cat "$tmp/err.1")"
done

endless srun 4
hit 9 "${ranks[2]}"
wait "${ranks[2]}" 2>/dev/null
ranks[2]=${ranks[3]}
unset 'ranks[3]'
all_end "kill -9 of a host's first process" 1 1 'the process of rank 2 on n1, which srun had started, has ended before the job'

endless srun 4
agents=()
for p in $(called zerotrain-agent); do
    [ "$(ps -o ppid= -p "$p" | tr -d ' ')" != "${ranks[2]}" ] || agents+=("$p")
done
kill -9 "${agents[@]}" || fail "SIG9" "no agent to send it to" # at once: the first one takes the others along
all_end "kill -9 of another host's agent" '[1-9]*' '[1-9]*' 'the agent on n1 was lost'

# ---- beginnings ----

# begin NAME CODE OTHERS PATTERN HOW WORLD: the ranks that are not in `absent`.
begin() {
    local name=$1 code=$2 others=$3 pattern=$4 how=$5 n=$6 i
    new_case
    for ((i = n - 1; i >= 0; i--)); do
        [[ " $absent " == *" $i "* ]] || rank "$how" $i "$n" --log_dir="$tmp/run$case_no" "${short[@]}"
    done
    [ -z "$absent" ] || ranks=("${ranks[@]}")
    all_end "$name" "$code" "$others" "$pattern"
}
ranks_of srun 4 --log_dir="$tmp/again" --max_restarts=1 --set checkpoint.dir="$tmp/again-ck" "${short[@]}"
all_end "restarts over hosts are the launcher's" 2 2 'srun has started .* does not start them again; leave srun out'
absent="1 3"
ZT_JOIN_SECONDS=4 begin "ranks that never come are named" 75 75 \
    'of the 4 processes that torchrun starts, ranks 1, 3 did not come within 4 s' torchrun 4
absent=
with=(env -u ZT_JOB_SECRET_FILE)
begin "several hosts without a secret" 3 3 'must know each other by a secret' srun 4
with=()

# A second job that cannot be told from a first one which waits for its last rank.
new_case
listeners() { grep -c " 00010000 .*@zerotrain-$(id -u)-" /proc/net/unix; } # other tests have theirs
listening=$(listeners)
one_more() { [ "$(listeners)" -gt "$listening" ]; }
rank torchrun 0 2 --log_dir="$tmp/first" "${short[@]}"
first=$pid
until_true one_more
rank torchrun 0 2 --log_dir="$tmp/second" "${short[@]}"
ranks=("$pid")
wait "$pid"
[ $? = 3 ] && grep -q 'give each of them a MASTER_PORT of its own' "$tmp/err" ||
    fail "two jobs at one port" "the second says: $(cat "$tmp/err")"
rank torchrun 1 2 --log_dir="$tmp/first" "${short[@]}"
pid=$first
wait "${ranks[1]}" || fail "two jobs at one port" "the first did not go on: $(cat "$tmp/err.1")"
verdict "two jobs at one port" 0

# Garbage at the port, and strangers who say nothing, while the last rank is awaited.
new_case
rank srun 0 4 --log_dir="$tmp/scanned" "${short[@]}"
rank srun 1 4 --log_dir="$tmp/scanned" "${short[@]}"
listens() { (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
until_true listens
exec {silent}<>"/dev/tcp/127.0.0.1/$port"
head -c 100000 /dev/urandom >"/dev/tcp/127.0.0.1/$port" 2>/dev/null
printf 'GET / HTTP/1.0\r\n\r\n' >"/dev/tcp/127.0.0.1/$port"
rank srun 2 4 --log_dir="$tmp/scanned" "${short[@]}"
rank srun 3 4 --log_dir="$tmp/scanned" "${short[@]}"
all_end "garbage at the port changes nothing" 0 0
exec {silent}>&-

# ---- --launcher=slurm, with an srun that plays hosts (slurm.sh has the real one) ----

mkdir "$tmp/bin"
ln -s "$PWD/test/fault/srun.bash" "$tmp/bin/srun"
slurm=(env PATH="$tmp/bin:$PATH" SLURM_JOB_NODELIST='n[1-2]' 'SLURM_TASKS_PER_NODE=2,1' ZT_TCP_INTERFACE=lo)
allocated() { # OPTION...
    case_no=$((case_no + 1))
    ZT_TEST_MARK=$$.$case_no env --default-signal=INT,QUIT,TERM,HUP "${slurm[@]}" "$zerotrain" --device=cpu --launcher=slurm \
        "$@" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
}
allocated --log_dir="$tmp/slurm" "${short[@]}"
verdict "--launcher=slurm" 0
same "bits by --launcher=slurm" "$tmp/slurm"
allocated --remote_path=/bin/true --log_dir="$tmp/run$case_no" "${short[@]}"
verdict "--launcher=slurm, and another program there" 1 'srun ended with exit code 0 before all hosts had joined'
endless_allocated() {
    allocated --log_dir="$tmp/run$case_no" --set train.steps=1000000 --set train_micro_batch_size_per_gpu=2 recipes/quickstart.yaml
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
}
endless_allocated
hit 9 "$(called zerotrain-r2)"
verdict "kill -9 of a worker (--launcher=slurm)" 137 'rank 2 on n2 failed first: signal 9'
endless_allocated
hit 9 "$(called zerotrain-wait | head -n 1)"
verdict "kill -9 of a task" 1 'the process on n.* has ended'
endless_allocated
hit 9 "$pid"
verdict "kill -9 of the front end (--launcher=slurm)" 137

. test/fault/saving.bash
saving $case_no
allocated "${saving[@]}" --max_restarts=1 "$tmp/tiny.yaml"
until_step 3
hit 9 "$(called zerotrain-r2)"
until_true went_on 1
until_more_than 2
hit INT "$pid"
verdict "a restart (--launcher=slurm)" 130 'restart 1 of 1'
one_record "a restart (--launcher=slurm)"

# What has become of the allocation, where srun does not say.
squeue_says() { # WORDS CODE
    printf '#!/bin/sh\necho "%s"\nexit %s\n' "$1" "$2" >"$tmp/bin/squeue"
    chmod +x "$tmp/bin/squeue"
    allocated --remote_path=/bin/false --log_dir="$tmp/run$case_no" "${short[@]}"
}
slurm+=(SLURM_JOB_ID=7)
squeue_says "slurm_load_jobs error: Invalid job id specified" 1
verdict "an allocation that is over" 3 'SLURM_JOB_ID=7: this allocation is over: .*--no-kill'
squeue_says "" 0
verdict "an allocation that ends" 3 'SLURM_JOB_ID=7: this allocation is over'
squeue_says n1 0
verdict "an allocation that has lost a host" 3 'Slurm has taken n2 out of the allocation; .*--elastic'
squeue_says 'n[1-2]' 0
verdict "an allocation that is whole" 1 'srun ended with exit code 1 before all hosts had joined'
squeue_says "slurm_load_jobs error: Unable to contact slurm controller" 1
verdict "an allocation that cannot be asked for" 1 'srun ended with exit code 1 before all hosts had joined'

# ---- the real programs ----

# by NAME COMMAND...: a training under a real launcher, and one whose worker is killed.
by() {
    local name=$1
    shift
    case_no=$((case_no + 1))
    ZT_TEST_MARK=$$.$case_no "$@" "$zerotrain" --device=cpu --log_dir="$tmp/real-$name" "${short[@]}" >"$tmp/out" 2>"$tmp/err" ||
        fail "$name" "$(tail -n 5 "$tmp/err")"
    same "bits by the real $name" "$tmp/real-$name"
    case_no=$((case_no + 1))
    ZT_TEST_MARK=$$.$case_no "$@" "$zerotrain" --device=cpu --log_dir="$tmp/run$((case_no - 1))" \
        --set train.steps=1000000 --set train_micro_batch_size_per_gpu=2 recipes/quickstart.yaml >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    until_true trains
    hit 9 "$(called zerotrain-r2)"
    verdict "kill -9 of a worker under the real $name" '[1-9]*' 'rank 2 on .* failed first: signal 9'
}
if command -v mpirun >/dev/null; then
    by mpirun env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 3
else
    echo "skip $suite mpirun: not installed (openmpi-bin)"
fi
torchrun=build/bench-venv/bin/torchrun
if [ -x $torchrun ]; then
    by torchrun $torchrun --no-python --nproc_per_node 3
else
    echo "skip $suite torchrun: not installed (scripts/bench-venv.sh)"
fi

exit $failed
