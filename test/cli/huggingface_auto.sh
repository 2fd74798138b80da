#!/usr/bin/env bash
# Hugging Face's files full of "auto": ZeRO 2, and ZeRO 3 with offload, train.
. "$REPO/test/cli/common.bash"
tiny
try train tiny.yaml --deepspeed_config "$CASES/recipe/hf_zero2_auto.json" --log_dir=run | steps | grep -v '^step'
try train tiny.yaml --deepspeed_config "$CASES/recipe/hf_zero3_auto.json" --log_dir=run3 | steps | grep -v '^step'
