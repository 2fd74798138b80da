#!/usr/bin/env bash
# gpu-check.sh RESULTS [CHECK...]: what only hardware can show, on one GPU in at most 8 minutes.
# gpu-check.sh --simulator RESULTS [CHECK...]: a rehearsal without a GPU, and with more time.
# gpu-check.sh --pack: before, on a machine with the packages: gather what a bare machine needs to build.
#
# Builds, then runs the checks below in order, what tells most first, or only those named; each under a time limit,
# with a line as it ends. In the folder RESULTS: summary.txt, those lines; log.txt, what the checks printed; tables of
# the measurements. A check that fails does not end the others, but without NCCL or a build nothing is begun.
# The exit status is 0 when none failed.
#
# A GPU machine need not reach a package registry: --pack copies the headers and libraries of oneDNN,
# libyaml, jansson, xxHash, OpenSSL and libssh2, and of liburing where it is, and make, to build/gpu-deps (about 47 MB),
# to travel with the tree. NCCL and cuBLAS are too large for that: they are taken from CUDA's folder, the system's, or
# the wheels that pip installed beside PyTorch.
set -u
self=$(realpath "$0")
cd "$(dirname "$self")/.." || exit 1
deps=$PWD/build/gpu-deps
found=$PWD/build/gpu-found # links by the names that linkers want
zt=build/zerotrain
total_s=480
benches_s=100 # of these, kept for the measurements

pack() {
    local dir name soname
    rm -rf "$deps"
    mkdir -p "$deps/include" "$deps/lib" "$deps/bin"
    cp -L "$(command -v make)" "$deps/bin/" || exit 1
    for dir in "/usr/include/$(gcc -print-multiarch)" /usr/include; do
        for name in oneapi openssl dnnl.h yaml.h jansson.h jansson_config.h xxhash.h liburing liburing.h libssh2.h; do
            [ ! -e "$dir/$name" ] || cp -rL "$dir/$name" "$deps/include/"
        done
        cp -L "$dir"/dnnl_*.h "$deps/include/" 2>/dev/null
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
    du -sh "$deps"
}

# ---- what is there to build with ----

say() { echo "$*" | tee -a "$out/summary.txt"; }

stop() {
    say "stopped: $1"
    exit 1
}

# prepend VARIABLE FOLDER: to a list of folders, for all checks.
prepend() { export "$1=$2${!1:+:${!1}}"; }

# use_folders INCLUDE LIB: as the system's: after what the Makefile names, and without warnings.
use_folders() {
    prepend C_INCLUDE_PATH "$1"
    prepend CPLUS_INCLUDE_PATH "$1"
    prepend LIBRARY_PATH "$2"
    prepend LD_LIBRARY_PATH "$2"
}

# Folders where NVIDIA's libraries may be, each with include/ and lib*/.
nvidia_places() {
    local python
    echo "$cuda"
    for python in python3 /opt/torch/.venv/bin/python3; do
        "$python" -c 'import glob, nvidia; print(*(d for p in nvidia.__path__ for d in glob.glob(p + "/*")), sep="\n")' 2>/dev/null
    done
    printf '%s\n' /usr /usr/local
}

# find_library NAME HEADER: says where it is, and makes it known to compilers and the loader. Of a wheel only this one:
# beside it are others, newer than the toolkit; and it has no name without a version, which linkers want.
find_library() {
    local place libs
    while read -r place; do
        mapfile -t libs < <(compgen -G "$place/lib*/lib$1.so*" || compgen -G "$place/lib/*/lib$1.so*")
        if [ ${#libs[@]} = 0 ] || [ ! -e "$place/include/$2" ]; then continue; fi
        say "$2 and $(basename "${libs[0]}"): in $place"
        [ "$place" != "$cuda" ] && [ "$place" != /usr ] || return 0
        mkdir -p "$found"
        ln -sf "${libs[@]}" "$found/"
        ln -sf "${libs[0]}" "$found/lib$1.so"
        use_folders "$place/include" "$found"
        return 0
    done < <(nvidia_places)
    return 1
}

prepare() {
    unset PYTHONDONTWRITEBYTECODE # what is imported once is imported sooner the next time
    if [ -d "$deps" ]; then
        use_folders "$deps/include" "$deps/lib"
        PATH=$PATH:$deps/bin
    fi
    command -v make >/dev/null || stop "make is not installed"
    export ZT_CUDA_LIB CUDA_TESTS
    if [ -n "$ZT_CHECK_SIMULATED" ]; then
        ZT_CUDA_LIB=$PWD/build/gpu-found/libzerotrain_cuda.so # of this name it is taken for a real one
        CUDA_TESTS=build/cusim/test
        return
    fi
    ZT_CUDA_LIB=$PWD/build/libzerotrain_cuda.so
    CUDA_TESTS=build/cuda/test
    cuda=${CUDA_HOME:-/usr/local/cuda}
    [ -d "$cuda" ] || cuda=$(dirname "$(dirname "$(command -v nvcc || echo /nowhere/bin/nvcc)")")
    PATH=$PATH:$cuda/bin
    [ -x "$cuda/bin/nvcc" ] || stop "no nvcc in $cuda/bin or on the PATH; CUDA_HOME names CUDA's folder"
    find_library cublasLt cublasLt.h || stop "no cublasLt.h with its library in $(nvidia_places | paste -sd ' ')"
    find_library nccl nccl.h || stop "no nccl.h with its library in $(nvidia_places | paste -sd ' ')"
}

# ---- the checks: each runs in a shell of its own, for the time limit's sake; status 77 is a skip ----

inventory() {
    local dist
    lscpu | grep -E 'Model name|^CPU\(s\)'
    free -g
    for dist in torch triton nvidia-nccl-cu13; do
        python3 -c 'import importlib.metadata as m, sys; print(sys.argv[1], m.version(sys.argv[1]))' $dist 2>/dev/null ||
            echo "python3 has no $dist"
    done
    skip_simulated "no GPU to look at"
    nvcc --version
    nvidia-smi --query-gpu=name,compute_cap,memory.total,memory.free,clocks.sm,clocks.max.sm,driver_version --format=csv &&
        nvidia-smi
}

skip_simulated() {
    [ -z "$ZT_CHECK_SIMULATED" ] || {
        echo "skipped on the simulator: $1"
        exit 77
    }
}

# Programs of tests that run on every device there is.
rig_tests() { grep -l FOR_EACH_RIG test/unit/dev/test_*.c | sed 's|^test/unit|build/test|; s|\.c$||'; }

# Only what is run below.
build() {
    local arch targets
    mapfile -t targets < <(rig_tests)
    targets+=(all build/bench/bench_cuda)
    if [ -n "$ZT_CHECK_SIMULATED" ]; then
        make -s -j"$(nproc)" CUDA=0 "${targets[@]}" cusim && mkdir -p "$found" &&
            cp build/cusim/libzerotrain_cuda.so "$found/"
        return
    fi
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
    make -s -j"$(nproc)" CUDA=1 CUDA_ARCHS="${arch:-90}" "${targets[@]}" cuda-tests
}

# run_tests PROGRAM...: all of them; in each, a test must pass.
run_tests() {
    local t status=0
    for t; do
        # shellcheck disable=SC2086 # a program and a filter
        $t 2>&1 | tee "$runs/one" || {
            echo "not ok $t: ended badly"
            status=1
        }
        grep -q '^ok ' "$runs/one" || {
            echo "not ok $t: no test passed"
            status=1
        }
    done
    return $status
}

# The tests of kernels that the CPU passes, on the GPU alone.
kernels() {
    local tests
    mapfile -t tests < <(rig_tests | grep -v attention)
    ZT_TEST_RIGS=cuda run_tests "${tests[@]}"
}

attention() { ZT_TEST_RIGS=cuda run_tests build/test/dev/test_attention; }

# All that the simulator assumes of CUDA: fragments of mma, shuffles, events, copies, cuBLASLt, NCCL; and our device.
# Not test_nccl_fail, whose failures are the simulator's; test_train is `engine`.
semantics() {
    local name tests=()
    for name in mma semantics streams device products kernels nccl; do
        tests+=("$CUDA_TESTS/test_$name")
    done
    run_tests "${tests[@]}"
}

# trainings NAME...: those of test/parity/cuda.py whose names have it.
trainings() {
    local name status=0
    for name; do
        test/parity/cuda.py --quick $zt "$ZT_CUDA_LIB" "$name" || status=1
    done
    return $status
}

# Short trainings beside the float64 truth and the CPU's.
training() { trainings "cuda fixture" "like the CPU, gpt2 fp32"; }

# NCCL by one rank; and between two processes, by its network, which are told that they are of two hosts, as it
# refuses one GPU for two ranks of one host.
nccl() {
    local status=0
    trainings "cuda NCCL" || status=1
    $zt --device=cuda --num_gpus=1 --collectives=nccl --log_dir="$runs/nccl" \
        --set train.steps=20 --set zero_optimization.stage=3 recipes/quickstart.yaml || status=1
    return $status
}

# 2 ranks on this GPU, host-staged collectives: the same bits at stages 0 to 3.
stages() { trainings "cuda stages"; }

# States and parameters in pinned memory and on a drive, updated by the host.
offload() { trainings "cuda offload"; }

# The other precisions, Llama, dropout, recomputation, evaluation, memory.
parity() {
    trainings "like the CPU, gpt2 bf16" "like the CPU, llama" "like the CPU, dropout" recomputation memory evaluation
}

# Checkpoints written from the GPU; going on from them has the bits of one run.
resume() { trainings "on a GPU" "from a GPU"; }

# The plan's streams and waits without the command: 2 ranks, every stage; what is touched is what is planned.
engine() { run_tests "$CUDA_TESTS/test_train"; }

# Must be refused with what was asked for and what is free, not die.
oom() {
    local status text
    text=$($zt --device=cuda --num_gpus=1 --log_dir="$runs/oom" --set model.n_layer=8 \
        --set model.n_embd=16384 --set model.n_head=128 recipes/quickstart.yaml 2>&1)
    status=$?
    echo "$text"
    echo "exit status $status"
    [ $status = 5 ] && grep -qE 'it does not fit: each rank needs [0-9]+ bytes .*: what is free on its GPU' <<<"$text"
}

# Attention's double buffers, filled by cp.async, are what could race.
sanitizer() {
    local tool=compute-sanitizer
    command -v $tool >/dev/null || {
        echo "skipped: $tool is not installed"
        exit 77
    }
    export ZT_TEST_RIGS=cuda
    run_tests "$tool --tool racecheck --error-exitcode 9 build/test/dev/test_attention shapes_bf16" \
        "$tool --tool memcheck --error-exitcode 9 build/test/dev/test_attention shapes" \
        "$tool --tool memcheck --error-exitcode 9 build/test/dev/test_kernels" \
        "$tool --tool racecheck --error-exitcode 9 $CUDA_TESTS/test_mma"
}

kernel_bench() {
    skip_simulated "speed is not simulated"
    ZT_TEST_RIGS=cuda build/bench/bench_cuda | tee "$out/kernel_bench.txt"
}

model_bench() {
    skip_simulated "speed is not simulated"
    test/bench/bench_gpu.py --record "$out/model_bench.md" $zt
}

if [ "${1:-}" = --step ]; then
    out=$3
    runs=$(mktemp -d) && trap 'rm -rf "$runs"' EXIT
    set -o pipefail
    "$2"
    exit
fi

slower=1
export ZT_CHECK_SIMULATED=
case ${1:-} in
--pack)
    pack
    exit
    ;;
--simulator)
    ZT_CHECK_SIMULATED=1
    slower=30
    shift
    ;;
esac
case ${1:-} in
"" | -*)
    sed -n '2,16s/^# \{0,1\}//p' "$self"
    exit 2
    ;;
esac

out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 1
shift
wanted=" $* "
failed=0
: >"$out/summary.txt"
: >"$out/log.txt"
until_s=$((slower * (total_s - benches_s)))

# What tells most of a failed check, in a few lines.
reasons() {
    grep -v '^ok ' <<<"$1" | grep -E '^not ok |[Ee]rror' || tail -n 5 <<<"$1"
}

# check NAME LIMIT: in seconds; less where the whole time would be exceeded. Fails if the check did.
check() {
    local name=$1 limit=$((slower * $2)) began=$SECONDS left=$((until_s - SECONDS - 5)) said status verdict
    [ "$wanted" = "  " ] || [ "$name" = build ] || [[ $wanted == *" $name "* ]] || return 0
    [ "$limit" -le $left ] || limit=$left
    if [ "$limit" -lt 3 ]; then
        status=1
        verdict="FAILED: no time was left for it"
    else
        said=$(wc -l <"$out/log.txt")
        echo "==== $name" >>"$out/log.txt"
        timeout -k 5 "$limit" "$self" --step "$name" "$out" >>"$out/log.txt" 2>&1 </dev/null
        status=$?
        said=$(tail -n +$((said + 2)) "$out/log.txt")
        case $status in
        0) verdict=passed ;;
        77) verdict=$(tail -n 1 <<<"$said") ;;
        124 | 137) verdict="FAILED: not done in $limit s" ;;
        *) verdict="FAILED: status $status" ;;
        esac
        ! grep -q '^ok ' <<<"$said" || verdict+=", $(grep -c '^ok ' <<<"$said") tests ok"
        ! grep -q '^skip ' <<<"$said" || verdict+=", $(grep -c '^skip ' <<<"$said") skipped"
    fi
    printf '%-14s %4d s  %s\n' "$name" $((SECONDS - began)) "$verdict" | tee -a "$out/summary.txt"
    [ $status = 0 ] || [ $status = 77 ] || {
        failed=$((failed + 1))
        reasons "${said:-}" | head -n 8 | cut -c 1-300 | sed 's/^/    /' | tee -a "$out/summary.txt"
        return 1
    }
}

prepare
check inventory 20
check build 150 || stop "the build failed, see log.txt"
check kernels 40
check attention 40
check semantics 40
check training 40
check nccl 40
check offload 60
check stages 40
check parity 90
check resume 40
check oom 20
check engine 30
check sanitizer 60
until_s=$((slower * total_s))
check kernel_bench 40
check model_bench 90
say "$failed failed"
[ $failed = 0 ]
