#!/usr/bin/env bash
# reader.sh ZEROTRAIN: whoever should read its output does not, or slowly. Ranks are ended as if he did, whoever
# tells it to end is obeyed, and who reads later has lost nothing.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=reader
. "$(dirname "$0")/common.bash"
endless_recipe
mkfifo "$tmp/pipe"

# start_unread FD ARG...: as start(), but what it writes on FD goes into a pipe that nobody reads yet. Descriptor 9 is
# its other end.
start_unread() {
    local fd=$1 out=$tmp/out err=$tmp/err
    shift
    case_no=$((case_no + 1))
    : >"$tmp/out"
    : >"$tmp/err"
    exec 9<>"$tmp/pipe"
    [ "$fd" = 1 ] && out=$tmp/pipe || err=$tmp/pipe
    ZT_TEST_MARK=$$.$case_no env --default-signal=INT,QUIT,TERM,HUP \
        "$zerotrain" "$@" >"$out" 2>"$err" 9<&- &
    pid=$!
}

held() { # the ranks' file of progress does not grow any more
    local before now
    before=$(stat -c %s "$tmp/progress")
    sleep 0.5
    now=$(stat -c %s "$tmp/progress")
    [ "$now" -gt 5000 ] && [ "$now" = "$before" ]
}
only_front() { [ "$(marked)" = "$pid" ]; }
# What comes out of the pipe until nobody writes, read by COMMAND cat, to tmp/read.
read_pipe() {
    "$@" cat <"$tmp/pipe" >"$tmp/read" 9<&- &
    reader=$!
    exec 9<&-
}

# Rank 0 writes without end, and notes how much; rank 1 fails when it is told to.
chatter="until [ -e $tmp/go ]; do sleep 0.05; done; echo broken >&2; exit 7"
chatter="[ \$RANK = 0 ] || { $chatter; }
while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; printf x >>$tmp/progress; done"

rm -f "$tmp/go" "$tmp/progress"
: >"$tmp/progress"
start_unread 1 launch --num_gpus 2 -- sh -c "$chatter"
name="a failure is acted on while nobody reads"
until_true held || fail "$name" "the ranks are not held up"
touch "$tmp/go"
until_true only_front || fail "$name" "still running: $(marked | tr '\n' ' ')"
until_true grep -q 'rank 1 on .* failed first: exit code 7' "$tmp/err" ||
    fail "$name" "stderr does not say why"
read_pipe
verdict "$name" 7 broken
wait $reader
grep -qv '^\[rank 0\] x*$' "$tmp/read" && fail "$name" "broken lines"

for sig in TERM INT HUP; do
    : >"$tmp/progress"
    start_unread 1 launch --num_gpus 2 -- sh -c "rm -f $tmp/go; $chatter"
    until_true held || fail "SIG$sig while nobody reads" "the ranks are not held up"
    hit $sig "$pid"
    verdict "SIG$sig while nobody reads" $((128 + $(kill -l $sig))) 'bytes that nobody has read'
    exec 9<&-
done

: >"$tmp/progress"
start_unread 2 launch --num_gpus 2 -- sh -c "exec 1>&2; $chatter"
until_true held || fail "SIGTERM while nobody reads stderr" "the ranks are not held up"
hit TERM "$pid"
verdict "SIGTERM while nobody reads stderr" 143
exec 9<&-

rm -f "$tmp/go"
: >"$tmp/progress"
start_unread 2 launch --num_gpus 2 -- sh -c "exec 1>&2; $chatter"
name="a failure while nobody reads stderr"
until_true held || fail "$name" "the ranks are not held up"
touch "$tmp/go"
until_true only_front || fail "$name" "still running: $(marked | tr '\n' ' ')"
hit TERM "$pid"
verdict "$name, then SIGTERM" 7
exec 9<&-

# A job that has ended well waits for its reader, until it is told not to.
long='i=0; while [ $i -lt 3000 ]; do echo "line $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"; i=$((i+1)); done'
rm -f "$tmp/done"
start_unread 1 launch --num_gpus 1 -- sh -c "$long; touch $tmp/done"
until_true [ -e "$tmp/done" ]
until_true only_front
hit TERM "$pid"
verdict "SIGTERM after the job, which nobody reads" 143 'bytes that nobody has read'
exec 9<&-

# One page at a time, in more time altogether than a reader has who takes nothing.
slowly() { "$@" | (while dd bs=4096 count=1 status=none | grep -a ''; do sleep 0.1; done); }
start_unread 1 launch --num_gpus 1 -- sh -c "$long; exit 3"
read_pipe slowly
verdict "a slow reader of a job that fails" 3
wait $reader
[ "$(sed -n 's/^\[rank 0\] line \([0-9]*\) x*$/\1/p' "$tmp/read" | tail -n 1)" = 2999 ] ||
    fail "a slow reader of a job that fails" "$(wc -l <"$tmp/read") lines"

start_unread 1 launch --num_gpus 1 -- sh -c "trap '$long; exit' TERM; echo ready; while :; do sleep 0.05; done"
slowly cat <"$tmp/pipe" >"$tmp/read" 9<&- &
reader=$!
exec 9<&-
until_true grep -q ready "$tmp/read"
hit TERM "$pid"
verdict "a slow reader of a job that is told to end" 143
wait $reader
grep -q 'line 2999 ' "$tmp/read" ||
    fail "a slow reader of a job that is told to end" "$(wc -l <"$tmp/read") lines"

start_unread 1 launch --num_gpus 1 --max_restarts 1 -- \
    sh -c "[ \$TORCHELASTIC_RESTART_COUNT = 0 ] || touch $tmp/again; $long; exit 3"
name="a restart while nobody reads"
until_true [ -e "$tmp/again" ] || fail "$name" "it does not begin again"
until_true only_front
read_pipe
verdict "$name" 3 'its 1 restart is used up'
wait $reader
[ "$(grep -c 'line 2999 ' "$tmp/read")" = 2 ] || fail "$name" "$(wc -l <"$tmp/read") lines"

# A training: it saves, and ends.
printf 'checkpoint: {dir: %s}\n' "$tmp/ckpt" >>"$tmp/tiny.yaml"
start_unread 1 --device=cpu --num_gpus=2 --log_dir="$tmp/run" --set steps_per_print=1 "$tmp/tiny.yaml"
steps() { grep -c . "$tmp/run/metrics.jsonl" 2>/dev/null; }
training_held() {
    local before
    before=$(steps)
    sleep 0.5
    [ "${before:-0}" -gt 100 ] && [ "$(steps)" = "$before" ]
}
until_true training_held || fail "a training saves while nobody reads" "it is not held up"
hit TERM "$pid"
verdict "a training saves while nobody reads" 7 'bytes that nobody has read'
[ -e "$tmp/ckpt/latest" ] || fail "a training saves while nobody reads" "no checkpoint"
exec 9<&-

# Its reader goes away; while it is held up, so that it learns of both at once, a rank is killed.
name="a rank is killed as the reader goes away"
start_unread 1 --device=cpu --num_gpus=2 --log_dir="$tmp/run2" "$tmp/tiny.yaml" --fresh
until_true test -s "$tmp/run2/metrics.jsonl" || fail "$name" "no step was made"
hit STOP "$pid"
exec 9<&-
for p in $(marked); do
    ! grep -qsx zerotrain-r1 "/proc/$p/comm" || hit 9 "$p"
done
hit CONT "$pid"
verdict "$name" 137 'rank 1 on .* failed first: signal 9'

# What is printed before a run goes on with less waits for nobody: the search of the stage is too long for the pipe.
name="an elastic restart while nobody reads"
worker_of() { # RANK: its process
    local p
    for p in $(marked); do
        ! grep -qsx "zerotrain-r$1" "/proc/$p/comm" || echo "$p"
    done
}
there() { [ -n "$(worker_of "$1")" ]; }
starts() { [ "$(grep -c "$1" "$tmp/err")" -ge "$2" ]; }
rm -rf "$tmp/run" "$tmp/ckpt"
start_unread 1 --device=cpu --num_gpus=3 --max_restarts=2 --elastic --log_dir="$tmp/run" --set steps_per_print=1 \
    --set train_batch_size=6 --set train_micro_batch_size_per_gpu=1 --set zero_optimization.stage=auto \
    --set checkpoint.every_steps=50 "$tmp/tiny.yaml"
until_true training_held || fail "$name" "it is not held up"
hit 9 "$(worker_of 0)"
until_true starts 'going on from' 1 && until_true there 0 || fail "$name" "it does not begin again"
hit 9 "$(worker_of 0)"
until_true starts 'left out from now on' 1 || fail "$name" "none is left out"
until_true starts 'going on from' 2 || fail "$name" "it waits for its reader"
hit TERM "$pid"
verdict "$name" '[1-9]*' 'restart 2 of 2'
exec 9<&-

# A terminal that nobody looks at: it takes less than a write has.
name="a terminal that takes no more"
case_no=$((case_no + 1))
: >"$tmp/progress"
cat >"$tmp/terminal.py" <<'END'
import os, pty, subprocess, sys
ours, theirs = pty.openpty()
sys.exit(subprocess.call(sys.argv[2:], stdout=theirs, stderr=open(sys.argv[1], "w")))
END
ZT_TEST_MARK=$$.$case_no python3 "$tmp/terminal.py" "$tmp/err" \
    "$zerotrain" launch --num_gpus 2 -- sh -c "rm -f $tmp/go; $chatter" &
pid=$!
until_true held || fail "$name" "the ranks are not held up"
hit TERM "$(pgrep -P "$pid" -x zerotrain)"
verdict "$name" 143 'bytes that nobody has read'

exit $failed
