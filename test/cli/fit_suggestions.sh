#!/usr/bin/env bash
# Every suggested change, taken as printed: trained under exactly the --device_memory that it says it
# needs, and refused with one page less.
. "$REPO/test/cli/common.bash"
tiny

# Two thirds of what the settings need; then each suggestion as printed.
check() {
    local n=$1 need limit line bytes sets ran=0
    shift
    need=$(zerotrain plan --device=cpu --num_gpus="$n" --device_memory=1 tiny.yaml "$@" 2>&1 |
        sed -n 's/.*needs \([0-9]*\) bytes .* of its device.*/\1/p')
    limit=$((need * 2 / 3))
    zerotrain --device=cpu --num_gpus="$n" --device_memory="$limit" tiny.yaml "$@" >refusal 2>&1
    [ $? = 5 ] || echo "not refused: $n ranks, $*"
    while read -r line; do
        bytes=${line%% bytes of the device*}
        sets=${line#*ms: }
        sets=${sets//=FOLDER/=.}
        [ "$bytes" -le "$limit" ] || echo "suggested what does not fit: $line"
        # shellcheck disable=SC2086
        zerotrain --device=cpu --num_gpus="$n" tiny.yaml "$@" $sets --device_memory="$bytes" \
            --log_dir="run$n$ran" >out 2>&1 || { echo "failed at $bytes: $* $sets"; tail -n 5 out; }
        # shellcheck disable=SC2086
        zerotrain --device=cpu --num_gpus="$n" tiny.yaml "$@" $sets --device_memory=$((bytes - 4096)) \
            >out 2>&1
        [ $? = 5 ] || { echo "not refused at $((bytes - 4096)): $* $sets"; tail -n 5 out; }
        rm -rf "run$n$ran"
        ran=$((ran + 1))
    done < <(sed -n 's/^zerotrain:   \([0-9]* bytes of the device\)/\1/p' refusal)
    [ $ran -gt 0 ] || { echo "nothing was suggested: $n ranks, $*"; tail -n 5 refusal; }
}

bf16="--set bf16.enabled=true" fp16="--set fp16.enabled=true"
more="--set train.steps=2 --set train_micro_batch_size_per_gpu=4 --set train.eval_every=1 --set data.val_fraction=0.2"
# shellcheck disable=SC2086
{
    check 1 $more
    check 2 $more --set zero_optimization.stage=0
    check 2 $more $bf16 --set zero_optimization.stage=1
    check 3 $more $fp16 --set zero_optimization.stage=2
    check 2 $more $fp16 --set zero_optimization.stage=3
    check 3 $more $bf16 --set zero_optimization.stage=0 --set gradient_accumulation_steps=2
    check 2 $more --host_memory=2.4MB --set model.n_layer=16 --set zero_optimization.stage=3 \
        --set activation_checkpointing.policy=block --set train_micro_batch_size_per_gpu=2
}
grep -o 'offload_[a-z]*.device=nvme' refusal | sort -u
echo "# where the host is what is short, the least is of the host: nothing is moved there"
tiny
zerotrain plan --num_gpus=2 --host_memory=1KB tiny.yaml 2>&1 >/dev/null | grep 'the least' |
    sed -E 's/[0-9]+ bytes/N bytes/; s/and [0-9]+/and N/'
