#!/usr/bin/env bash
# CASES B01: train = micro x accumulation x ranks. Columns: ranks, train, micro, accumulation.
. "$REPO/test/cli/common.bash"
tiny
sed -i '/micro_batch/d' tiny.yaml
while read -r ranks train micro accum; do
    set --
    [ $train = - ] || set -- "$@" --set train_batch_size=$train
    [ $micro = - ] || set -- "$@" --set train_micro_batch_size_per_gpu=$micro
    [ $accum = - ] || set -- "$@" --set gradient_accumulation_steps=$accum
    echo "$ranks $train $micro $accum: $(zerotrain plan --num_gpus=$ranks --print_recipe tiny.yaml "$@" 2>&1 |
        sed -n 's/^\(train\|gradient_acc\)[a-z_]*: \([0-9]*\) .*/\2/p; /^zerotrain/p' | tr '\n' ' ')"
done <<'END'
2 32 16 1
2 32 8 2
2 32 16 -
2 32 - 2
2 - 8 2
2 32 - -
2 - 16 -
8 512 2 -
5 40 4 -
2 - - 4
2 33 17 2
2 32 18 1
1 64 4 8
4 8 2 1
4 30 4 -
8 7 - -
3 32 - -
4 - 2 0
16 480 12 -
END
