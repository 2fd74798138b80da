#!/usr/bin/env bash
# Hugging Face's files full of "auto": ZeRO 2 trains, ZeRO 3 with offload is refused.
. "$REPO/test/cli/common.bash"
tiny
try train tiny.yaml --deepspeed_config "$CASES/recipe/hf_zero2_auto.json" --log_dir=run | steps | grep -v '^step'
try train tiny.yaml --deepspeed_config "$CASES/recipe/hf_zero3_auto.json"
