#!/usr/bin/env bash
# A wrong command line: exit status 2, and what to do.
. "$REPO/test/cli/common.bash"
tiny
zerotrain 2>&1 >/dev/null | head -n 1
try zerotrain --nonsense tiny.yaml
try zerotrain --num-gpus=2 tiny.yaml
try zerotrain --num_gpus
try zerotrain plan --json=yes tiny.yaml
try zerotrain -x tiny.yaml
try zerotrain --num_gpus 2
try zerotrain --num_gpus=0 tiny.yaml
try zerotrain --num_gpus=-1 tiny.yaml
try zerotrain --num_gpus=two tiny.yaml
try zerotrain --num_gpus=99999999999999999999 tiny.yaml
try zerotrain --device=tpu tiny.yaml
try zerotrain tiny.yaml tiny.yaml
try zerotrain paln tiny.yaml
try zerotrain plan
try zerotrain plan --log_dir=x tiny.yaml
try zerotrain plan --rank=x tiny.yaml
try zerotrain --device=cpu --num_gpus=65 tiny.yaml
