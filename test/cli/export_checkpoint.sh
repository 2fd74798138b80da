#!/usr/bin/env bash
# Checkpoints seen and exported: at any stage the same bytes, at lr 0 those that training began with.
. "$REPO/test/cli/common.bash"
fixture
save() { zerotrain --device=cpu --num_gpus=2 fixture.yaml --log_dir="run-$1" --set checkpoint.dir="$1" "${@:2}" >/dev/null; }
shown() { grep -vE '^ +[a-z]|program|digest'; }

save still --set optimizer.params.lr=0 --set checkpoint.every_steps=5
zerotrain export "$GPT2" fixture >/dev/null
try zerotrain export still out
cmp out/model.safetensors fixture/model.safetensors && cmp out/config.json fixture/config.json &&
    echo "what it began with"

# One micro-batch a step, so that all stages give the same bits.
steps=(--set gradient_accumulation_steps=1 --set train.steps=4 --set checkpoint.every_steps=2)
save stage0 "${steps[@]}" --set train_micro_batch_size_per_gpu=2 --set zero_optimization.stage=0
save stage3 "${steps[@]}" --set train_micro_batch_size_per_gpu=2 --set zero_optimization.stage=3
try zerotrain inspect --verify stage3 | shown
try zerotrain inspect stage0/step-000002 | shown
try zerotrain inspect --json stage0/step-000002/manifest.json | grep -E '"(step|ranks|parameters|valid)"'
for step in 2 4; do
    try zerotrain export --step=$step stage0 "a$step"
    zerotrain export "stage3/step-00000$step" "b$step" >/dev/null
    cmp "a$step/model.safetensors" "b$step/model.safetensors" && echo "the same bytes"
done
try zerotrain export --step=3 stage0 x
try zerotrain export --step=4 stage0/step-000002 x

# A cut file, a flipped bit.
truncate -s 100 stage3/step-000004/rank-00001.safetensors
try zerotrain export --step=latest stage3 older
cmp older/model.safetensors a2/model.safetensors && echo "the one before"
try zerotrain inspect stage3 | shown
printf x | dd of=stage0/step-000004/rank-00000.safetensors bs=1 seek=4200 conv=notrunc status=none
try zerotrain inspect stage0 | grep -E "^([$] |newest|valid|zerotrain|.exit)"
try zerotrain inspect --verify stage0 | grep -E "^([$] |newest|valid|zerotrain|.exit)"
try zerotrain export --force stage0 older
cmp older/model.safetensors a2/model.safetensors && echo "the one before"
try zerotrain export stage0/step-000004 x
try zerotrain export --step=4 stage0 x
printf x | dd of=stage0/step-000002/rank-00000.safetensors bs=1 seek=4200 conv=notrunc status=none
try zerotrain export stage0 x
ls -d x* 2>/dev/null || echo "nothing is written"
