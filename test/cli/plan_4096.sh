#!/usr/bin/env bash
# A 7B model on 4096 ranks, of any rank, as text and as JSON.
. "$REPO/test/cli/common.bash"
r=$REPO/recipes/llama-7b.yaml
zerotrain plan --num_gpus=4096 "$r" 2>/dev/null | head -n 2
zerotrain plan --num_gpus=4096 --rank=4095 --json "$r" 2>/dev/null |
    python3 -c 'import json, sys
for s in json.load(sys.stdin)["stages"]: print(s["stage"], s["rank"], s["ranks"], s["parameters"])'
try zerotrain plan --num_gpus=4096 --rank=4096 "$r"
try zerotrain --device=cpu --num_gpus=1 "$r"
