#!/usr/bin/env bash
# restart.sh ZEROTRAIN: --max_restarts and --elastic on one machine. What is killed begins again from the newest
# checkpoint, to the bits of a run without trouble, in one record; what would fail again does not.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=restart
. "$(dirname "$0")/common.bash"
. test/fault/saving.bash

train() { start_saving --num_gpus=3 "$@"; }
prints() { grep -qE -- "$1" "$tmp/out" || ended; }
until_says() { until_true says "$1"; }
rank() { pgrep -P "$(agent)" -x "zerotrain-r$1" 2>/dev/null; }
rank_is_there() { [ -n "$(rank "$1")" ] || ended; }
kill_rank() {
    until_true rank_is_there "$1"
    hit 9 "$(rank "$1")"
}

# ---- to the same bits ----

train
until_step 7
hit INT "$pid"
verdict "without trouble" 130
whole=$ck

same_bits() { # NAME: step 7 here is that of the run without trouble
    local f
    for f in "$whole"/step-000007/*.safetensors; do
        cmp -s "$f" "$ck/step-000007/${f##*/}" || fail "$1" "${f##*/} of step 7 has other bits"
    done
}

train --max_restarts=2
until_step 3
kill_rank 1
until_true prints "going on from $ck/step-"
until_step 7
hit INT "$pid"
verdict "a rank is killed" 130 'restart 1 of 2 in 1 s'
grep -q "rank 1 on $(uname -n) failed first: signal 9" "$tmp/err" || fail "a rank is killed" "no cause was named"
grep -qE "going on from $ck/step-0" "$tmp/err" || fail "a rank is killed" "no checkpoint was named"
grep -q '; 1 restart$' "$tmp/out" || fail "a rank is killed" "the summary does not count the restart"
grep -q '"restarts": 1' "$run/summary.json" || fail "a rank is killed" "summary.json does not count it"
same_bits "a rank is killed"
one_record "a rank is killed"

train --max_restarts=1
until_step 3
hit 9 "$(agent)"
until_true prints "going on from $ck/step-"
until_step 7
hit INT "$pid"
verdict "the agent is killed" 130 'the agent on .* was lost: signal 9'
same_bits "the agent is killed"

# ---- when there is no checkpoint yet ----

train --max_restarts=1 --set checkpoint.every_steps=1000000 --set checkpoint.resume=never
until_true test -s "$run/metrics.jsonl"
kill_rank 0
until_says 'beginning with the first step again'
until_more_than 0
hit INT "$pid"
verdict "a failure before the first checkpoint" 130 'no checkpoint was saved yet: beginning with the first step again'
one_record "a failure before the first checkpoint"

# Where it went on from a checkpoint of another folder, it does so again.
train --max_restarts=1 --set checkpoint.every_steps=1000000 --resume="$whole/step-000007"
until_true test -s "$run/metrics.jsonl"
kill_rank 0
until_says "going on from $whole/step-000007"
until_more_than 0
hit INT "$pid"
verdict "a failure before the first checkpoint of a run that goes on from another" 130 \
    "going on from $whole/step-000007"
! grep -q '"step": *[1-7],' "$run/metrics.jsonl" ||
    fail "a failure before the first checkpoint of a run that goes on from another" "it began with the first step"

# ---- the lock of a host that cannot be asked whether it lives ----

lock_elsewhere() { # as lock N of the folder $ck; who has the one before finds out at its next save
    printf 'held by process 1 on zt9 since 2026-01-01 00:00:00 UTC\n%s 4026531836 17\n' \
        01234567-0000-0000-0000-000000000000 >"$ck/.lock-$1"
}
newest_lock() { find "$ck" -name '.lock-*' | grep -o '[0-9]*$' | sort -n | tail -n 1; }
told_while_locked() { # NAME SIGNAL CODE: as it begins again
    train --max_restarts=1
    until_step 3
    local n=$(($(newest_lock) + 1))
    lock_elsewhere $n
    until_says 'waiting for another'
    hit "$2" "$pid"
    verdict "$1" "$3" 'ended by signal .* before it began again'
    grep -qE "$ck is locked by process 1 on zt9 since 2026-01-01 .*: waiting for another (2[0-9]|30) s at most" "$tmp/err" ||
        fail "$1" "it was not said what is waited for"
    [ "$(newest_lock)" = $n ] || fail "$1" "it took the lock"
}
told_while_locked "an interrupt while the folder is locked" INT 130
told_while_locked "SIGTERM while the folder is locked" TERM 7

ck=$tmp/ck$((case_no + 1))
mkdir "$ck"
lock_elsewhere 1
train
until_says 'is locked by process 1 on zt9'
hit INT "$pid"
verdict "an interrupt while the folder is locked, before the first attempt" 130

# ---- used up, and not begun again ----

train --max_restarts=1
until_step 1
kill_rank 1
until_true prints 'going on from'
kill_rank 2
verdict "restarts are used up" 137 'its 1 restart is used up'
grep -q "rank 2 on .* failed first" "$tmp/err" || fail "restarts are used up" "the last cause was not named"

train --max_restarts=3
until_step 1
hit TERM "$pid"
verdict "SIGTERM does not begin again" 7

train --max_restarts=3
until_step 1
kill_rank 1
until_says 'restart 1 of 3'
hit INT "$pid"
verdict "an interrupt between two attempts" 130
[ "$(grep -c 'restart [0-9] of' "$tmp/err")" = 1 ] || fail "an interrupt between two attempts" "it began again"

# Several signals, as batch systems send them, reach it in one moment.
train --max_restarts=3
until_step 1
kill_rank 1
until_says 'restart 1 of 3'
hit STOP "$pid"
hit TERM "$pid"
hit USR1 "$pid"
hit CONT "$pid"
verdict "two signals between two attempts" 7 'ended by signal .* before it began again'
[ -e "$run/summary.json" ] || fail "two signals between two attempts" "there is no summary"

start launch --num_gpus 2 --max_restarts 2 -- false
until_says 'restart 1 of 2'
hit STOP "$pid"
hit TERM "$pid"
hit INT "$pid"
hit CONT "$pid"
verdict "launch is sent two signals between two attempts" 130 'ended by signal 2 .* before it began again'

# The next attempt cannot be set up, and a signal came meanwhile: it reads its recipe from who writes nothing yet.
cp "$tmp/tiny.yaml" "$tmp/whole.yaml"
train --max_restarts=3
until_step 1
rm "$tmp/tiny.yaml"
mkfifo "$tmp/tiny.yaml"
kill_rank 1
{ hit TERM "$pid" && echo 'no recipe'; } >"$tmp/tiny.yaml" & # is opened by both at once
writer=$!
verdict "SIGTERM while the next attempt is set up in vain" 7 'ended by signal 15 .* before it began again'
kill "$writer" 2>/dev/null
[ -e "$run/summary.json" ] || fail "SIGTERM while the next attempt is set up in vain" "there is no summary"
mv "$tmp/whole.yaml" "$tmp/tiny.yaml"

# A host that takes its time when the job begins again: what it reads, FILE, comes from who writes nothing.
mkdir "$tmp/hosts"
printf 'zt-a slots=1\nzt-b slots=1\n' >"$tmp/hostfile"
told_by_slow_host() { # NAME FILE PATTERN
    echo "ZT_TEST_MARK=$$.$((case_no + 1))" | tee "$tmp/hosts/zt-a" >"$tmp/hosts/zt-b"
    PATH=$PWD/test/fake-ssh:$PATH FAKE_HOSTS=$tmp/hosts ZT_TCP_INTERFACE=lo \
        start_saving --max_restarts=3 --launcher=openssh --hostfile="$tmp/hostfile"
    until_step 1
    rm -f "$2"
    mkfifo "$2"
    hit 9 "$(pgrep -x zerotrain-r1 | grep -xF "$(marked)")"
    { hit TERM "$pid" && until_true ended; } >"$2" &
    local writer=$!
    verdict "$1" 7 "$3"
    kill "$writer" 2>/dev/null
    rm "$2"
}
told_by_slow_host "SIGTERM while ssh is asked for the configuration" "$tmp/hosts/zt-b.config" \
    'ended by signal 15 .* before it began again'
told_by_slow_host "SIGTERM while hosts log in again" "$tmp/hosts/zt-b" 'the job was stopped by signal 15'

train --max_restarts=3
until_step 1
kill_rank 1
until_true prints 'going on from'
hit 9 "$pid"
verdict "kill -9 of the front end after a restart" 137

# ---- with less ----

shrunk() { # NAME BATCH MICRO LINE: rank 0 fails twice in a row, and LINE tells of the batch after that
    train --max_restarts=2 --elastic --set train_batch_size="$2" --set train_micro_batch_size_per_gpu="$3"
    until_step 1
    kill_rank 0
    until_true prints 'going on from'
    kill_rank 0
    until_true prints "$4"
    until_more_than 3
    hit INT "$pid"
    verdict "$1" 130 'one worker is left out from now on: rank 0 failed twice in a row'
    prints "$4" || fail "$1" "no line \"$4\": $(grep batch "$tmp/out" | tail -n 1)"
    grep -q "; 2 restarts$" "$tmp/out" || fail "$1" "the summary does not count the restarts"
    one_record "$1"
}
shrunk "a worker is left out" 12 2 'batch 12 = micro-batch 2 x accumulation 3 x 2 ranks'
shrunk "more are left out than failed" 9 3 'batch 9 = micro-batch 3 x accumulation 3 x 1 rank,'
grep -q '1 of the remaining 2 workers take part: the batch of 9' "$tmp/err" ||
    fail "more are left out than failed" "it is not said why"

train --max_restarts=2 --elastic
until_step 1
kill_rank 0
until_true prints 'going on from'
kill_rank 1
until_true lines 'going on from' 2
hit INT "$pid"
verdict "failures of different ranks leave out none" 130 'restart 2 of 2 in 2 s'
! grep -q 'left out' "$tmp/err" || fail "failures of different ranks leave out none" "$(grep 'left out' "$tmp/err")"

# ---- any program ----

start launch --num_gpus 2 --max_restarts 3 -- sh -c 'echo "try $TORCHELASTIC_RESTART_COUNT"
    [ "$RANK" = 0 ] || [ "$TORCHELASTIC_RESTART_COUNT" = 2 ] || exit 3; [ "$TORCHELASTIC_RESTART_COUNT" = 2 ]'
verdict "launch begins again until it ends well" 0 'restart 2 of 3 in 2 s'
lines 'rank 1. try 2' 1 || fail "launch begins again until it ends well" "the third attempt did not run"

start launch --num_gpus 2 --max_restarts 1 -- sh -c '[ "$RANK" = 0 ] && exit 5; exec sleep 600'
verdict "launch uses up its restarts" 5 'its 1 restart is used up'

exit $failed
