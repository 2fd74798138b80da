#!/usr/bin/env bash
# plan: ranks, profiles, models that make no sense.
. "$REPO/test/cli/common.bash"
tiny
try zerotrain plan --rank=1 tiny.yaml
try zerotrain plan --num_gpus=2 --rank=-1 tiny.yaml
try zerotrain plan --profile=turbo tiny.yaml
try zerotrain plan tiny.yaml --set model.n_head=3
try zerotrain plan tiny.yaml --set data.seq_len=64
try zerotrain plan tiny.yaml --set model.n_embd=512 --set model.n_head=1
try zerotrain plan tiny.yaml --set model.n_layer=0
try zerotrain plan tiny.yaml --set model.vocab_size=99999999999
echo 'train: {steps: 1}' >none.yaml
try zerotrain plan none.yaml
