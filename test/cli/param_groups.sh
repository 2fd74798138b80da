#!/usr/bin/env bash
# Groups of parameters: what is frozen is said; a pattern that does nothing is an error.
. "$REPO/test/cli/common.bash"
tiny
groups() { try train tiny.yaml --log_dir="$1" --set "optimizer.param_groups=$2" | grep -aE '^(\$|model|zerotrain|\[exit)'; }
groups a '[{match: "w?e.weight", frozen: true}, {match: "*.bias", weight_decay: 0, lr_scale: 0.5}]'
groups b '[{match: "*.biases", frozen: true}]'
groups c '[{match: "*.bias", lr_scale: 2}, {match: "h.1.ln_1.bias", lr_scale: 3}]'
groups d '[{match: "*", frozen: true}]'
groups e '[{match: "*.bias", decay: 0}]'
try zerotrain plan tiny.yaml --set 'optimizer.param_groups=[{match: lm_head.weight, frozen: true}]'
