#!/usr/bin/env bash
# launch.sh ZEROTRAIN: processes are killed and signalled while `zerotrain launch` runs; each time the
# exit code is right and nothing is left running.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=launch
. "$(dirname "$0")/common.bash"

# A rank that leaves helpers behind: one in its group, one in a session of its own.
nested='sleep 600 & setsid sleep 600 & echo ready; wait; sleep 600'
deaf='trap "" TERM INT HUP; echo ready; while :; do sleep 0.1; done'

start launch --num_gpus 4 -- test/cases/L09/child.sh
verdict "a rank fails (L09)" 7 "rank 1 on $(uname -n) .*exit code 7"

start launch --num_gpus 3 -- sh -c 'if [ $RANK = 2 ]; then echo last words >&2; kill -9 $$; fi; sleep 600'
verdict "a rank kills itself" 137 "rank 2 on $(uname -n) failed first: signal 9"

start launch --num_gpus 2 -- sh -c 'echo "$RANK $$"; sleep 600 & wait'
until_true lines rank 2
hit SEGV "$(sed -n 's/^\[rank 1\] 1 //p' "$tmp/out")"
verdict "a rank is killed from outside" 139 'rank 1 on .* signal 11'

start launch --num_gpus 3 --grace 0.3 -- sh -c "$deaf" deaf
until_true lines ready 3
hit TERM "$pid"
verdict "ranks that ignore SIGTERM are killed" 143 'stopped by signal 15'

start launch --num_gpus 2 --grace 0.3 -- sh -c '[ $RANK = 0 ] || { trap "" TERM; while :; do sleep 0.1; done; }; exit 3'
verdict "a failure ends ranks that ignore SIGTERM" 3 'rank 0 on .* exit code 3'

for sig in INT TERM HUP; do
    start launch --num_gpus 3 -- sh -c "$nested" nested
    until_true lines ready 3
    hit $sig "$pid"
    verdict "SIG$sig to the front end" $((128 + $(kill -l $sig)))
done

start launch --num_gpus 2 --grace 600 -- sh -c "$deaf" deaf
until_true lines ready 2
hit INT "$pid"
until_true grep -q 'ending all ranks' "$tmp/err"
hit INT "$pid"
verdict "a second interrupt does not wait for the grace" 130 'at once'

start launch --num_gpus 3 -- sh -c "$nested" nested
until_true lines ready 3
[ "$(marked | wc -l)" -ge 11 ] || fail "marks" "$(marked | wc -l) processes were found, not 11"
hit 9 "$pid"
verdict "kill -9 of the front end" 137

start launch --num_gpus 2 --grace 0.3 -- sh -c "$deaf" deaf
until_true lines ready 2
hit 9 "$pid"
verdict "kill -9 of the front end, deaf ranks" 137

start launch --num_gpus 3 -- sh -c "$nested" nested
until_true lines ready 3
hit 9 "$(agent)"
verdict "kill -9 of the agent" 137 'the agent on .* was lost: signal 9'

# The front end sweeps up after a killed agent; children that it had before are not.
start launch --num_gpus 1 -- sh -c "$nested" nested
until_true lines ready 1
hit STOP "$pid" # so that the orphans are surely below it before it acts
hit 9 "$(agent)"
hit CONT "$pid"
verdict "kill -9 of the agent of a suspended front end" 137 'signal 9'

case_no=$((case_no + 1))
: >"$tmp/out"
ZT_TEST_MARK=$$.$case_no bash -c 'ZT_TEST_MARK=$$.none sleep 600 & echo $! >"$1"; shift; exec "$@"' \
    bash "$tmp/spared" "$zerotrain" launch --num_gpus 2 -- sh -c "$nested" nested \
    >"$tmp/out" 2>"$tmp/err" &
pid=$!
until_true lines ready 2
hit 9 "$(agent)"
verdict "children of before are spared" 137 'signal 9'
kill "$(cat "$tmp/spared")" || fail "children of before are spared" "one was killed"

start launch --num_gpus 3 -- sh -c "$nested" nested
until_true lines ready 3
hit TERM "$(agent)"
verdict "SIGTERM to the agent" 143 'the agent was stopped by signal 15'

start launch --num_gpus 2 -- sh -c "setsid sleep 600 & sleep 0.1"
verdict "helpers that ranks leave behind" 0 'they left behind'

start launch --num_gpus 2 -- sh -c 'echo ready; sleep 600'
until_true lines ready 2
agent=$(agent)
stopped() { grep -q '^State:	T' "/proc/$1/status"; }
all_stopped() { stopped $pid && for p in $(pgrep -P "$agent"); do stopped "$p" || return 1; done; }
hit TSTP "$pid"
until_true all_stopped || fail "Ctrl-Z suspends" "the job still runs"
hit CONT "$pid"
ranks_run() { for p in $(pgrep -P "$agent"); do ! stopped "$p" || return 1; done; }
until_true ranks_run || fail "Ctrl-Z resumes" "the job does not go on"
hit TERM "$pid"
verdict "Ctrl-Z suspends and resumes the job" 143

start launch --num_gpus 1 -- sh -c 'head -c 10000000 /dev/zero | tr "\0" x'
verdict "10 MB without a newline" 0
got=$(sed 's/^\[rank 0\] //' "$tmp/out" | tr -d '\n' | wc -c)
[ "$got" = 10000000 ] || fail "10 MB without a newline" "$got bytes"

start launch --num_gpus 2 --env_file test/cases/L10/env --env 'MULTI=line 1
line 2' -- sh -c 'printf "%s\n" "$NCCL_IB_HCA" "$RUN_META" "$NOTE" "${EMPTY-unset}" "$QUOTED" "$MULTI" "$@"' \
    sh '--note=generate a SQL query.' "don't \"x\" \$HOME *"
verdict "environment and arguments (L10)" 0
want='=mlx5_1:1,mlx5_2:1
{"a": "b"}
x (y)

it'\''s
line 1
line 2
--note=generate a SQL query.
don'\''t "x" $HOME *'
for r in 0 1; do
    [ "$(sed -n "s/^\[rank $r\] //p" "$tmp/out")" = "$want" ] ||
        fail "environment and arguments (L10)" "rank $r saw something else"
done

printf 'A=1\n# fine\nNONSENSE\n' >"$tmp/env"
start launch --env_file "$tmp/env" -- true
verdict "a bad line in --env_file" 2 'env:3: "NONSENSE" has no'

start launch --num_gpus 2 -- sh -c 'while :; do echo x; done'
until_true lines rank 2
hit TERM "$pid"
verdict "ranks that write without end" 143

exit $failed
