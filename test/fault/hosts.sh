#!/usr/bin/env bash
# hosts.sh ZEROTRAIN: training over hosts made of network namespaces, with a real sshd each (netlab.bash). The bits
# must be those of one host. Hosts cannot be reached, or are lost while they train: nothing is left running
# on any of them, the exit code is right, and what is said names the first cause, all in bounded time.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=hosts
. "$(dirname "$0")/common.bash"
N=4
. test/fault/lab.bash
printf 'zt%d slots=1\n' 1 2 3 >"$tmp/three"
printf 'zt%d slots=1\n' 1 2 3 4 >"$tmp/four"

# A training without end, under way, on three hosts.
train() { train_on three; }
train_on() { # HOSTFILE
    start --device=cpu --hostfile="$tmp/$1" --log_dir="$tmp/run$case_no" --set train.steps=1000000 \
        --set train_micro_batch_size_per_gpu=2 recipes/quickstart.yaml
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
    struck=$SECONDS
}
trains() { grep -q '"step"' "$tmp/run$((case_no - 1))/metrics.jsonl" 2>/dev/null || ended; }

# ---- the bits of one host ----

short() { # NAME OPTION...
    local name=$1
    shift
    "$zerotrain" --device=cpu --log_dir="$tmp/$name" --set train.steps=5 --set parallel.threads=1 \
        --set scheduler.params.warmup_steps=2 --set train_micro_batch_size_per_gpu=2 "$@" \
        recipes/quickstart.yaml >"$tmp/out" 2>&1 || fail "$name" "$(tail -n 3 "$tmp/out")" >&2
    grep -o '"digest": *"[0-9a-f]*"' "$tmp/$name/summary.json"
    grep -oE '"(loss|grad_norm)": *[-0-9.e]*' "$tmp/$name/metrics.jsonl"
}
same() { # NAME STAGE OPTION...
    local name=$1 stage=$2 ours many ranks=${ranks:-3}
    shift 2
    many=$(short "$name-many" --set zero_optimization.stage="$stage" "$@")
    ours=$(short "$name-one" --set zero_optimization.stage="$stage" --num_gpus="$ranks")
    if [[ $ours == *digest* && $ours == *loss* && $ours == "$many" ]]; then
        echo "ok hosts $name"
    else
        fail "$name" "these bits are not those: $(echo "$many" / "$ours" | tr '\n' ' ')"
    fi
}
same "three-hosts" 3 --hostfile="$tmp/three"
ranks=4 same "four-hosts" 2 --hostfile="$tmp/four"
printf 'zt2 slots=4\nroot@zt1 slots=1\n' >"$tmp/chosen"
same "chosen-slots" 1 --hostfile="$tmp/chosen" --exclude=zt2:0,2
printf '10.199.0.254 slots=1\nzt3 slots=2\n' >"$tmp/with-us"
same "our-own-host-too" 2 --hostfile="$tmp/with-us"

# ---- hosts that do not start ----

cannot() { # NAME CODE PATTERN OPTION...: ends within 5 s, before any step.
    local name=$1 code=$2 pattern=$3
    shift 3
    struck=$SECONDS
    start --device=cpu --log_dir="$tmp/run$case_no" "$@" recipes/quickstart.yaml
    within 5 "$name" "$code" "$pattern"
}
printf 'zt1 slots=1\n10.199.0.77 slots=1\n' >"$tmp/away"
cannot "a host that is not there" 1 'agent on 10.199.0.77 did not answer: .*is the host up' \
    --hostfile="$tmp/away"
cannot "no sshd at that port" 1 'port 2222: Connection refused; is the host up' --hostfile="$tmp/three" \
    --ssh_port=2222
cannot "no zerotrain there" 1 '/nosuch/zerotrain cannot be run there' --hostfile="$tmp/three" \
    --remote_path=/nosuch/zerotrain
cp "$lab/known_hosts" "$tmp/known"
grep -v zt2 "$tmp/known" >"$lab/known_hosts"
cannot "a key that is not known" 1 'zt2 did not answer: .*not in known_hosts: `ssh zt2`' --hostfile="$tmp/three"
sed "s|^\(zt2,[^ ]*\) .*|\1 $(cut -d' ' -f1,2 "$lab/zt1/host_key.pub")|" "$tmp/known" >"$lab/known_hosts"
cannot "another key than the known one" 1 'zt2 did not answer: .*`ssh-keygen -R zt2`' --hostfile="$tmp/three"
cp "$tmp/known" "$lab/known_hosts"
cp "$lab/key.pub" "$tmp/key.pub"
: >"$lab/key.pub"
cannot "a login that is refused" 1 'did not answer: .*Permission denied.*without a password' --hostfile="$tmp/three"
cp "$tmp/key.pub" "$lab/key.pub"

# Ctrl-C while a host does not answer: its sshd is frozen.
kill -STOP "$(cat "$lab/zt2/pid")"
start --device=cpu --hostfile="$tmp/three" --log_dir="$tmp/run$case_no" recipes/quickstart.yaml
others_wait() { [ -n "$(rank_on 1 0)" ] && [ -n "$(rank_on 3 2)" ]; }
until_true others_wait
struck=$SECONDS
hit INT "$pid"
within 5 "an interrupt while a host starts" 130 'ending all ranks'
kill -CONT "$(cat "$lab/zt2/pid")"

# One host is slow: the others wait for it.
kill -STOP "$(cat "$lab/zt2/pid")"
start --device=cpu --hostfile="$tmp/three" --log_dir="$tmp/run$case_no" --set train.steps=1000000 \
    --set train_micro_batch_size_per_gpu=2 recipes/quickstart.yaml
until_true others_wait
sleep 3 # so slow it is; below the 10 s that ssh waits
trains && fail "a host that is slow to start" "it trains without it"
kill -CONT "$(cat "$lab/zt2/pid")"
until_true trains
struck=$SECONDS
hit INT "$pid"
within 5 "a host that is slow to start" 130 'finishing this step'

# ---- zerotrain doctor ----

examine() { # NAME CODE PATTERN...: that is its exit code, and each pattern is on a line.
    local name=$1 code=$2 got pattern why=
    shift 2
    timeout 60 "$zerotrain" doctor --device=cpu --hostfile="$tmp/three" >"$tmp/out" 2>"$tmp/err"
    got=$?
    [ "$got" = "$code" ] || why="exit code $got, not $code"
    for pattern; do
        grep -qE -- "$pattern" "$tmp/out" || why=${why:-"it does not say \"$pattern\""}
    done
    until_true nothing_on_hosts || why=${why:-"a host has processes left"}
    if [ -n "$why" ]; then
        fail "$name" "$why: $(tail -n 3 "$tmp/err")"
        sed 's/^/    /' "$tmp/out"
    else
        echo "ok hosts $name"
    fi
}
examine "doctor of three hosts" 0 '^zt1, 1 slot: ' '^zt3, 1 slot: ' 'ok +login +by ssh' 'ok +work folder' \
    '(ok|warn) +network .* MB/s each way' 'ok +clocks ' '^  zt2 +[0-9]+ +[0-9]+$' '^ready: '
grep -v zt2 "$tmp/known" >"$lab/known_hosts"
examine "doctor of a host that is not known" 1 '^zt2, 1 slot: 1 failure$' 'FAIL +login .*Host key' '`ssh zt2`' \
    '(ok|warn) +network ' '^  zt3 +[0-9]+ +- *$' '^not ready: 1 failure'
cp "$tmp/known" "$lab/known_hosts"
ip -n zt3 route add blackhole 10.199.0.1
examine "doctor of hosts that do not reach each other" 1 '^zt3, 1 slot: ' 'FAIL +network ' '^not ready: 1 failure'
ip -n zt3 route del blackhole 10.199.0.1

# ---- hosts that are lost ----

train
hit 9 "$(rank_on 2 1)"
within 5 "kill -9 of a rank" 137 'rank 1 on zt2 failed first: signal 9'

train
hit 9 "$(agent_on 2)"
within 5 "kill -9 of an agent" '[1-9]*' 'the agent on zt2 was lost: the connection broke, or the agent was killed'

train
hit 9 "$pid"
within 5 "kill -9 of the front end" 137

train
hit INT "$pid"
within 5 "an interrupt lets the step end" 130 'finishing this step'

train
hit TERM "$pid"
within 5 "SIGTERM to the front end" 143

train
for p in $(called 2 sshd); do
    [ "$p" = "$(cat "$lab/zt2/pid")" ] || kill -9 "$p"
done
within 5 "kill -9 of a connection's sshd" '[1-9]*' 'the agent on zt2 was lost: '

train
ip link set vzt2 down
within 15 "a link that is cut" '[1-9]*' 'zt2'
ip link set vzt2 up

train
mapfile -t frozen < <(ip netns pids zt3)
kill -STOP "${frozen[@]}"
until_true ended
kill -CONT "${frozen[@]}"
within 15 "a host that is frozen" '[1-9]*' 'zt3'

train_on four
hit 9 "$(rank_on 4 3)"
within 5 "kill -9 of a rank of four" 137 'rank 3 on zt4 failed first: signal 9'

# ---- a disk of one host ----

# Only there it is small: a mount in its own namespace.
mkdir "$tmp/nvme" "$tmp/ck"
small_there() { nsenter -t "$(cat "$lab/zt2/pid")" -m mount -t tmpfs -o size=64k tmpfs "$1"; }
if small_there "$tmp/nvme" && small_there "$tmp/ck"; then
    struck=$SECONDS
    start --device=cpu --hostfile="$tmp/three" --log_dir="$tmp/run$case_no" \
        --set zero_optimization.offload_optimizer.device=nvme \
        --set zero_optimization.offload_optimizer.nvme_path="$tmp/nvme" recipes/quickstart.yaml
    within 10 "the disk of one host is full" '[13]' "rank 1 on zt2 failed first"
    grep -qE "rank 1.*$tmp/nvme|\| .*$tmp/nvme" "$tmp/err" || fail "the disk of one host is full" "it is not named"
    struck=$SECONDS
    start --device=cpu --hostfile="$tmp/three" --log_dir="$tmp/run$case_no" --set checkpoint.dir="$tmp/ck" \
        recipes/quickstart.yaml
    within 10 "a folder of checkpoints that one host does not share" 3 'one that all hosts share'
else
    echo "skip hosts the disk of one host is full: no mounts here"
fi

train
pids=$(called 2 sshd)
# shellcheck disable=SC2086 # they are several
kill -9 $pids
within 5 "kill -9 of all of a host's sshd" '[1-9]*' 'the agent on zt2 was lost: '

exit $failed
