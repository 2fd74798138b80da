#!/usr/bin/env bash
# CASES B02: every usual way to write a number; none is taken for text, octal or a time.
. "$REPO/test/cli/common.bash"
tiny
cat >numbers.yaml <<'END'
include: tiny.yaml
optimizer: {params: {lr: 2e-5, weight_decay: 1e-1, eps: 1.e-8, betas: [0.9, .95]}}
scheduler: {type: Cosine, params: {warmup_steps: 010, min_lr: "2.0e-6"}}
zero_optimization: {reduce_bucket_size: 5e8, stage3_prefetch_bucket_size: 15099494.4}
gradient_clipping: 1
train: {steps: 100}
END
zerotrain plan numbers.yaml --print_recipe 2>&1 |
    grep -E '(note|lr|weight_decay|eps|betas|warmup_steps|_bucket_size|clipping).*:'
for v in nan .inf -1e-3 0x10 1_000 12:30:45 no; do
    try zerotrain plan tiny.yaml --set optimizer.params.lr=$v
done
