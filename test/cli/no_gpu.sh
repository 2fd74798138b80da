#!/usr/bin/env bash
# Without a GPU: how to train on the CPU instead. (CUDA_VISIBLE_DEVICES hides those of this machine.)
. "$REPO/test/cli/common.bash"
tiny
here() { sed -E 's/(here|on this machine|that CUDA_VISIBLE_DEVICES lets us use)([:.])/HERE\2/'; }
try zerotrain --num_gpus=8 tiny.yaml | here
try zerotrain --num_gpus=1 --device=auto tiny.yaml | here
try zerotrain --device=cuda tiny.yaml | here
try zerotrain --device=cuda --num_gpus=2 tiny.yaml | here
zerotrain tiny.yaml --log_dir=run 2>&1 | head -n 2 | here
try zerotrain gone.yaml # nothing has begun
CUDA_VISIBLE_DEVICES=-1 zerotrain --num_gpus=8 tiny.yaml 2>&1 | here
