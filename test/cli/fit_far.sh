#!/usr/bin/env bash
# Micro-batches hundreds of times too large: every suggestion, taken as printed, is planned to what it said
# it needs, and so fits.
. "$REPO/test/cli/common.bash"

# check RANKS MEMORY RECIPE [OPTION...]
check() {
    local n=$1 memory=$2 recipe=$3 line sets seen
    shift 3
    zerotrain plan --num_gpus="$n" --device_memory="$memory" "$recipe" "$@" >/dev/null 2>refusal
    [ $? = 5 ] || echo "not refused: $n ranks, $memory, $*"
    seen=0
    while read -r line; do
        sets=${line#*ms: }
        # shellcheck disable=SC2086
        zerotrain plan --num_gpus="$n" --device_memory="${line%% bytes of the device*}" "$recipe" "$@" $sets \
            >/dev/null 2>again || { echo "does not fit: $sets"; head -n 3 again; }
        seen=$((seen + 1))
    done < <(sed -n 's/^zerotrain:   \([0-9]* bytes of the device\)/\1/p' refusal)
    [ $seen -gt 0 ] || { echo "nothing was suggested: $n ranks, $memory, $*"; tail -n 5 refusal; }
}

llama=$REPO/recipes/llama-7b.yaml gpt2=$REPO/recipes/gpt2-124m.yaml
check 64 80GB "$llama" --set train_micro_batch_size_per_gpu=512
check 4096 40GB "$llama" --set train_micro_batch_size_per_gpu=510 --set gradient_accumulation_steps=12
check 1 8GB "$gpt2" --set train_micro_batch_size_per_gpu=720 --set train_batch_size=720
