#!/usr/bin/env bash
# CASES M01: DeepSpeed's estimates of its own example; and of a model, beside what is planned.
. "$REPO/test/cli/common.bash"
echo 'model: {params: 2851598336}' >m01.yaml
try zerotrain plan --deepspeed_estimate --num_gpus=8 --largest_layer=32899072 m01.yaml
try zerotrain plan --deepspeed_estimate --num_gpus=4 "$REPO/recipes/gpt2-1.5b.yaml" \
    --set train_batch_size=auto | sed -nE '1,/^$/p;/^ /,/^$/{s/ +[0-9.]+ +[0-9.]+$/ PLANNED/p}'
try zerotrain plan --deepspeed_estimate --num_gpus=8 m01.yaml
# Two hosts: DeepSpeed's num_nodes=2, 8 GPUs each.
try zerotrain plan --deepspeed_estimate --hostfile="$REPO/hostfiles/two-nodes" --largest_layer=32899072 m01.yaml |
    grep -E '^(. zerotrain|[23]|Model|GB)'
tiny
try zerotrain plan --deepspeed_estimate --largest_layer=5 tiny.yaml
try zerotrain plan --deepspeed_estimate --json tiny.yaml
echo "# what does not go together"
try zerotrain plan --deepspeed_estimate --fit=1GB tiny.yaml
try zerotrain plan --deepspeed_estimate --schedule tiny.yaml
try zerotrain plan --fit=1GB --schedule tiny.yaml
try zerotrain plan --largest_layer=5 tiny.yaml
