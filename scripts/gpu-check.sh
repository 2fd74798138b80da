#!/usr/bin/env bash
# gpu-check.sh RESULTS: what only hardware can show, on one GPU in at most 8 minutes.
# gpu-check.sh --pack: before, on a machine with the packages: gather what a bare machine needs to build.
#
# Runs the checks below in order, each under a time limit, prints a line for each, and leaves in the
# folder RESULTS what every check printed, and summary.txt. A check that fails does not end the others.
# The exit status is 0 when none failed.
#
# A GPU machine need not reach a package registry: --pack copies the headers and libraries of oneDNN,
# libyaml, jansson, xxHash, OpenSSL and libssh2, and of liburing where it is, to build/gpu-deps (about 47 MB), to
# travel with the tree.
set -u
self=$(realpath "$0")
cd "$(dirname "$self")/.." || exit 1
deps=build/gpu-deps
zt=build/zerotrain
cuda_lib=${ZT_CUDA_LIB:-build/libzerotrain_cuda.so} # the simulator for a rehearsal

pack() {
    local dir name soname
    rm -rf $deps
    mkdir -p $deps/include $deps/lib
    for dir in "/usr/include/$(gcc -print-multiarch)" /usr/include; do
        for name in oneapi openssl dnnl.h yaml.h jansson.h jansson_config.h xxhash.h liburing liburing.h libssh2.h; do
            [ ! -e "$dir/$name" ] || cp -rL "$dir/$name" $deps/include/
        done
        cp -L "$dir"/dnnl_*.h $deps/include/ 2>/dev/null
    done
    for name in dnnl yaml jansson xxhash crypto ssl ssh2 uring; do
        dir=$(gcc -print-file-name="lib$name.so")
        [ "$name" != uring ] || [ -e "$dir" ] || continue
        soname=$(objdump -p "$dir" | awk '/SONAME/ { print $2 }') || exit 1
        cp -L "$dir" "$deps/lib/$soname" || exit 1
        [ "$soname" = "lib$name.so" ] || ln -sf "$soname" "$deps/lib/lib$name.so"
    done
    for name in libz.so.1 libOpenCL.so.1; do # that some of these need in turn
        dir=$(gcc -print-file-name="$name")
        [ ! -e "$dir" ] || cp -L "$dir" "$deps/lib/$name"
    done
    du -sh $deps
}

# ---- the checks: each runs in a shell of its own, for the time limit's sake; status 77 is a skip ----

inventory() {
    nvidia-smi
    nvidia-smi --query-gpu=name,memory.total,memory.free,clocks.max.sm,driver_version --format=csv
    nvcc --version
    lscpu | grep -E 'Model name|^CPU\(s\)'
    free -g
    python3 -c 'import torch; print("torch", torch.__version__, torch.version.cuda, torch.cuda.nccl.version())' ||
        echo "no PyTorch"
}

build() { make -s -j"$(nproc)" CUDA=1 CUDA_ARCHS=90 all tests cuda-tests; }

# All that the simulator assumes of CUDA: fragments of mma, shuffles, events, copies, cuBLASLt.
semantics() {
    local t status=0
    for t in build/cuda/test/test_*; do
        "$t" || status=1
    done
    return $status
}

# Flash attention, forward and backward, by the tests that the CPU passes.
attention() { ZT_TEST_RIGS=cuda build/test/dev/test_attention; }

# The other kernels' tests of the CPU, on the GPU alone.
kernels() {
    local src status=0
    for src in test/unit/dev/test_*.c; do
        [ "$src" != test/unit/dev/test_attention.c ] || continue
        env ZT_TEST_RIGS=cuda "build/test/dev/$(basename "$src" .c)" || status=1
    done
    return $status
}

# trainings NAME...: those of test/parity/cuda.py whose names have it.
trainings() {
    local name status=0
    for name; do
        test/parity/cuda.py --quick $zt "$cuda_lib" "$name" || status=1
    done
    return $status
}

# Whole trainings beside the CPU's: precisions, Llama, dropout, recomputation, evaluation, memory.
parity() { trainings "cuda fixture" "like the CPU" recomputation memory evaluation; }

# 2 ranks on this GPU, host-staged collectives: the same bits at stages 0 to 3.
stages() { trainings "cuda stages"; }

# States and parameters in pinned memory and on a drive, updated by the host.
offload() { trainings "cuda offload"; }

# Checkpoints written from the GPU; going on from them has the bits of one run.
resume() { trainings "on a GPU" "from a GPU"; }

# NCCL by one rank; and between two processes, by its network, which are told that they are of two hosts, as it
# refuses one GPU for two ranks of one host.
nccl() {
    $zt --device=cuda --num_gpus=1 --collectives=nccl --log_dir="$1/nccl-run" \
        --set train.steps=40 --set zero_optimization.stage=3 recipes/quickstart.yaml &&
        trainings "cuda NCCL"
}

# Must be refused with what was asked for and what is free, not die.
oom() {
    local status text
    text=$($zt --device=cuda --num_gpus=1 --log_dir="$1/oom-run" --set model.n_layer=400 \
        --set model.n_embd=16384 --set model.n_head=128 recipes/quickstart.yaml 2>&1)
    status=$?
    echo "$text"
    [ $status = 5 ] && grep -q 'bytes are free' <<<"$text"
}

sanitizer() {
    command -v compute-sanitizer >/dev/null || exit 77
    ZT_TEST_RIGS=cuda compute-sanitizer --tool memcheck --error-exitcode 9 build/test/dev/test_kernels &&
        compute-sanitizer --tool racecheck --error-exitcode 9 build/cuda/test/test_mma
}

kernel_bench() { build/bench/bench_cuda; }

model_bench() { test/bench/bench_gpu.py --record "$1/model_bench.md" $zt; }

if [ "${1:-}" = --step ]; then
    if [ -d $deps ]; then
        export CPATH=$PWD/$deps/include LIBRARY_PATH=$PWD/$deps/lib
        export LD_LIBRARY_PATH=$PWD/$deps/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    fi
    "$2" "$3"
    exit
fi

case ${1:-} in
--pack)
    pack
    exit
    ;;
"" | -*)
    sed -n '2,11s/^# \{0,1\}//p' "$self"
    exit 2
    ;;
esac

out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 1
failed=0
: >"$out/summary.txt"

# check NAME LIMIT: the seconds are a limit, so that the rest has its turn.
check() {
    local name=$1 limit=$2 began=$SECONDS status verdict
    timeout -k 5 "$limit" "$self" --step "$name" "$out" >"$out/$name.txt" 2>&1 </dev/null
    status=$?
    case $status in
    0) verdict=passed ;;
    77) verdict=skipped ;;
    124 | 137) verdict="FAILED: not done in $limit s" ;;
    *) verdict="FAILED: status $status" ;;
    esac
    [ $status = 0 ] || [ $status = 77 ] || failed=$((failed + 1))
    printf '%-14s %4d s  %s\n' "$name" $((SECONDS - began)) "$verdict" | tee -a "$out/summary.txt"
}

check inventory 10
check build 110
check semantics 15
check attention 20
check kernels 25
check parity 55
check stages 20
check offload 30
check resume 30
check nccl 30
check oom 10
check model_bench 75
check kernel_bench 20
check sanitizer 30
echo "$failed failed" | tee -a "$out/summary.txt"
[ $failed = 0 ]
