#!/usr/bin/env bash
# Understood, but not carried out: exit status 4, and in words.
. "$REPO/test/cli/common.bash"
tiny
for s in amp.enabled=true optimizer.type=Lamb zero_optimization.offload_param.device=nvme \
    zero_optimization.offload_optimizer.device=nvme sparse_attention.mode=fixed \
    activation_checkpointing.partition_activations=true; do
    try train tiny.yaml --set $s
done
