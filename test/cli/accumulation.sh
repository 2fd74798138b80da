#!/usr/bin/env bash
# Accumulation and stages: the start tells the batch.
. "$REPO/test/cli/common.bash"
tiny
for stage in 0 1 2 3; do
    train tiny.yaml --log_dir=run$stage --set zero_optimization.stage=$stage \
        --set gradient_accumulation_steps=2 --set train.reduce_every_micro_batch=true >out$stage
done
grep -E 'ZeRO|^model' out?
digests() { sed -n 's/.*"digest": "\(.*\)".*/\1/p' run?/summary.json; }
digests | sort -u | wc -l
