#!/usr/bin/env bash
# slurm.sh ZEROTRAIN: a Slurm cluster of three nodes on this machine, with its own munged, slurmctld and slurmds, in a
# folder of its own. Trainings under srun and with --launcher=slurm: the bits of one command, kills and scancel, restarts
# over hosts that die, and doctor.
# shellcheck disable=SC2034,SC2154,SC2086,SC2046 # common.bash uses and sets some; words are to be split
suite=slurm
. "$(dirname "$0")/common.bash"
need() { # WHY NOT
    echo "skip $suite: $1"
    exit 0
}
[ "$(id -u)" = 0 ] || need "not root"
for program in munged slurmctld slurmd srun salloc scancel; do
    command -v $program >/dev/null || need "$program is not installed (slurm-wlm, munge)"
done

# ---- the cluster ----

lab=$tmp/lab
host=$(uname -n)
base=$((23000 + $$ % 8000))
mkdir -m 711 "$lab" "$lab/munge" "$lab/state" "$lab/spool" && chmod 711 "$tmp" || exit 1
(umask 077 && head -c 1024 /dev/urandom >"$lab/munge.key" && head -c 32 /dev/urandom >"$tmp/secret")
cat >"$lab/slurm.conf" <<CONF
ClusterName=zt
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$base
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket=$lab/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$lab/state
SlurmdSpoolDir=$lab/spool/%n
SlurmctldPidFile=$lab/slurmctld.pid
SlurmdPidFile=$lab/%n.pid
SlurmctldLogFile=$lab/slurmctld.log
SlurmdLogFile=$lab/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
KillWait=10
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName=n[1-3] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((base + 1))-$((base + 3))] CPUs=4
PartitionName=all Nodes=ALL Default=YES
CONF
export SLURM_CONF=$lab/slurm.conf ZT_TCP_INTERFACE=lo # Slurm's names of nodes mean nothing to the resolver
unset MASTER_ADDR MASTER_PORT ZT_JOB_SECRET_FILE
ctld=
cluster_down() {
    local f
    [ -z "$ctld" ] || kill "$ctld" 2>/dev/null
    for f in "$lab"/n?.pid "$lab/slurmctld.pid" "$lab/munge/pid"; do
        [ ! -s "$f" ] || kill "$(cat "$f")" 2>/dev/null
    done
}
trap 'clean_up; cluster_down; rm -rf "$tmp"' EXIT
munged --force --socket="$lab/munge/socket" --key-file="$lab/munge.key" --pid-file="$lab/munge/pid" \
    --log-file="$lab/munge/log" --seed-file="$lab/munge/seed" 2>"$tmp/err" || need "munged: $(tail -n 1 "$tmp/err")"
slurmctld -D >"$tmp/ctld" 2>&1 & # a child of ours, whose end is seen
ctld=$!
for i in 1 2 3; do
    slurmd -N n$i 2>"$tmp/err" || need "slurmd: $(tail -n 1 "$tmp/err")"
done
idle() { [ "$(timeout 10 sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)" = 3 ]; }
over() { ! kill -0 "$ctld" 2>/dev/null; }
idle_or_over() { over || idle; }
until_true idle_or_over || need "the nodes do not come up: $(tail -n 1 "$lab/n1.log")"
if over; then # without it srun, sinfo and salloc ask in vain, each for a long time
    fail "the cluster" "slurmctld has ended"
    tail -n 20 "$tmp/ctld" "$lab/slurmctld.log" 2>/dev/null | sed 's/^/    /'
    exit 1
fi

# srun hands on little of our environment: processes of ours are told by their program.
cp "$zerotrain" "$tmp/zerotrain"
zerotrain=$tmp/zerotrain
marked() {
    local p
    for p in /proc/[0-9]*; do
        [ "$(readlink "$p/exe" 2>/dev/null)" != "$zerotrain" ] || echo "${p#/proc/}"
    done
}
called() { # NAME: those of that name
    local p
    for p in $(marked); do
        ! grep -qsx "$1" "/proc/$p/comm" || echo "$p"
    done
}

# ---- the bits of one command ----

short=(--device=cpu --set train.steps=5 --set parallel.threads=1 --set scheduler.params.warmup_steps=2
    --set train_micro_batch_size_per_gpu=2 --set zero_optimization.stage=3 recipes/quickstart.yaml)
bits() { # FOLDER
    grep -o '"digest": *"[0-9a-f]*"' "$1/summary.json"
    grep -oE '"(loss|grad_norm)": *[-0-9.e]*' "$1/metrics.jsonl"
}
"$zerotrain" --num_gpus=4 --log_dir="$tmp/one" "${short[@]}" >"$tmp/out" 2>&1 || fail "one command" "$(tail -n 3 "$tmp/out")"
one=$(bits "$tmp/one")
same() { # NAME COMMAND...: before the options of a training
    local name=$1 folder=$tmp/same$case_no many
    case_no=$((case_no + 1))
    shift
    timeout 120 "$@" --log_dir="$folder" "${short[@]}" >"$tmp/out" 2>"$tmp/err" || fail "$name" "$(tail -n 3 "$tmp/err")"
    many=$(bits "$folder")
    if [[ $one == *digest* && $one == *loss* && $one == "$many" ]]; then
        echo "ok $suite $name"
    else
        fail "$name" "these bits are not those: $(echo "$many" / "$one" | tr '\n' ' ')"
    fi
}
same "srun on one node" srun -N1 -n4 "$zerotrain"
ZT_JOB_SECRET_FILE=$tmp/secret same "srun on two nodes" srun -N2 -n4 "$zerotrain"
same "--launcher=slurm" salloc -Q -N2 --ntasks-per-node=2 "$zerotrain" --launcher=slurm
ZT_JOB_SECRET_FILE=$tmp/secret same "--launcher=slurm, and half of the secret in a file" salloc -Q -N2 --ntasks-per-node=2 \
    "$zerotrain" --launcher=slurm
printf 'n3 slots=3\nn1 slots=4\n' >"$tmp/hosts"
same "--launcher=slurm of a hostfile, in its order" salloc -Q -N3 --ntasks-per-node=1 "$zerotrain" --launcher=slurm \
    --hostfile="$tmp/hosts" --include=n3:0,2@n1:1,2

# ---- kills, and what Slurm sends ----

# allocated OPTION...: a training without end on three nodes, under way. pid: of the front end.
allocated() {
    case_no=$((case_no + 1))
    run=$tmp/run$case_no
    salloc -Q -N3 --ntasks-per-node=1 "$zerotrain" --launcher=slurm --log_dir="$run" "$@" --device=cpu \
        --set train.steps=1000000 --set train_micro_batch_size_per_gpu=2 recipes/quickstart.yaml >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
    front=$(pgrep -P "$pid")
}
trains() { grep -qs '"step"' "$run/metrics.jsonl" || ended; }
job() { squeue -h -o %i | head -n 1; }

allocated
hit 9 "$(called zerotrain-r1)"
verdict "kill -9 of a worker" 137 'rank 1 on n2 failed first: signal 9'

allocated
hit 9 "$(called zerotrain-wait | head -n 1)"
verdict "kill -9 of a task" '[1-9]*' 'the process on n. has ended|the agent on n. was lost|the process on n., which srun'

allocated
hit 9 "$front"
verdict "kill -9 of the front end" '*' # whatever salloc makes of it

allocated
hit INT "$front"
verdict "an interrupt lets the step end" 130 'finishing this step'

allocated --set checkpoint.dir="$tmp/ckpt"
scancel --signal=USR1 "$(job)"
verdict "scancel --signal=USR1 is pre-emption" 7 'ending after this step'
[ -e "$tmp/ckpt/latest" ] || fail "pre-emption" "there is no checkpoint"

allocated
hit 9 "$(pgrep -P "$front" -x srun)"
verdict "kill -9 of srun" '[1-9]*'

# scancel, at any time: the tasks are told, and tell the front end, which is in no step.
allocated --set checkpoint.dir="$tmp/ckpt2"
scancel "$(job)"
verdict "scancel is pre-emption" 7 'got signal 15 .*ending after this step'
[ -e "$tmp/ckpt2/latest" ] || fail "scancel" "there is no checkpoint"

allocated
scancel "$(job)"
verdict "scancel without checkpoints" 143 'ending all ranks: got signal 15'

printf '#!/bin/sh\n[ $SLURMD_NODENAME != n2 ] || sleep 600\nexec "%s" "$@"\n' "$zerotrain" >"$tmp/late"
printf '#!/bin/sh\n[ $SLURMD_NODENAME != n2 ] || exit 7\nexec "%s" "$@"\n' "$zerotrain" >"$tmp/not-on-n2"
chmod +x "$tmp/late" "$tmp/not-on-n2"
# meeting SIGNAL: it comes while n2 is awaited.
meeting() {
    case_no=$((case_no + 1))
    salloc -Q -N3 --ntasks-per-node=1 "$zerotrain" --launcher=slurm --remote_path="$tmp/late" "${short[@]}" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    until_true two_wait || fail "start" "hosts did not come: $(tail -n 3 "$tmp/err")"
    scancel ${1:+--signal=$1} "$(job)"
}
two_wait() { [ "$(called zerotrain-wait | wc -l)" = 2 ] || ended; }
meeting
verdict "scancel while hosts join" 143 'stopped by signal 15 .* while hosts joined'
meeting USR1
verdict "scancel --signal=USR1 while hosts join" 138 'stopped by signal 10 .* while hosts joined'

# ---- restarts, each a step of its own ----

. test/fault/saving.bash
restarting() { # SALLOC-OPTION OPTION...
    local how=$1
    shift
    case_no=$((case_no + 1))
    saving $case_no
    salloc -Q $how -N3 --ntasks-per-node=1 "$zerotrain" --launcher=slurm "${saving[@]}" --max_restarts=1 "$@" "$tmp/tiny.yaml" \
        >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    until_step 3
    front=$(pgrep -P "$pid")
}
goes_on() { # NAME PATTERN: more steps are made, and then it is told to end
    until_true went_on 1
    until_more_than 2
    hit INT "$front"
    verdict "$1" 130 "$2"
    one_record "$1"
}
with_two_hosts() { # NAME
    grep -q 'batch 12 = micro-batch 2 x accumulation 3 x 2 ranks' "$tmp/out" && grep -q 'on 2 hosts' "$tmp/out" ||
        fail "$1" "it did not say that it goes on with two hosts"
}
# Processes of ours on a node, and Slurm's that looks after them.
on_node() {
    local p
    for p in $(marked); do
        grep -qsz "^SLURMD_NODENAME=$1\$" "/proc/$p/environ" || continue
        echo "$p"
        ! grep -qsx zerotrain-wait "/proc/$p/comm" || ps -o ppid= -p "$p"
    done
}
node_returns() { # NAME
    slurmd -N "$1"
    until_true idle || fail "$1" "the node does not come back: $(tail -n 1 "$lab/$1.log")"
}

restarting ""
hit 9 "$(called zerotrain-r1)"
goes_on "a worker is killed, and all hosts go on" 'restart 1 of 1'

restarting --no-kill --elastic
# All of it at once: none hears of another's end.
mapfile -t node < <(echo "$(<"$lab/n2.pid")" && on_node n2)
kill -STOP "${node[@]}"
kill -9 "${node[@]}"
goes_on "a node dies, and two hosts go on" 'n2 is left out from now on: it was lost'
with_two_hosts "a node dies, and two hosts go on"
node_returns n2

# The job does not notice, but the next step does not start there.
restarting --no-kill --elastic
kill -9 "$(cat "$lab/n2.pid")"
hit 9 "$(called zerotrain-r0)"
goes_on "a slurmd dies, and two hosts begin again" 'n2 is left out from now on: it does not come up again'
with_two_hosts "a slurmd dies, and two hosts begin again"
node_returns n2

node_goes_down() { # NAME CODE PATTERN
    scontrol update nodename=n2 state=down reason=test
    verdict "$@"
    scontrol update nodename=n2 state=resume 2>/dev/null # it may have returned by itself
    until_true idle || fail "$1" "the node does not come back: $(tail -n 1 "$lab/n2.log")"
}
restarting --no-kill
node_goes_down "a node leaves the allocation" 3 'Slurm has taken n2 out of the allocation; .*--elastic goes on without'
restarting "" --elastic
node_goes_down "a node ends the allocation" 7 'ending after this step'

# ---- doctor ----

doctor() { # NAME CODE OPTION...
    local name=$1 code=$2 got
    shift 2
    case_no=$((case_no + 1))
    salloc -Q -N3 --ntasks-per-node=2 "$zerotrain" doctor --device=cpu --launcher=slurm "$@" >"$tmp/out" 2>"$tmp/err"
    got=$?
    [ $got = "$code" ] || fail "$name" "exit code $got, not $code: $(tail -n 3 "$tmp/err")"
    until_true nothing_marked || fail "$name" "still running: $(marked | tr '\n' ' ')"
}
says_all() { # NAME PATTERN...
    local name=$1 pattern
    shift
    for pattern in "$@"; do
        grep -qE -- "$pattern" "$tmp/out" && continue
        fail "$name" "it does not say \"$pattern\": $(grep -vE '^  ok' "$tmp/out")"
        return
    done
    echo "ok $suite $name"
}
doctor "doctor" 0
says_all "doctor" '^n1, 2 slots' '^n3, 2 slots' 'login +by srun, in' '(ok|warn) +network ' '^  n3 +[0-9]+ +[0-9]+' '^ready'
doctor "doctor, and a host without the program" 1 --remote_path="$tmp/not-on-n2"
says_all "doctor, and a host without the program" '^n2, 2 slots: 1 failure' 'FAIL +login .*ended on n2: .*Exited with exit code 7' \
    '^n3, 2 slots: [^0-9]*$|^n3, .*: [0-9]+ warning' '(ok|warn) +network ' '^not ready'

# ---- what cannot be ----

cannot() { # NAME CODE PATTERN COMMAND...
    local name=$1 code=$2 pattern=$3
    case_no=$((case_no + 1))
    shift 3
    "$@" "${short[@]}" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    verdict "$name" "$code" "$pattern"
}
printf 'n1 slots=1\nn9 slots=1\n' >"$tmp/hosts"
cannot "a host that is not of the allocation" 3 'n9 is not in the allocation, SLURM_JOB_NODELIST=n\[1-2\]' \
    salloc -Q -N2 --ntasks-per-node=1 "$zerotrain" --launcher=slurm --hostfile="$tmp/hosts"
cannot "no program there" 1 'srun ended with exit code' \
    salloc -Q -N2 --ntasks-per-node=1 "$zerotrain" --launcher=slurm --remote_path=/nosuch/zerotrain
printf '#!/bin/sh\n[ $SLURMD_NODENAME != n2 ] || unset ZT_JOB_SECRET_FILE\nexec "%s" "$@"\n' "$zerotrain" >"$tmp/half"
chmod +x "$tmp/half"
ZT_JOB_SECRET_FILE=$tmp/secret cannot "half of a secret" 75 'on n2: ZT_JOB_SECRET_FILE is set where zerotrain was started, but' \
    salloc -Q -N2 --ntasks-per-node=1 "$zerotrain" --launcher=slurm --remote_path="$tmp/half"

exit $failed
