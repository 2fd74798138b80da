#!/usr/bin/env bash
# nvme.sh ZEROTRAIN: offload to NVMe when the drive is full, when writing to it fails under a running
# training, and when workers die and leave their files.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=nvme
. "$(dirname "$0")/common.bash"

drive=$tmp/drive
mkdir "$drive"

# train PATH STEPS: under way, or over.
train() {
    start --device=cpu --num_gpus=2 --log_dir="$tmp/run$case_no" --set "train.steps=$2" \
        --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme \
        --set "zero_optimization.offload_optimizer.nvme_path=$1" \
        --set zero_optimization.offload_param.device=nvme --set train_micro_batch_size_per_gpu=2 \
        recipes/quickstart.yaml
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
}
trains() { grep -q '"step"' "$tmp/run$((case_no - 1))/metrics.jsonl" 2>/dev/null || ended; }
rank() { pgrep -P "$(agent)" -x "zerotrain-r$1"; }
stores() { find "$drive" -name store | wc -l; }
check() { # NAME WHY COMMAND...
    local name=$1 why=$2
    shift 2
    if "$@"; then echo "ok $suite $name"; else fail "$name" "$why"; fi
}

train "$drive" 1000000
check "files are private" "$(find "$drive" -printf '%M %p ')" \
    test "$(find "$drive" -name store -perm 600 -user "$(id -u)" | wc -l)" = 2
hit KILL "$(rank 1)"
verdict "SIGKILL to a rank" 137 "rank 1 on $(uname -n) failed first: signal"
# The other rank may have ended by itself, for want of its peer, and removed its own.
check "what dead workers leave is there" "$(stores) files" test "$(stores)" -ge 1

train "$drive" 24
verdict "the next start" 0
check "the next start removes it, and says so" "$(cat "$tmp/err")" \
    grep -qE 'rank [01] removed from .* what [12] workers? that died had left there' "$tmp/err"
check "nothing is left at the end" "$(stores) files" test -z "$(ls -A "$drive")"

train "$drive" 1000000
prlimit --pid "$(rank 1)" --fsize=4096:4096
verdict "a write that fails" 1 "$drive/zerotrain-nvme-.*/store: writing [0-9]+ bytes at [0-9]+: File too large"
check "the rank is named" "$(cat "$tmp/err")" grep -q "rank 1 on $(uname -n) failed first" "$tmp/err"

rm -rf "${drive:?}"/*
if mount -t tmpfs -o size=1m zt-test "$drive" 2>/dev/null; then
    train "$drive" 24
    verdict "a full drive" 3 "nvme_path: $drive: [0-9]+ bytes .* are needed there, but only [0-9]+ .* are free"
    check "nothing was started or left" "$(ls -A "$drive")" test -z "$(ls -A "$drive")" -a ! -e "$tmp/run$((case_no - 1))"
    umount "$drive"
else
    echo "skip $suite a full drive: mount is not allowed"
fi

exit $failed
