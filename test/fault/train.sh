#!/usr/bin/env bash
# train.sh ZEROTRAIN: processes of a running training are killed and signalled. Ranks that wait for a
# dead one in a collective must not hang, and must not be taken for the first failure.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=train
. "$(dirname "$0")/common.bash"

# A training without end, under way.
train() {
    start --device=cpu --num_gpus=3 --log_dir="$tmp/run$case_no" --set train.steps=1000000 \
        --set train_micro_batch_size_per_gpu=2 recipes/quickstart.yaml
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
}
trains() { grep -q '"step"' "$tmp/run$((case_no - 1))/metrics.jsonl" 2>/dev/null || ended; }
rank() { pgrep -P "$(agent)" -x "zerotrain-r$1"; }
# Of nodes made of this host: any agent's.
node_rank() { pgrep -x "zerotrain-r$1" -P "$(agent | paste -sd,)"; }

for sig in KILL SEGV; do
    train
    hit $sig "$(rank 1)"
    verdict "SIG$sig to a rank" $((128 + $(kill -l $sig))) "rank 1 on $(uname -n) failed first: signal"
done

train
hit INT "$pid"
verdict "an interrupt lets the step end" 130 'finishing this step'

train
hit TERM "$pid"
verdict "SIGTERM to the front end" 143

train
hit 9 "$pid"
verdict "kill -9 of the front end" 137

train
hit 9 "$(agent)"
verdict "kill -9 of the agent" 137 'the agent on .* was lost'

train
hit STOP "$(rank 2)"
hit 9 "$(rank 0)"
verdict "a rank dies while another is frozen" 137 "rank 0 on $(uname -n) failed first: signal 9"

# A rank dies on a node; those on the other one wait for it over TCP.
for lost in 1 2; do
    ZT_TEST_LOCAL_NODES=2,1 train
    hit 9 "$(node_rank $lost)"
    verdict "SIGKILL to rank $lost of two nodes" 137 "rank $lost on $(uname -n) failed first: signal 9"
done

exit $failed
