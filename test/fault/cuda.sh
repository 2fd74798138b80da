#!/usr/bin/env bash
# cuda.sh ZEROTRAIN [LIBRARY]: processes of a training on simulated GPUs are killed, and NCCL fails by
# itself. Nobody may hang, and all must end within 5 s. LIBRARY: the CUDA part on the simulator.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=cuda
library=$(realpath -m "${2:-build/cusim/libzerotrain_cuda.so}")
. "$(dirname "$0")/common.bash"
if [ ! -e "$library" ]; then
    echo "skip cuda faults: $library is not built (make cusim)"
    exit 0
fi
export ZT_CUDA_LIB=$library
unset CUDA_VISIBLE_DEVICES
endless_recipe

# train [OPTION...]: a training without end, under way on 3 ranks.
train() {
    start --device=cuda --log_dir="$tmp/run$case_no" "$@" "$tmp/tiny.yaml"
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
}
trains() { grep -q '"step"' "$tmp/run$((case_no - 1))/metrics.jsonl" 2>/dev/null || ended; }
rank() { pgrep -P "$(agent)" -x "zerotrain-r$1" 2>/dev/null; }

# The UUID of simulated GPU N, and the GPU that a rank was given.
id() { printf 'GPU-%02x637573-696d-0000-0000-000000000000' "$1"; }
gpu_of() { tr '\0' '\n' <"/proc/$(rank "$1")/environ" | sed -n 's/^CUDA_VISIBLE_DEVICES=//p'; }

# soon NAME CODE PATTERN: the verdict, and how long it took.
soon() {
    local begun=$(($(date +%s%N) / 1000000)) took
    verdict "$@"
    took=$(($(date +%s%N) / 1000000 - begun))
    [ $took -lt 5000 ] || fail "$1" "it took $took ms"
}

first="rank 1 on $(uname -n) failed first: signal 9"

CUSIM_DEVICES=3 train --num_gpus=3
hit 9 "$(rank 1)"
soon "kill -9 of a rank under NCCL" 137 "$first"

# NCCL often does not notice a death within a host: the agent does.
CUSIM_NCCL=deaf CUSIM_DEVICES=3 train --num_gpus=3
hit 9 "$(rank 1)"
soon "kill -9 of a rank that NCCL does not notice" 137 "$first"

CUSIM_DEVICES=1 train --devices_per_gpu=3
hit 9 "$(rank 1)"
soon "kill -9 of a rank with host-staged collectives" 137 "$first"

CUSIM_FAIL=ncclOp:40 CUSIM_DEVICES=3 start --device=cuda --log_dir="$tmp/run$case_no" "$tmp/tiny.yaml"
verdict "an asynchronous error of NCCL ends the job" '[1-9]*' \
    'rank [0-2], GPU 0: .*NCCL.*: unhandled system error: the network is gone'

# The GPU whose rank fails again is left out: ranks 0 and 1 are on the first and the last then.
went_on() { [ "$(grep -c 'going on from\|first step again' "$tmp/err")" -ge "$1" ] || ended; }
rank_is_there() { [ -n "$(rank "$1")" ] || ended; }
CUSIM_DEVICES=3 train --max_restarts=2 --elastic --set checkpoint.dir="$tmp/ck" --set train_batch_size=6
hit 9 "$(rank 1)"
until_true went_on 1
until_true rank_is_there 1
hit 9 "$(rank 1)"
until_true went_on 2
until_true rank_is_there 1
gpu=$(gpu_of 1)
hit TERM "$pid"
verdict "a GPU is left out" '*' "GPU 1 \($(id 1)\) is left out from now on: its ranks failed twice in a row"
[ "$gpu" = "$(id 2)" ] || fail "a GPU is left out" "rank 1 has $gpu"
grep -q 'batch 6 = .* x 2 ranks' "$tmp/out" || fail "a GPU is left out" "the batch is another"

# A rank's process ends since its GPU cannot be used any more, and it still cannot when the run begins again.
export CUSIM_BROKEN=$tmp/broken
saving() { # GPUS OPTION...
    CUSIM_DEVICES=$1 train --set checkpoint.dir="$tmp/ck$case_no" --set checkpoint.every_steps=5 \
        --set train_batch_size=6 "${@:2}"
}
train_and_break() { # GPUS OPTION...: GPU 1 of them breaks
    saving "$@"
    echo 1 >"$tmp/broken"
    hit 9 "$(rank 1)"
}
goes_on_with() { # NAME RANKS PATTERN: more steps are made
    until_true went_on 1
    until_true grep -q "batch 6 = .* x $2 rank" "$tmp/out"
    local n
    n=$(wc -l <"$tmp/run$((case_no - 1))/metrics.jsonl")
    until_true more_steps $((n + 5))
    hit INT "$pid"
    verdict "$1" 130 "$3"
    rm -f "$tmp/broken"
}
more_steps() { [ "$(wc -l <"$tmp/run$((case_no - 1))/metrics.jsonl")" -gt "$1" ] || ended; }
said() { # NAME PATTERN
    grep -qE -- "$2" "$tmp/err" "$tmp/out" || fail "$1" "nobody said \"$2\""
}

train_and_break 3 --num_gpus=3 --max_restarts=1 --elastic
goes_on_with "a GPU that stays broken is left out" 2 \
    "GPU 1 \($(id 1)\) is left out from now on: cudaErrorECCUncorrectable"

# Rank 1 is on another GPU after the first one has broken: that one has failed once, then twice.
saving 3 --max_restarts=3 --elastic
echo 0 >"$tmp/broken"
hit 9 "$(rank 1)"
for n in 1 2; do
    until_true went_on $n
    until_true rank_is_there 1
    gpu=$(gpu_of 1)
    [ "$gpu" = "$(id 2)" ] || fail "another GPU fails" "rank 1 has $gpu in attempt $((n + 1))"
    hit 9 "$(rank 1)"
done
goes_on_with "another GPU fails" 1 'GPU 2 \(GPU-02.*\) is left out from now on: its ranks failed twice in a row'

# Of 4 that remain 3 can share the batch; of these one breaks too, and the fourth takes its place.
train_and_break 6 --num_gpus=6 --max_restarts=2 --elastic
until_true went_on 1
said "two GPUs break" '3 of the remaining 5 workers take part: the batch of 6 is a multiple of that'
until_true rank_is_there 2
echo 3 >>"$tmp/broken"
hit 9 "$(rank 2)"
until_true went_on 2
until_true rank_is_there 2
gpu=$(gpu_of 2)
goes_on_with "two GPUs break" 3 'GPU 3 .* is left out from now on: '
[ "$gpu" = "$(id 4)" ] || fail "two GPUs break" "rank 2 has $gpu"

train_and_break 3 --max_restarts=2
verdict "a GPU that stays broken ends a run that keeps its ranks" 1 \
    'GPU 1 \(GPU-01.*\), which this run began with, cannot be used any more: .*cudaErrorECC.*; --elastic goes on without it'
rm "$tmp/broken"

saving 1 --max_restarts=2 --elastic --devices_per_gpu=2
echo 0 >"$tmp/broken"
hit 9 "$(rank 1)"
verdict "the only GPU breaks" 1 'no GPU of this run is left'
rm "$tmp/broken"

# Doctor calls it the same.
echo 1 >"$tmp/broken"
CUSIM_DEVICES=2 start doctor --device=cuda
verdict "doctor of a broken GPU" 1
said "doctor of a broken GPU" "GPU 1 \($(id 1)\): cudaErrorECC"
rm "$tmp/broken"

# Fewer are found than the run began with, named or not.
train_and_lose() { # OPTION...: of 3 GPUs
    echo 3 >"$tmp/devices"
    saving "$tmp/devices" --max_restarts=2 "$@"
    echo 2 >"$tmp/devices"
    hit 9 "$(rank 1)"
}
train_and_lose
verdict "a GPU is gone when the run begins again" 1 'GPU 2 .* cannot be used any more: it is not found any more; --elastic'
train_and_lose --elastic
goes_on_with "a GPU is gone, and left out" 2 'GPU 2 .* is left out from now on: it is not found any more'

# One falls off the bus, and CUDA counts those behind it anew. The run's own stay what they are: ranks 0 and 1 have
# these GPUs, by what they were given and by what rank 0 found.
export CUSIM_GONE=$tmp/gone
runs_on() { # NAME GPU GPU
    until_true rank_is_there 0 && until_true rank_is_there 1
    [ "$(gpu_of 0) $(gpu_of 1)" = "$(id "$2") $(id "$3")" ] ||
        fail "$1" "ranks have $(gpu_of 0) $(gpu_of 1), not $(id "$2") $(id "$3")"
    until_true finds "$(id "$2")" || fail "$1" "rank 0 found $(grep '^cuda: ' "$tmp/out" | tail -n 1)"
}
finds() { grep '^cuda: ' "$tmp/out" | tail -n 1 | grep -q "cuda: cusim GPU.* ($1), "; }
loses() { # NAME MASK LEFT-OUT GPU GPU: of three GPUs, the first rank's falls off the bus
    local -x CUDA_VISIBLE_DEVICES=$2
    [ -n "$2" ] || unset CUDA_VISIBLE_DEVICES
    saving 3 --max_restarts=2 --elastic
    gpu_of 0 | sed 's/GPU-0\(.\).*/\1/' >"$tmp/gone"
    hit 9 "$(rank 1)"
    until_true went_on 1
    runs_on "$1" "$4" "$5"
    goes_on_with "$1" 2 "$3 is left out from now on: it is not found any more"
    rm "$tmp/gone"
}
loses "the first GPU is gone" "" 'GPU 0 \(GPU-00.*\)' 1 2
loses "the first GPU of CUDA_VISIBLE_DEVICES is gone" 1,2,0 'GPU 1 \(GPU-01.*\)' 2 0
loses "the first GPU of a list of UUIDs is gone" "$(id 1),GPU-02,GPU-006" "$(id 1)" 2 0

# One is left out since its ranks fail; then another one is gone, and there is a new GPU 1. Who remains is the third.
saving 3 --max_restarts=3 --elastic
hit 9 "$(rank 1)"
until_true went_on 1
until_true rank_is_there 1
hit 9 "$(rank 1)"
until_true went_on 2
runs_on "a GPU is left out, and another is gone" 0 2
echo 0 >"$tmp/gone"
hit 9 "$(rank 0)"
until_true went_on 3
until_true rank_is_there 0
gpu=$(gpu_of 0)
goes_on_with "a GPU is left out, and another is gone" 1 'GPU 0 .* is left out from now on: it is not found any more'
rm "$tmp/gone"
[ "$gpu" = "$(id 2)" ] || fail "a GPU is left out, and another is gone" "rank 0 has $gpu"
said "a GPU is left out, and another is gone" 'GPU 1 \(GPU-01.*\) is left out from now on: its ranks failed twice'

# Without --elastic that is the end, though as many as it began with are visible.
saving 4 --num_gpus=3 --max_restarts=2
echo 1 >"$tmp/gone"
hit 9 "$(rank 1)"
verdict "a GPU is gone, and another one would be counted in its place" 1 \
    'GPU 1 \(GPU-01.*\), which this run began with, cannot be used any more: it is not found any more'
rm "$tmp/gone"
unset CUSIM_GONE

# What CUDA_VISIBLE_DEVICES may name, and what rank 0 then has.
names() { # NAME MASK GPU: of two devices
    local got
    CUSIM_DEVICES=2 CUDA_VISIBLE_DEVICES=$2 train
    got=$(gpu_of 0)
    hit INT "$pid"
    verdict "$1" 130
    [ "$got" = "$3" ] || fail "$1" "rank 0 has $got"
    finds "$3" || fail "$1" "rank 0 has found $(grep '^cuda: ' "$tmp/out")"
}
names "a UUID" "$(id 1)" "$(id 1)"
names "the beginning of a UUID" GPU-01 "$(id 1)"
names "an index, and an end of the list" 1,-1,0 "$(id 1)"
export CUSIM_MIG=1
mig=$(id 1 | sed s/GPU/MIG/)
names "a MIG instance" "$mig" "$mig"
names "a MIG instance by its index" 1 "$mig"
unset CUSIM_MIG
CUSIM_DEVICES=2 CUDA_VISIBLE_DEVICES=GPU-0 start --device=cuda --log_dir="$tmp/run$case_no" "$tmp/tiny.yaml"
verdict "the beginning of two UUIDs" 4 'CUDA finds no GPU that it may use'
CUSIM_DEVICES=2 CUDA_VISIBLE_DEVICES=1,GPU-00 start --device=cuda --log_dir="$tmp/run$case_no" "$tmp/tiny.yaml"
verdict "an index and a UUID" 1 'GPU-00 of this machine cannot be used: of CUDA_VISIBLE_DEVICES=1,GPU-00 CUDA finds only 1'

CUSIM_DEVICES=2 start --device=cuda --num_gpus=3 --max_restarts=2 --elastic --set checkpoint.dir="$tmp/ck$case_no" \
    --log_dir="$tmp/run$case_no" "$tmp/tiny.yaml"
verdict "fewer GPUs than asked for" 3 '--num_gpus=3: only 2 GPUs are here'
echo 2 >"$tmp/broken"
CUSIM_DEVICES=3 start --device=cuda --max_restarts=2 --elastic --set checkpoint.dir="$tmp/ck$case_no" \
    --log_dir="$tmp/run$case_no" "$tmp/tiny.yaml"
verdict "a broken GPU at the start" 1 'GPU 2 \(GPU-02.*\) of this machine cannot be used: cudaErrorECC'
rm "$tmp/broken"

# From two hosts, the other behind a stand-in for ssh, to this one alone, of which one GPU breaks and one is gone.
other_agent() {
    local p
    for p in $(marked); do
        [ "$(cat "/proc/$p/comm")" = zerotrain-agent ] && grep -qazx NCCL_HOSTID=other "/proc/$p/environ" && echo "$p"
    done
}
mkdir "$tmp/hosts"
printf '%s slots=3\nother slots=3\n' "$(uname -n)" >"$tmp/two"
printf '%s\n' ZT_CUDA_LIB="$library" CUSIM_DEVICES=3 ZT_TEST_MARK=$$.$((case_no + 1)) >"$tmp/hosts/other"
export CUSIM_GONE=$tmp/gone
FAKE_HOSTS=$tmp/hosts HOME=$tmp/hosts PATH=$PWD/test/fake-ssh:$PATH ZT_TCP_INTERFACE=lo \
    saving 3 --launcher=openssh --hostfile="$tmp/two" --max_restarts=2 --elastic
echo 1 >"$tmp/broken"
echo 0 >"$tmp/gone"
rm "$tmp/hosts/other"
hit 9 "$(other_agent)"
until_true went_on 1
until_true rank_is_there 0
gpu=$(gpu_of 0)
goes_on_with "a host is lost, and GPUs of the other one" 1 'GPU 1 .* is left out from now on: cudaErrorECC'
said "a host is lost, and GPUs of the other one" 'GPU 0 .* is left out from now on: it is not found any more'
said "a host is lost, and GPUs of the other one" 'other is left out from now on: it was lost'
[ "$gpu" = "$(id 2)" ] || fail "a host is lost, and GPUs of the other one" "rank 0 has $gpu"
unset CUSIM_BROKEN CUSIM_GONE

# Hosts of an allocation are asked for their GPUs, and trained on, by one srun (played).
mkdir "$tmp/bin"
ln -s "$PWD/test/fault/srun.bash" "$tmp/bin/srun"
CUSIM_DEVICES=2 PATH=$tmp/bin:$PATH SLURM_JOB_NODELIST='n[1-2]' SLURM_TASKS_PER_NODE=1,2 ZT_TCP_INTERFACE=lo \
    train --launcher=slurm --collectives=staged
hit 9 "$(for p in $(marked); do grep -lsx zerotrain-r2 "/proc/$p/comm"; done | cut -d/ -f3)"
soon "kill -9 of a rank on a host that srun reaches" 137 'rank 2 on n2 failed first: signal 9'

CUSIM_DEVICES=1 start --device=cuda --num_gpus=1 --devices_per_gpu=2 --collectives=nccl \
    --log_dir="$tmp/run$case_no" "$tmp/tiny.yaml"
verdict "two ranks on one GPU by NCCL are refused" 2 'NCCL refuses two workers on one GPU'

exit $failed
