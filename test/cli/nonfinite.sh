#!/usr/bin/env bash
# A loss that is not finite: an error, or steps left out, by option.
. "$REPO/test/cli/common.bash"
tiny
try train tiny.yaml --log_dir=a --set optimizer.params.lr=1e30 >out
grep -E '^(step|2 steps|\[exit)' out
grep -o 'step 2: the loss is not finite, .*' out | sort -u
try train tiny.yaml --log_dir=b --set optimizer.params.lr=1e30 --set train.on_nonfinite=skip | steps >out
grep -v '^zerotrain' out
grep '^zerotrain' out
grep -c '"loss": null' b/metrics.jsonl
