#!/usr/bin/env bash
# gpu_hosts.sh ZEROTRAIN [LIBRARY]: training on simulated GPUs of hosts made of network namespaces, with a real sshd
# each (netlab.bash): the bits of one host, hosts that lack what others have, and ranks that are lost while NCCL
# waits for them. LIBRARY: the CUDA part on the simulator.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite="gpu hosts"
library=$(realpath -m "${2:-build/cusim/libzerotrain_cuda.so}")
. "$(dirname "$0")/common.bash"
lab=$tmp/lab
N=4
if [ ! -e "$library" ]; then
    echo "skip gpu hosts: $library is not built (make cusim)"
    exit 0
fi
# What each host has; the last has no GPU.
echo "SetEnv ZT_CUDA_LIB=$library CUSIM_DEVICES=2" >"$lab.zt1"
echo "SetEnv ZT_CUDA_LIB=$library CUSIM_DEVICES=4 CUDA_VISIBLE_DEVICES=3,0 CUSIM_GONE=$tmp/gone" >"$lab.zt2"
echo "SetEnv ZT_CUDA_LIB=$library CUSIM_DEVICES=1 CUSIM_MEMORY=64M" >"$lab.zt3"
. test/fault/lab.bash
unset CUDA_VISIBLE_DEVICES ZT_CUDA_LIB CUSIM_DEVICES
printf 'zt1 slots=2\nzt2 slots=2\n' >"$tmp/two"
endless_recipe

# ---- the bits of one host ----

short() { # NAME OPTION...
    local name=$1
    shift
    "$zerotrain" --device=cuda --log_dir="$tmp/$name" --set train.steps=5 "$@" "$tmp/tiny.yaml" >"$tmp/out" 2>&1 ||
        fail "$name" "$(tail -n 3 "$tmp/out")" >&2
    grep -o '"digest": *"[0-9a-f]*"' "$tmp/$name/summary.json"
    grep -oE '"(loss|grad_norm)": *[-0-9.e]*' "$tmp/$name/metrics.jsonl"
}
same() { # NAME RANKS TRANSPORT STAGE OPTION...
    local name=$1 ranks=$2 how=$3 stage=$4 one many
    shift 4
    many=$(short "$name-many" --set zero_optimization.stage="$stage" --collectives="$how" --hostfile="$tmp/two" "$@")
    one=$(ZT_CUDA_LIB=$library CUSIM_DEVICES=$ranks short "$name-one" --set zero_optimization.stage="$stage" \
        --collectives="$how" --num_gpus="$ranks")
    if [[ $one == *digest* && $one == *loss* && $one == "$many" ]]; then
        echo "ok gpu hosts $name"
    else
        fail "$name" "these bits are not those: $(echo "$many" / "$one" | tr '\n' ' ')"
    fi
}
same "nccl" 4 nccl 3
same "nccl-chosen" 3 nccl 2 --exclude=zt2:0
same "staged" 4 staged 1
same "staged-chosen" 2 staged 0 --num_gpus=1

# ---- hosts that lack what is needed: known before any step, on which side soever ----

cannot() { # NAME CODE PATTERN OPTION...
    local name=$1 code=$2 pattern=$3
    shift 3
    start --device=cuda --log_dir="$tmp/run$case_no" "$@" "$tmp/tiny.yaml"
    verdict "$name" "$code" "$pattern"
    [ ! -e "$tmp/run$((case_no - 1))" ] || fail "$name" "a run folder was made"
    until_true nothing_on_hosts || fail "$name" "something is left on a host"
}
printf 'zt1 slots=2\nzt2 slots=3\n' >"$tmp/more"
cannot "more slots than GPUs" 3 'more: slot 2 of zt2 is wanted, but it has 2 GPUs .*CUDA_VISIBLE_DEVICES=3,0' \
    --hostfile="$tmp/more"
printf 'zt1 slots=2\nzt4 slots=1\n' >"$tmp/none"
cannot "a host without a GPU" 3 'none: zt4 says: there is no GPU on this machine' --hostfile="$tmp/none"
printf 'zt1 slots=2\nzt3 slots=1\n' >"$tmp/small"
cannot "a host with less memory" 5 'does not fit: .*: what is free on GPU 0 of zt3' --hostfile="$tmp/small" \
    --set model.n_embd=512 --set model.n_layer=12
start --device=cuda --hostfile="$tmp/small" --log_dir="$tmp/run$case_no" --set train.steps=2 "$tmp/tiny.yaml"
verdict "a host with less memory, and it fits" 0

# ---- lost while NCCL waits ----

train() { # [OPTION...]
    start --device=cuda --hostfile="$tmp/two" --log_dir="$tmp/run$case_no" "$@" "$tmp/tiny.yaml"
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
    struck=$SECONDS
}
trains() { grep -q '"step"' "$tmp/run$((case_no - 1))/metrics.jsonl" 2>/dev/null || ended; }
soon() { within 5 "$@"; }
train
hit 9 "$(rank_on 2 3)"
soon "kill -9 of a rank" 137 'rank 3 on zt2 failed first: signal 9'

train --env_file=<(echo CUSIM_NCCL=deaf)
hit 9 "$(rank_on 2 2)"
soon "kill -9 of a rank that NCCL does not notice" 137 'rank 2 on zt2 failed first: signal 9'

train
hit 9 "$(agent_on 2)"
soon "kill -9 of an agent" '[1-9]*' 'the agent on zt2 was lost'

train
ip link set vzt2 down
until_true ended
[ $((SECONDS - struck)) -le 15 ] || fail "a link that is cut" "it took $((SECONDS - struck)) s"
ip link set vzt2 up
verdict "a link that is cut" '[1-9]*' 'zt2'

train
hit INT "$pid"
soon "an interrupt lets the step end" 130 'finishing this step'

# The GPUs of the hosts that remain; those of a host that is away cannot be asked for again.
train --max_restarts=1 --elastic --set checkpoint.dir="$tmp/ck" --set train_batch_size=4
ip link set vzt2 down
went_on() { grep -qE 'batch 4 = .* x 2 ranks' "$tmp/out" && grep -qE '[0-9] going on from|with the first step again' "$tmp/err" || ended; }
until_true went_on
n=$(wc -l <"$tmp/run$((case_no - 1))/metrics.jsonl")
more_steps() { [ "$(wc -l <"$tmp/run$((case_no - 1))/metrics.jsonl")" != "$n" ] || ended; }
until_true more_steps
ip link set vzt2 up
hit INT "$pid"
struck=$SECONDS
within 15 "a host is cut off, and left out" 130 'zt2 is left out from now on: it was lost'
grep -q 'batch 4 = .* x 2 ranks' "$tmp/out" || fail "a host is cut off, and left out" "$(tail -n 3 "$tmp/err")"

# A GPU of zt2 falls off the bus, and the others are counted anew. One that is not of the run: its own are the same as
# before. Then one of the run's: that rank has none, not another one.
again() { [ "$(grep -c 'going on from\|first step again' "$tmp/err")" -ge "$1" ] || ended; }
gpus_on_2() {
    local r p
    for r in 2 3; do
        p=$(rank_on 2 $r)
        [ -z "$p" ] || tr '\0' '\n' <"/proc/$p/environ" | sed -n 's/^CUDA_VISIBLE_DEVICES=GPU-\(..\).*/\1/p'
    done
}
train --max_restarts=1 --set checkpoint.dir="$tmp/ck1"
echo 1 >"$tmp/gone"
hit 9 "$(rank_on 2 3)"
ranks_are_back() { [ "$(gpus_on_2 | wc -l)" = 2 ] || ended; }
until_true again 1
until_true ranks_are_back
gpus=$(gpus_on_2 | xargs)
hit INT "$pid"
struck=$SECONDS
within 15 "another GPU of a host is gone" 130 'restart 1 of 1'
[ "$gpus" = "03 00" ] || fail "another GPU of a host is gone" "its ranks have GPUs $gpus"
rm "$tmp/gone"

train --max_restarts=2 --elastic --set checkpoint.dir="$tmp/ck2" --set train_batch_size=4
echo 0 >"$tmp/gone"
hit 9 "$(rank_on 2 3)"
until_true again 2
until_true grep -q 'batch 4 = .* x 2 ranks' "$tmp/out"
hit INT "$pid"
struck=$SECONDS
within 15 "a GPU of a host is gone" 130 'zt2 is left out from now on: its ranks failed twice in a row'
grep -q 'rank 3 on zt2 failed first' "$tmp/err" && grep -q 'CUDA_VISIBLE_DEVICES=GPU-00637573' "$tmp/out" "$tmp/err" ||
    fail "a GPU of a host is gone" "$(tail -n 20 "$tmp/err")"

exit $failed
