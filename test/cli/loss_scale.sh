#!/usr/bin/env bash
# fp16: an overflow at the least scale stops; a static scale that overflows stops, or skips by option.
. "$REPO/test/cli/common.bash"
tiny
half() {
    try train tiny.yaml --log_dir="$1" --set fp16.enabled=true --set fp16.hysteresis=1 "${@:2}" >out
    grep -E '^(\$|step|[0-9]+ steps?:|\[exit)' out
    grep -oE 'step [0-9](:| is) .*' out | sort -u
}
half a --set fp16.initial_scale_power=40 --set fp16.min_loss_scale=5e11
half b --set fp16.loss_scale=1e12
half c --set fp16.loss_scale=1e12 --set train.on_nonfinite=skip
grep -c '"grad_norm": null' c/metrics.jsonl
# A scale that begins in a run that goes on, here from fp32, doubles after as many steps as in a new one.
"$ZT" --device=cpu --num_gpus=1 tiny.yaml --log_dir=d --set checkpoint.dir=ckpt --set train.steps=2 >/dev/null
half e --set checkpoint.dir=ckpt --resume=auto --set train.steps=7 --set fp16.loss_scale_window=2 \
    --set fp16.initial_scale_power=8 | head -n 1
half f --set train.steps=5 --set fp16.loss_scale_window=2 --set fp16.initial_scale_power=8 | head -n 1
for run in e f; do grep -oE '"loss_scale": ?[0-9.e+]+' $run/metrics.jsonl | tr '\n' ' '; echo; done
