#!/usr/bin/env bash
# DeepSpeed's first example: it parses, is planned with a model, and trains.
. "$REPO/test/cli/common.bash"
tiny
cat >ds.json <<'END'
{"train_batch_size": 64, "fp16": {"enabled": true}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
END
try zerotrain plan --print_recipe ds.json | grep -vE 'default$|^ *[a-z_]*:$'
try zerotrain plan ds.json
zerotrain plan --num_gpus=4 tiny.yaml --deepspeed_config ds.json --set train_micro_batch_size_per_gpu=auto \
    2>/dev/null | head -n 2
try zerotrain --device=cpu ds.json
try train tiny.yaml --deepspeed_config ds.json --set train_micro_batch_size_per_gpu=auto --log_dir=run | steps
