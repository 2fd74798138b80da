#!/usr/bin/env bash
# stage: auto of what no plan may have: what is wrong is said as of a stage that is given.
. "$REPO/test/cli/common.bash"
cp "$REPO/recipes/quickstart.yaml" .

# check SET...
check() {
    local stage sets=()
    for set in "$@"; do sets+=(--set "$set"); done
    for stage in auto 3; do
        try zerotrain plan --device=cpu "${sets[@]}" --set zero_optimization.stage=$stage quickstart.yaml
    done
}

check train_micro_batch_size_per_gpu=73513440 # with hundreds of divisors
check gradient_accumulation_steps=65536
check gradient_accumulation_steps=65536 zero_optimization.offload_optimizer.device=cpu
