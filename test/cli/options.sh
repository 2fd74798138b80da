#!/usr/bin/env bash
# Both forms of an option, before and after the recipe; the last --set of a key counts.
. "$REPO/test/cli/common.bash"
tiny
for o in "--num_gpus 3" "--num_gpus=3"; do
    # shellcheck disable=SC2086
    zerotrain --device=cpu $o --log_dir "a$o" tiny.yaml | grep workers
    # shellcheck disable=SC2086
    zerotrain tiny.yaml $o --device cpu --log_dir="b$o" | grep workers
done
zerotrain plan tiny.yaml --print_recipe --set train.steps=7 --set=train.steps=8 --seed 5 |
    grep -E ' (steps|seed):'
zerotrain plan --seed=6 --print_recipe -- tiny.yaml | grep ' seed:'
try zerotrain plan --seed=x tiny.yaml
try zerotrain plan --seed=-1 tiny.yaml
try zerotrain --device=cpu --devices_per_gpu=2 tiny.yaml
try zerotrain --device=cpu --collectives=nccl tiny.yaml
try zerotrain --collectives=gloo tiny.yaml
try zerotrain --devices_per_gpu=0 tiny.yaml
