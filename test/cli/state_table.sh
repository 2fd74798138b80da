#!/usr/bin/env bash
# CASES M01: the table of resident state from a number of parameters alone.
. "$REPO/test/cli/common.bash"
echo 'model: {params: 7e9}' >p.yaml
try zerotrain plan p.yaml
try zerotrain plan --num_gpus=64 p.yaml --set model.params=7.5e9
try zerotrain plan --num_gpus=4 p.yaml --set model.params=124439808
try zerotrain plan --num_gpus=4 --json p.yaml
try zerotrain plan --schedule p.yaml
try zerotrain --device=cpu p.yaml --set train_batch_size=1 --set data.train=p.yaml
