#!/usr/bin/env bash
# The resolved recipe is a recipe, and gives itself.
. "$REPO/test/cli/common.bash"
tiny
try zerotrain plan --num_gpus=2 --print_recipe tiny.yaml
zerotrain plan --num_gpus=2 --print_recipe tiny.yaml | sed 's/ *#.*//' >once
zerotrain plan --num_gpus=2 --print_recipe once | sed 's/ *#.*//' >twice
cmp once twice && echo same
try zerotrain plan --num_gpus=3 --print_recipe once
try zerotrain plan --print_recipe --json tiny.yaml
