#!/usr/bin/env bash
# wall_clock_breakdown and flops_profiler, without the numbers that differ from run to run.
. "$REPO/test/cli/common.bash"
tiny
numbers() { sed -E 's/ +[0-9]+\.[0-9]+/ N/g'; }
try train tiny.yaml --log_dir=a --set wall_clock_breakdown=true --set flops_profiler.enabled=true \
    --set flops_profiler.profile_step=2 --set activation_checkpointing.policy=block |
    sed -n '/^step/,/^memory/p' | grep -v '^step' | numbers
try train tiny.yaml --log_dir=b --set flops_profiler.enabled=true --set flops_profiler.profile_step=9 | steps
try train tiny.yaml --log_dir=c --set flops_profiler.enabled=true --set flops_profiler.output_file=no/such/file |
    grep '^zerotrain'
try train tiny.yaml --log_dir=d --set flops_profiler.enabled=true --set flops_profiler.output_file=p.txt \
    --set flops_profiler.detailed=false | grep '^profile'
head -n 3 p.txt
grep -c segment p.txt
# Steps count from the beginning of the run, also of one that goes on.
"$ZT" --device=cpu --num_gpus=1 tiny.yaml --log_dir=e --set checkpoint.dir=ckpt --set train.steps=2 >/dev/null
for step in 2 3; do
    try train tiny.yaml --log_dir=f$step --set checkpoint.dir=ckpt --resume=auto --set flops_profiler.enabled=true \
        --set flops_profiler.profile_step=$step | grep -E '^(note: flops|profile|step)'
    rm -r ckpt/step-000003
done
