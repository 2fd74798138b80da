#!/usr/bin/env bash
# Validation: what is asked for twice, for nothing, or of nothing.
. "$REPO/test/cli/common.bash"
tiny
try train tiny.yaml --log_dir=a --set data.val_fraction=0.2 --set train.eval_every=2 | steps
try train tiny.yaml --log_dir=b --set data.val_fraction=0.2 | steps
try train tiny.yaml --log_dir=c --set data.val=text.txt --set train.eval_every=100 --set train.eval_batches=1 | steps
try train tiny.yaml --set train.eval_every=2
try train tiny.yaml --set data.val=text.txt --set data.val_fraction=0.1
try train tiny.yaml --set data.val_fraction=0.001 --set train.eval_every=2
try train tiny.yaml --set data.val_fraction=0.999 --set train.eval_every=2
try train tiny.yaml --set data.val_fraction=1
