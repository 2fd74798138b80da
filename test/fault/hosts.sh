#!/usr/bin/env bash
# hosts.sh ZEROTRAIN: training over hosts made of network namespaces, with a real sshd each (netlab.bash), by both
# launchers. The bits must be those of one host. Hosts cannot be reached, or are lost while they train: nothing is left running
# on any of them, the exit code is right, and what is said names the first cause, all in bounded time.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=hosts
. "$(dirname "$0")/common.bash"
N=4
. test/fault/lab.bash
printf 'zt%d slots=1\n' 1 2 3 >"$tmp/three"
printf 'zt%d slots=1\n' 1 2 3 4 >"$tmp/four"

launcher=ssh
# by SSH OPENSSH: what is said by the launcher that is tried.
by() { if [ $launcher = ssh ]; then echo "$1"; else echo "$2"; fi; }
# go OPTION...: as `start`, on three hosts if no others are given.
go() {
    start --device=cpu --launcher=$launcher --log_dir="$tmp/run$case_no" --hostfile="$tmp/three" \
        --set train_micro_batch_size_per_gpu=2 "$@" recipes/quickstart.yaml
}

# A training without end, under way, on three hosts.
train() { train_on three; }
train_on() { # HOSTFILE
    go --hostfile="$tmp/$1" --set train.steps=1000000
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
    struck=$SECONDS
}
trains() { grep -q '"step"' "$tmp/run$((case_no - 1))/metrics.jsonl" 2>/dev/null || ended; }

# ---- the bits of one host ----

short() { # NAME OPTION...
    local name=$1
    shift
    [ -z "$launcher" ] || set -- --launcher=$launcher "$@"
    "$zerotrain" --device=cpu --log_dir="$tmp/$name" --set train.steps=5 --set parallel.threads=1 \
        --set scheduler.params.warmup_steps=2 --set train_micro_batch_size_per_gpu=2 "$@" \
        recipes/quickstart.yaml >"$tmp/$name.out" 2>&1 || fail "$name" "$(tail -n 3 "$tmp/$name.out")" >&2
    grep -o '"digest": *"[0-9a-f]*"' "$tmp/$name/summary.json"
    grep -oE '"(loss|grad_norm)": *[-0-9.e]*' "$tmp/$name/metrics.jsonl"
}
same() { # NAME STAGE OPTION...
    local name=$1 stage=$2 ours many ranks=${ranks:-3}
    shift 2
    many=$(short "$name-many" --set zero_optimization.stage="$stage" "$@")
    ours=$(launcher='' short "$name-one" --set zero_optimization.stage="$stage" --num_gpus="$ranks")
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
launcher=openssh same "our-own-host-too" 2 --hostfile="$tmp/with-us"

# One host is behind another: it alone is reached by the ssh client.
cp "$lab/ssh_config" "$tmp/ssh_config"
{ printf 'Host zt3\n  ProxyJump zt1\n'; cat "$tmp/ssh_config"; } >"$lab/ssh_config"
same "a-jump-host" 3 --hostfile="$tmp/three"
grep -q "zt3: going on with the OpenSSH client: it is reached through ProxyJump zt1" "$tmp/a-jump-host-many.out" ||
    fail "a-jump-host" "it does not say that it goes on with the client"
cp "$tmp/ssh_config" "$lab/ssh_config"

# ---- hosts that do not start ----

cannot() { # NAME CODE PATTERN OPTION...: ends within 5 s, before any step.
    local name=$1 code=$2 pattern=$3
    shift 3
    struck=$SECONDS
    go "$@"
    within 5 "$name ($launcher)" "$code" "$pattern"
}
printf 'zt1 slots=1\n10.199.0.77 slots=1\n' >"$tmp/away"
cp "$lab/known_hosts" "$tmp/known"
cp "$lab/key.pub" "$tmp/key.pub"
others_wait() { [ -n "$(rank_on 1 0)" ] && [ -n "$(rank_on 3 2)" ]; }
hosts_that_do_not_start() {
    cannot "a host that is not there" 1 'agent on 10.199.0.77 did not answer: .*is the host up' \
        --hostfile="$tmp/away"
    cannot "no sshd at that port" 1 'port 2222: Connection refused; is the host up' --ssh_port=2222
    cannot "no zerotrain there" 1 '/nosuch/zerotrain cannot be run there' --remote_path=/nosuch/zerotrain
    grep -v zt2 "$tmp/known" >"$lab/known_hosts"
    cannot "a key that is not known" 1 "zt2 did not answer: zt2: its host key is not known$(by \
        ": ssh-ed25519 SHA256:.*ask -o HostKeyAlgorithms=ssh-ed25519" "\..*ask") zt2 true\`"
    sed "s|^\(zt2,[^ ]*\) .*|\1 $(cut -d' ' -f1,2 "$lab/zt1/host_key.pub")|" "$tmp/known" >"$lab/known_hosts"
    cannot "another key than the known one" 1 "zt2 did not answer: .*\`ssh-keygen -R 'zt2' -f '.*known_hosts' && ssh .*zt2 true\`"
    cp "$tmp/known" "$lab/known_hosts"
    : >"$lab/key.pub"
    cannot "a login that is refused" 1 'did not answer: .*Permission denied.*without a password'
    cp "$tmp/key.pub" "$lab/key.pub"

    # Ctrl-C while a host does not answer: its sshd is frozen.
    kill -STOP "$(cat "$lab/zt2/pid")"
    go
    until_true others_wait
    struck=$SECONDS
    hit INT "$pid"
    within 5 "an interrupt while a host starts ($launcher)" 130 'ending all ranks'
    kill -CONT "$(cat "$lab/zt2/pid")"
}
for launcher in openssh ssh; do hosts_that_do_not_start; done

# One host is slow: the others wait for it, and that is said.
is_waited_for() { grep -q '^zerotrain: waiting for zt2 ([56] s)' "$tmp/err" || ended; } # below the 20 s of its sshd
kill -STOP "$(cat "$lab/zt2/pid")"
go --set train.steps=1000000
until_true others_wait
until_true is_waited_for || fail "a host that is slow to start" "nobody says that it is waited for"
trains && fail "a host that is slow to start" "it trains without it"
kill -CONT "$(cat "$lab/zt2/pid")"
until_true trains
struck=$SECONDS
hit INT "$pid"
within 5 "a host that is slow to start" 130 'finishing this step'

# ---- zerotrain doctor ----

recipe=()
examine() { # NAME CODE PATTERN...: that is its exit code, and each pattern is on a line.
    local name=$1 code=$2 got pattern why=
    shift 2
    timeout 60 "$zerotrain" doctor --device=cpu --hostfile="$tmp/three" "${recipe[@]}" >"$tmp/out" 2>"$tmp/err"
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
examine "doctor of a host that is not known" 1 '^zt2, 1 slot: 1 failure$' 'FAIL +login .*its host key is not known: ssh-ed25519 SHA256:' \
    '`ssh .*-o HostKeyAlgorithms=ssh-ed25519 zt2 true`' \
    '(ok|warn) +network ' '^  zt3 +[0-9]+ +- *$' '^not ready: 1 failure'
cp "$tmp/known" "$lab/known_hosts"
ip -n zt3 route add blackhole 10.199.0.1
examine "doctor of hosts that do not reach each other" 1 '^zt3, 1 slot: ' 'FAIL +network ' '^not ready: 1 failure'
ip -n zt3 route del blackhole 10.199.0.1
for i in 1 3; do bridge link set dev vzt$i isolated on; done
examine "doctor of hosts between which nothing comes" 1 '^zt3, 1 slot: ' \
    'FAIL +network +.*zt1 and zt3 cannot reach each other' '^not ready: 1 failure'
for i in 1 3; do bridge link set dev vzt$i isolated off; done

# ---- hosts that are lost ----

train
hit 9 "$(rank_on 2 1)"
within 5 "kill -9 of a rank" 137 'rank 1 on zt2 failed first: signal 9'

connections_that_are_lost() {
    train
    hit 9 "$(agent_on 2)"
    within 5 "kill -9 of an agent ($launcher)" '[1-9]*' "the agent on zt2 was lost: $(by \
        'the agent was ended by signal KILL' 'the connection broke, or the agent was killed')"

    train
    hit 9 "$pid"
    within 5 "kill -9 of the front end ($launcher)" 137

    train
    for p in $(called 2 'sshd.*'); do
        [ "$p" = "$(cat "$lab/zt2/pid")" ] || kill -9 "$p"
    done
    within 5 "kill -9 of a connection's sshd ($launcher)" '[1-9]*' 'the agent on zt2 was lost: '

    train
    ip link set vzt2 down
    within 15 "a link that is cut ($launcher)" '[1-9]*' 'zt2'
    ip link set vzt2 up
}
for launcher in openssh ssh; do connections_that_are_lost; done

train
hit INT "$pid"
within 5 "an interrupt lets the step end" 130 'finishing this step'

train
hit TERM "$pid"
within 5 "SIGTERM to the front end" 143

train
mapfile -t frozen < <(ip netns pids zt3)
kill -STOP "${frozen[@]}"
until_true ended
kill -CONT "${frozen[@]}"
within 15 "a host that is frozen" '[1-9]*' 'zt3'

# Before the agent is told the job, as the front end sleeps.
go --launcher=openssh
heeds_term() { # of the agent on host 2: it is there, and SIGTERM waits for it
    local p mask
    p=$(agent_on 2)
    mask=$(sed -n 's/^SigBlk:\t//p' "/proc/${p:-none}/status" 2>/dev/null)
    (((0x0$mask & 0x4000) != 0))
}
clients() { [ "$(pgrep -P "$pid" -cx ssh)" = 3 ]; }
kill -STOP "$(cat "$lab/zt2/pid")"
until_true clients
hit STOP "$pid"
kill -CONT "$(cat "$lab/zt2/pid")"
until_true heeds_term
hit TERM "$(agent_on 2)"
until_true nothing_on 2
struck=$SECONDS
hit CONT "$pid"
within 5 "SIGTERM to an agent without a job" 143 'the agent was stopped by signal 15'

# The second host's rank is told and ends; the first one's sees that before its agent, whose connection hangs, is told.
train
for v in MASTER_ADDR=10. MASTER_PORT=29500 RANK=1 LOCAL_RANK=0 WORLD_SIZE=3 LOCAL_WORLD_SIZE=1; do
    tr '\0' '\n' <"/proc/$(rank_on 2 1)/environ" | grep -q "^$v" || fail "variables of a rank" "it has no $v"
done
sessions=()
for p in $(called 1 'sshd.*'); do
    [ "$p" = "$(cat "$lab/zt1/pid")" ] || sessions+=("$p")
done
kill -STOP "${sessions[@]}"
no_rank() { ! on_host "$1" | xargs -I{} cat /proc/{}/comm 2>/dev/null | grep -q zerotrain-r; }
hit TERM "$pid"
until_true no_rank 2 && until_true no_rank 1
kill -CONT "${sessions[@]}"
within 5 "SIGTERM while a connection hangs" 143 'the job was stopped by signal 15'

train_on four
hit 9 "$(rank_on 4 3)"
within 5 "kill -9 of a rank of four" 137 'rank 3 on zt4 failed first: signal 9'

# ---- a disk of one host ----

# Only there it is small: a mount in its own namespace.
mkdir "$tmp/nvme" "$tmp/ck"
small_there() { nsenter -t "$(cat "$lab/zt2/pid")" -m mount -t tmpfs -o size=64k tmpfs "$1"; }
if small_there "$tmp/nvme" && small_there "$tmp/ck"; then
    struck=$SECONDS
    go --set zero_optimization.offload_optimizer.device=nvme \
        --set zero_optimization.offload_optimizer.nvme_path="$tmp/nvme"
    within 10 "the disk of one host is full" '[13]' "rank 1 on zt2 failed first"
    grep -qE "rank 1.*$tmp/nvme|\| .*$tmp/nvme" "$tmp/err" || fail "the disk of one host is full" "it is not named"
    struck=$SECONDS
    go --set checkpoint.dir="$tmp/ck"
    within 10 "a folder of checkpoints that one host does not share" 3 'one that all hosts share'
    recipe=(--set checkpoint.dir="$tmp/ck" recipes/quickstart.yaml)
    examine "doctor of a folder that one host does not share" 1 '^zt2, 1 slot: 1 failure, [0-9]+ warnings?$' \
        'warn +checkpoints +.*/ck: [0-9.]+ MiB free' 'FAIL +shared folder .*/ck is another folder than on the first host' \
        '^not ready: 1 failure'
    nsenter -t "$(cat "$lab/zt2/pid")" -m mount -o remount,ro "$tmp/ck"
    struck=$SECONDS
    go --set checkpoint.dir="$tmp/ck"
    within 10 "a folder of checkpoints that one host cannot write" 3 'rank 1 can make no folder there: Read-only file system'
else
    echo "skip hosts the disk of one host is full: no mounts here"
fi

train
pids=$(called 2 'sshd.*')
# shellcheck disable=SC2086 # they are several
kill -9 $pids
within 5 "kill -9 of all of a host's sshd" '[1-9]*' 'the agent on zt2 was lost: '

exit $failed
