#!/usr/bin/env bash
# bf16, fp16, and a type of its own for what travels; what is wrong.
. "$REPO/test/cli/common.bash"
tiny
try train tiny.yaml --log_dir=a --set bf16.enabled=true --set zero_optimization.stage=3 | head -n 2
try train tiny.yaml --log_dir=b --set bf16.enabled=true --set communication_data_type=bf16 | steps
try train tiny.yaml --log_dir=c --set fp16.enabled=true --set communication_data_type=fp16 | steps
try train tiny.yaml --set bf16.enabled=true --set fp16.enabled=true
try train tiny.yaml --set communication_data_type=int8
