#!/usr/bin/env bash
# hosts_restart.sh ZEROTRAIN: --max_restarts and --elastic over hosts made of network namespaces (lab.bash). Ranks and
# hosts are lost and come back; training goes on from the newest checkpoint, on all hosts or on those that remain.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=hosts_restart
. "$(dirname "$0")/common.bash"
N=3
. test/fault/lab.bash
printf 'zt%d slots=1\n' 1 2 3 >"$tmp/three"
. test/fault/saving.bash

# It is under way.
train() { # OPTION...
    start_saving --hostfile="$tmp/three" "$@"
    until_step 3
}
# The same, without any checkpoint.
train_unsaved() { # OPTION...
    start_saving --hostfile="$tmp/three" --set checkpoint.every_steps=1000000 "$@"
    until_true has_steps || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
}
has_steps() { [ "$(grep -cs loss "$run/metrics.jsonl")" -ge 3 ] 2>/dev/null || ended; }
began_anew() { says 'beginning with the first step again'; }
rank_is_there() { [ -n "$(rank_on "$1" "$2")" ] || ended; }
kill_rank() { # HOST RANK
    until_true rank_is_there "$1" "$2"
    hit 9 "$(rank_on "$1" "$2")"
}
# More steps are made now, and then the run is told to end: with NAME and what stderr must have said.
goes_on_and_ends() { # NAME PATTERN
    until_more_than 2
    hit INT "$pid"
    struck=$SECONDS
    within 5 "$1" 130 "$2"
    one_record "$1"
}
said() { # NAME PATTERN
    grep -qE -- "$2" "$tmp/err" "$tmp/out" || fail "$1" "nobody said \"$2\""
}
# Of each step.
losses() { grep -o '"loss": *[0-9.]*' "$1/metrics.jsonl" | grep -o '[0-9.]*$'; }
# In all steps that both have, those after the failure too, the losses are the same but for rounding.
same_losses() {
    paste <(losses "$run") <(losses "$whole_run") | awk 'NF == 2 && ($1 - $2 > 1e-3 || $2 - $1 > 1e-3) { exit 1 }'
}

train
until_true has_step 200
hit INT "$pid"
verdict "without trouble" 130
whole=$ck whole_run=$run

# ---- all hosts come back ----

train --max_restarts=1
kill_rank 2 1
until_true went_on 1
until_true has_step 12
goes_on_and_ends "a rank is killed" 'restart 1 of 1 in 1 s'
said "a rank is killed" 'rank 1 on zt2 failed first: signal 9'
for f in "$whole"/step-000012/*.safetensors; do
    cmp -s "$f" "$ck/step-000012/${f##*/}" || fail "a rank is killed" "${f##*/} of step 12 has other bits"
done

train --max_restarts=1
kill_rank 3 2
until_true went_on 1
kill_rank 1 0
struck=$SECONDS
within 5 "restarts are used up" 137 'its 1 restart is used up'
said "restarts are used up" 'rank 0 on zt1 failed first: signal 9'

train --max_restarts=1
hit 9 "$(agent_on 2)"
until_true went_on 1
goes_on_and_ends "an agent is killed" 'the agent on zt2 was lost'

# What rank 0 says does not come through any more, and it goes on training.
name="a connection hangs, and is lost"
client_to() {
    local p
    for p in $(pgrep -P "$pid" -x ssh); do
        ! tr '\0' '\n' <"/proc/$p/cmdline" | grep -qx "$1" || echo "$p"
    done
}
train --max_restarts=1 --launcher=openssh
client=$(client_to zt1)
hit STOP "$client"
made=$(steps_so_far)
until_true has_step $((made + 20))
hit 9 "$client"
until_true went_on 1
until_more_than 2
hit INT "$pid"
struck=$SECONDS
within 5 "$name" 130 "metrics.jsonl lacks steps [0-9]+ to [0-9]+:"

# Neither does that it has begun. Until then hosts do not reach each other.
name="a connection hangs before the first step, and is lost"
apart() { for i in 1 2 3; do bridge link set dev vzt$i isolated "$1"; done; }
dials() { [ -n "$(ip netns exec zt3 ss -Htn state syn-sent)" ] || ended; }
apart on
start_saving --hostfile="$tmp/three" --max_restarts=1 --launcher=openssh
until_true dials
client=$(client_to zt1)
hit STOP "$client"
apart off
until_step 3
hit 9 "$client"
until_true went_on 1
until_more_than 2
hit INT "$pid"
struck=$SECONDS
within 5 "$name" 130 "metrics.jsonl lacks steps 1 to [0-9]+:"

train_unsaved --max_restarts=1
kill_rank 2 1
until_true began_anew
goes_on_and_ends "a rank is killed before the first checkpoint" 'restart 1 of 1 in 1 s'
same_losses || fail "a rank is killed before the first checkpoint" "other losses: $(losses "$run" | tr '\n' ' ')"

# Rank 0's: its host still has ranks, and the lock, when the link is cut.
train --max_restarts=1
ip link set vzt1 down
until_true says 'trying again in'
ip link set vzt1 up
until_true went_on 1
goes_on_and_ends "a host returns" 'restart 1 of 1 in 1 s'
said "a host returns" '3 CPU workers'

export ZT_TEST_RETURN_S=4
train --max_restarts=1
ip link set vzt2 down
until_true ended
struck=$SECONDS
within 15 "a host does not return" '[1-9]*' 'it was waited for'
ip link set vzt2 up
until_true nothing_on_hosts
unset ZT_TEST_RETURN_S

# ---- those that remain ----

left_out() { # NAME HOST WHY: it goes on with two hosts, in the same batches
    goes_on_and_ends "$1" "$2 is left out from now on: $3"
    said "$1" 'batch 12 = micro-batch 2 x accumulation 3 x 2 ranks'
    said "$1" 'on 2 hosts'
    same_losses || fail "$1" "other losses: $(losses "$run" | tr '\n' ' ')"
}

train --max_restarts=1 --elastic
ip link set vzt2 down
until_true went_on 1
left_out "a host is cut off" zt2 'it was lost'
ip link set vzt2 up

# The one of rank 0, which has the lock of the folder.
train --max_restarts=1 --elastic
ip link set vzt1 down
until_true went_on 1
left_out "the host of rank 0 is cut off" zt1 'it was lost'
ip link set vzt1 up

train_unsaved --max_restarts=1 --elastic
ip link set vzt3 down
until_true began_anew
left_out "a host is cut off before the first checkpoint" zt3 'it was lost'
ip link set vzt3 up

# Hosts that do not reach each other, while we reach all of them.
name="two hosts do not reach each other"
why="other hosts and it do not reach each other"
between() { for i in 1 3; do bridge link set dev vzt$i isolated "$1"; done; } # on|off: zt1 and zt3
train --max_restarts=1 --elastic
between on
until_true went_on 1
left_out "$name" zt3 "$why"
said "$name" '^zerotrain: zt1 and zt3 cannot reach each other, though we reach all hosts'
! grep -q 'failed first' "$tmp/err" || fail "$name" "a rank is blamed"

start_saving --hostfile="$tmp/three" --set checkpoint.every_steps=1000000 --max_restarts=1 --elastic
until_true has_steps
left_out "$name, from the start" zt3 "$why"
between off

# One that no other reaches is left out, not the last of those that miss it.
name="a host is not reached by the others"
cut_off() { # add|del HOST: zt1 and that
    ip -n zt1 route "$1" blackhole "10.199.0.$2" && ip -n "zt$2" route "$1" blackhole 10.199.0.1
}
train --max_restarts=1 --elastic
cut_off add 2 && cut_off add 3
until_true went_on 1
left_out "$name" zt1 "$why"
said "$name" '^zerotrain: zt1 and zt2, zt1 and zt3 cannot reach each other, though'
cut_off del 2 && cut_off del 3

freeze_and_thaw() { # NAME HOST
    train --max_restarts=2 --elastic
    mapfile -t frozen < <(ip netns pids "zt$2")
    kill -STOP "${frozen[@]}"
    until_true went_on 1
    kill -CONT "${frozen[@]}" 2>/dev/null # but those that have been killed
    struck=$SECONDS
    until_true nothing_on "$2"
    [ $((SECONDS - struck)) -le 15 ] || fail "$1" "it had processes left for $((SECONDS - struck)) s"
    left_out "$1" "zt$2" 'it was lost'
}
freeze_and_thaw "a host freezes and thaws" 3

train --max_restarts=2 --elastic
kill_rank 2 1
until_true went_on 1
kill_rank 2 1
until_true went_on 2
left_out "the ranks of a host fail twice in a row" zt2 'its ranks failed twice in a row'

# The memory of zt2 is that of a control group, which runs out; its rank is the one that the kernel picks.
memory_group() {
    local root=/sys/fs/cgroup
    if [ -e $root/memory/cgroup.procs ]; then
        group=$root/memory/zt-test-$$ limit=memory.limit_in_bytes usage=memory.usage_in_bytes
    else
        group=$root/zt-test-$$ limit=memory.max usage=memory.current
    fi
    mkdir "$group" 2>/dev/null && [ -e "$group/$limit" ] && cat "$lab/zt2/pid" >"$group/cgroup.procs"
}
run_out_of_memory() { # PID: it is killed first, then who takes the memory
    echo 1000 >"/proc/$1/oom_score_adj"
    cat "$group/$usage" >"$group/$limit"
    bash -c 'echo $$ >"$0/cgroup.procs" && echo 500 >/proc/self/oom_score_adj && head -c 1G /dev/zero | tail -c 1G' \
        "$group" >"$tmp/taken" 2>&1
    rm "$tmp/taken"
    echo -1 >"$group/$limit" 2>/dev/null || echo max >"$group/$limit"
}
name="a rank is killed for memory"
if memory_group; then
    train --max_restarts=1 --elastic
    run_out_of_memory "$(rank_on 2 1)"
    until_true went_on 1
    left_out "$name" zt2 'it ran out of memory'
    said "$name" 'rank 1 on zt2 failed first: signal 9 .*out-of-memory'
    cat "$lab/zt2/pid" >"${group%/*}/cgroup.procs"
else
    echo "skip $suite $name: no control group for memory can be made"
fi
[ ! -d "$group" ] || rmdir "$group"

# Two, one after the other, at last with one host alone.
train --max_restarts=2 --elastic
hit 9 "$(agent_on 1)"
until_true went_on 1
hit 9 "$(agent_on 2)"
until_true went_on 2
goes_on_and_ends "two hosts are lost" 'zt2 is left out from now on: it was lost'
said "two hosts are lost" 'zt1 is left out from now on: it was lost'
said "two hosts are lost" 'batch 12 = micro-batch 2 x accumulation 6 x 1 rank,'

# As on machines of their own, nobody sees the processes of others: the lock that rank 0 holds is taken over once it
# was not kept up for long enough.
test/fault/netlab.bash down "$lab" $N
rm -rf "$lab"
if NETLAB_UNSHARE="--pid --fork --mount-proc" test/fault/netlab.bash up "$lab" $N >"$tmp/reason"; then
    freeze_and_thaw "the host of rank 0 freezes and thaws" 1
    [ -e "$ck/.lock-4" ] || fail "the host of rank 0 freezes and thaws" "its lock: $(cd "$ck" && echo .lock-*)"
else
    echo "skip $suite the host of rank 0 freezes and thaws: $(cat "$tmp/reason")"
fi

exit $failed
