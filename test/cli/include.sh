#!/usr/bin/env bash
# include: and --deepspeed_config, and which of them wins; a circle.
. "$REPO/test/cli/common.bash"
cat >base.yaml <<'END'
model: {n_layer: 2, n_head: 2, n_embd: 32}
optimizer: {params: {lr: 1e-3, eps: 1e-7}}
train: {steps: 10, seed: 10}
END
cat >mid.yaml <<'END'
include: base.yaml
train: {steps: 20}
optimizer: {params: {lr: 2e-3}}
END
cat >top.yaml <<'END'
include: [mid.yaml]
optimizer: {params: {lr: 3e-3}}
END
echo '{"train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 9, "weight_decay": 0.5}}}' >ds.json
zerotrain plan top.yaml --deepspeed_config ds.json --set train.seed=30 --print_recipe |
    grep -E '^ *(lr|eps|weight_decay|steps|seed|train_micro.*):'
echo 'include: b.yaml' >a.yaml
echo 'include: a.yaml' >b.yaml
try zerotrain plan a.yaml
try zerotrain plan top.yaml --deepspeed_config nosuch.json
