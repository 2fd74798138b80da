#!/usr/bin/env bash
# hosts.sh ZEROTRAIN: training over hosts made of network namespaces, with a real sshd each (netlab.bash). The bits
# must be those of one host. Hosts cannot be reached, or are lost while they train: nothing is left running
# on any of them, the exit code is right, and what is said names the first cause, all in bounded time.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=hosts
. "$(dirname "$0")/common.bash"
lab=$tmp/lab
N=3
reason=$(test/fault/netlab.bash up "$lab" $N 2>&1)
case $? in
0) ;;
77)
    echo "skip hosts: $reason"
    exit 0
    ;;
*)
    echo "not ok hosts: $reason"
    exit 1
    ;;
esac
trap 'clean_up; test/fault/netlab.bash down "$lab" $N; rm -rf "$tmp"' EXIT

# The user's own ssh configuration must not matter.
mkdir "$tmp/bin"
printf '#!/bin/sh\nexec /usr/bin/ssh -F "%s/ssh_config" "$@"\n' "$lab" >"$tmp/bin/ssh"
chmod +x "$tmp/bin/ssh"
PATH=$tmp/bin:$PATH
unset DS_ENV_FILE
printf 'zt%d slots=1\n' 1 2 3 >"$tmp/three"

# Processes of ours on host I; the last are those that a login shell is about to become.
on_host() {
    ip netns pids "zt$1" | while read -r p; do
        grep -qas zerotrain "/proc/$p/cmdline" && echo "$p"
    done
}
called() { # HOST NAME: those processes of it
    local p
    for p in $(ip netns pids "zt$1"); do
        ! grep -qsx "$2" "/proc/$p/comm" || echo "$p"
    done
}
rank_on() { called "$1" "zerotrain-r$2"; }
agent_on() { called "$1" zerotrain-agent; }
nothing_on_hosts() {
    local i
    for ((i = 1; i <= N; i++)); do
        [ -z "$(on_host $i)" ] || return 1
    done
}

# A training without end, under way.
train() {
    start --device=cpu --hostfile="$tmp/three" --log_dir="$tmp/run$case_no" --set train.steps=1000000 \
        --set train_micro_batch_size_per_gpu=2 recipes/quickstart.yaml
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
    struck=$SECONDS
}
trains() { grep -q '"step"' "$tmp/run$((case_no - 1))/metrics.jsonl" 2>/dev/null || ended; }

# within SECONDS NAME CODE PATTERN: the verdict, that long after `struck` at most; as long after that the hosts
# have nothing left.
within() {
    local most=$1 name=$2
    shift
    until_true ended
    local end=$SECONDS
    [ $((end - struck)) -le "$most" ] || fail "$name" "it took $((end - struck)) s, not $most"
    until_true nothing_on_hosts
    [ $((SECONDS - end)) -le "$most" ] || fail "$name" "a host had processes left for $((SECONDS - end)) s"
    verdict "$@"
}

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
    local name=$1 stage=$2 ours many
    shift 2
    many=$(short "$name-many" --set zero_optimization.stage="$stage" "$@")
    ours=$(short "$name-one" --set zero_optimization.stage="$stage" --num_gpus=3)
    if [[ $ours == *digest* && $ours == *loss* && $ours == "$many" ]]; then
        echo "ok hosts $name"
    else
        fail "$name" "these bits are not those: $(echo "$many" / "$ours" | tr '\n' ' ')"
    fi
}
same "three-hosts" 3 --hostfile="$tmp/three"
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

exit $failed
