#!/usr/bin/env bash
# Does it fit, what makes it fit, stage: auto: sizes, order, what is chosen and how it is shown.
# Bytes and times are the planner's, and masked: unit tests hold them against plans, fit_suggestions trains them.
. "$REPO/test/cli/common.bash"
mask() {
    sed -E -e 's/[0-9.]+  (<-|fits)/N  \1/; s/\b[0-9]{5,}\b( \([0-9.]+ MB\))?/N/g; s/[0-9.]+ ms/N ms/g' \
        -e 's/  +N/  N/g'
}
tiny
{
try zerotrain plan --device=cpu --num_gpus=2 --fit=900kB tiny.yaml
try zerotrain plan --device=cpu --num_gpus=2 --fit=600kB tiny.yaml | tail -n 4
try zerotrain plan --device=cpu --num_gpus=2 --fit=300kB tiny.yaml | tail -n 3
try zerotrain plan --device=cpu --num_gpus=2 --device_memory=700kB tiny.yaml \
    --set train_micro_batch_size_per_gpu=8 | grep -a '^zerotrain'
try zerotrain plan --device=cpu --num_gpus=2 --host_memory=80kB tiny.yaml | grep -a '^zerotrain'
try zerotrain plan --device=cpu --num_gpus=2 --fit=800kB --print_recipe tiny.yaml | grep -A 1 -E '^zero_opt|^activation'
zerotrain plan --device=cpu --num_gpus=2 --fit=800kB --json tiny.yaml | python3 -c '
import json, sys
d = json.load(sys.stdin)
chosen = d["choices"][d["chosen"]]
print(d["limits"], len(d["choices"]), chosen["set"], chosen["device_bytes"], chosen["fits"])'

# trained: the stage of the recipe, and of a DeepSpeed configuration; none is "not given" in others
try train tiny.yaml --set zero_optimization.stage=auto --device_memory=900kB --log_dir=auto | grep -aE 'chosen|ZeRO'
grep 'stage' auto/recipe.yaml
echo '{"zero_optimization": {"stage": "auto"}, "gradient_clipping": "auto"}' >ds.json
try train tiny.yaml --deepspeed_config ds.json --device_memory=800kB --log_dir=ds | grep -aE 'chosen|ZeRO|^zerotrain'
try train tiny.yaml --set zero_optimization.stage=auto --device_memory=300kB | tail -n 3
try train tiny.yaml --device_memory=700kB

# what cannot be asked for together
try zerotrain plan --fit=1GB --device_memory=1GB tiny.yaml
try zerotrain plan --fit=much tiny.yaml
try zerotrain plan tiny.yaml --set zero_optimization.stage=automatic
echo 'model: {params: 7e9}' >params.yaml
try zerotrain plan --fit=1GB params.yaml
} | mask
