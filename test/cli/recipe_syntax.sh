#!/usr/bin/env bash
# Wrong YAML, duplicate and unknown keys, wrong types: all at once, with their places.
. "$REPO/test/cli/common.bash"
printf 'model: {n_layer: 2\n' >flow.yaml
printf 'train_batch_size: 8\ntrain_batch_size: 9\n' >twice.yaml
printf 'model:\n\tn_layer: 2\n' >tab.yaml
printf 'a: &x 1\nb: *x\n' >alias.yaml
cat >many.yaml <<'END'
zero_optimisation: {stage: 2}
optimizer:
  type: SGD
  params: {lr: fast, betas: 0.9, weight_decay: -1}
zero_optimization:
  stage: 4
  reduce_buckt_size: 5e8
train:
  steps: 1.5
  on_nonfinite: maybe
lr: 1e-3
bf16: {enabled: yes}
END
for f in flow twice tab alias many; do
    try zerotrain plan $f.yaml
done
