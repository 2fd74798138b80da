#!/usr/bin/env bash
# Understood, but not carried out: exit status 4, and in words.
. "$REPO/test/cli/common.bash"
tiny
for s in amp.enabled=true optimizer.type=Lamb sparse_attention.mode=fixed \
    zero_optimization.zero_quantized_weights=true; do
    try train tiny.yaml --set $s
done
