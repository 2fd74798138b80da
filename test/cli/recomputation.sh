#!/usr/bin/env bash
# What recomputation keeps, and what it costs: bytes and FLOPs of each kind, by the plan; and training.
. "$REPO/test/cli/common.bash"
tiny
wide=(--set model.n_layer=12 --set model.n_embd=256 --set train_micro_batch_size_per_gpu=32 --set zero_optimization.stage=2)

# Of stage 2: activations in MB and MiB, then FLOPs more than without, in percent; and the host's part.
cost() {
    echo "$ $*"
    zerotrain plan --num_gpus=2 tiny.yaml "${wide[@]}" "$@" |
        awk '/^Recomputation/ { sub(/;.*/, ""); print }
             /^activations|^= device peak/ { print $0 } /recomputation adds/ { print $0 }' |
        sed -E 's/^(activations|= device peak)( +[0-9.]+){4}( +[0-9.]+ +[0-9.]+).*/\1\3/;
                s/(adds, %)( +[0-9.e-]+){2}( +[0-9.e-]+).*/\1\3/'
}
cost --set activation_checkpointing.policy=none
cost --set activation_checkpointing.policy=selective
cost --set activation_checkpointing.policy=block
cost --set activation_checkpointing.every=3
cost --set activation_checkpointing.every=5
cost --set activation_checkpointing.number_checkpoints=4
cost --set activation_checkpointing.cpu_checkpointing=true
cost --set activation_checkpointing.every=3 --set activation_checkpointing.cpu_checkpointing=true
zerotrain plan --num_gpus=2 tiny.yaml "${wide[@]}" --set activation_checkpointing.cpu_checkpointing=true |
    grep -A 2 '^host '

for s in policy=none policy=selective every=2 cpu_checkpointing=true; do
    try train tiny.yaml --set activation_checkpointing.$s | steps
done
for s in policy=every every=3 number_checkpoints=0 policy=all; do
    try train tiny.yaml --set activation_checkpointing.$s
done
try train tiny.yaml --set activation_checkpointing.policy=none --set activation_checkpointing.cpu_checkpointing=true
