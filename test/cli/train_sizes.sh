#!/usr/bin/env bash
# 0 steps, 1 step, more ranks than samples, one rank.
. "$REPO/test/cli/common.bash"
tiny
try train tiny.yaml --log_dir=r0 --set train.steps=0 | steps
test -e r0/metrics.jsonl && ! test -s r0/metrics.jsonl && echo "no steps recorded"
try train tiny.yaml --log_dir=r1 --set train.steps=1 | steps
head -c 33 text.txt >one.txt
try train tiny.yaml --log_dir=r2 --set data.train=one.txt --set train.steps=2 | steps
zerotrain --device=cpu tiny.yaml --log_dir=r3 | steps
zerotrain --device=cpu --num_gpus=10 tiny.yaml --log_dir=r4 --set train.steps=1 | sed -n '/^memory,/,$p'
try train tiny.yaml --set train.steps=-1
