#!/usr/bin/env bash
# pin_memory: carried out on a GPU, where no other host memory is used, and accepted without one; false is
# said to change nothing.
. "$REPO/test/cli/common.bash"
tiny
offload=zero_optimization.offload_optimizer
for device in cpu cuda; do
    for pin in true false; do
        zerotrain plan --device=$device --num_gpus=2 tiny.yaml --set zero_optimization.stage=2 --set $offload.device=cpu \
            --set $offload.pin_memory=$pin >plan.txt 2>notes.txt
        cat notes.txt
        head -n 2 plan.txt | tail -n 1
    done
done
