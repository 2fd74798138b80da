#!/usr/bin/env bash
# The ranks of a hostfile share the memory of their own host: two on the fullest of these, not all three.
. "$REPO/test/cli/common.bash"
tiny
echo "zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}" >>tiny.yaml
printf 'a slots=2\nb slots=1\n' >two
planned() {
    zerotrain plan --device=cpu "$@" tiny.yaml >out 2>err
    echo "exit status $?: $(head -n 1 out | grep -o 'of [0-9]') $(head -n 1 err)"
}
planned --hostfile=two --host_memory=500kB
planned --hostfile=two --host_memory=400kB
planned --hostfile=two --num_gpus=1 --host_memory=400kB
planned --num_gpus=3 --host_memory=500kB
