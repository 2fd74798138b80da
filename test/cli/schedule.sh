#!/usr/bin/env bash
# The list of ops: the same rows as text and as JSON, each program there.
. "$REPO/test/cli/common.bash"
tiny
zerotrain plan --num_gpus=2 --device=cpu --schedule tiny.yaml \
    --set zero_optimization.stage=3 --set train.sample_every=1 --set train.eval_every=1 >text
grep '^program' text | sed 's/:.*//'
grep -c '^ *[0-9]* *\(compute\|comm\|copy-in\|copy-out\|host\) ' text >rows
zerotrain plan --num_gpus=2 --device=cpu --schedule --json tiny.yaml \
    --set zero_optimization.stage=3 --set train.sample_every=1 --set train.eval_every=1 |
    python3 -c 'import json, sys
s = json.load(sys.stdin)["stages"][3]
print(sum(len(p["schedule"]) for p in s["programs"]))' | cmp - rows && echo "the same number of rows"
sed -n '/^program train/,/FORWARD/p' text | sed -E 's/;.*//; s/\[[0-9, ]*\)/[...)/'
