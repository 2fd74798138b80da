#!/usr/bin/env bash
# --set: values, lists, maps, sections; and what is no key.
. "$REPO/test/cli/common.bash"
tiny
show() { zerotrain plan tiny.yaml --print_recipe "$@" | grep -E '^ *(stage|betas|lr|train|steps):'; }
show --set zero_optimization.stage=3 --set optimizer.params.lr=3e-4
show --set 'zero_optimization={stage: 2}' --set 'optimizer.params.betas=[0.8, 0.9]'
show --set train.steps=auto
try zerotrain plan tiny.yaml --set zero_optimization.stag=3
try zerotrain plan tiny.yaml --set zero_optimization.stage
try zerotrain plan tiny.yaml --set =3
try zerotrain plan tiny.yaml --set train.sample_prompt=
try zerotrain plan tiny.yaml --set a=b --set zero_optimization.stage=9 --set train.steps=-1
try zerotrain plan tiny.yaml --set model.n_layer=100000
