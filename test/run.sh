#!/usr/bin/env bash
# run.sh [--long] [SUITE...]: run test suites and count. Suites, in the order of "all":
#   check   formatting, layers, warnings, static analysis, manuals
#   unit    C tests of each layer, release build
#   fuzz    fuzz corpora as tests
#   cli     command-line tests with golden output
#   fault   killed processes, full disks, cut pipes
#   parity  whole trainings: stages, ranks, accumulation, precision, overlap
#   interop models, weights and trainings side by side with transformers
#   asan    unit tests, corpora and a training under AddressSanitizer and UBSan
#   tsan    tests with threads, and trainings, under ThreadSanitizer
#   cuda    CUDA's sources on the simulator, release build and both sanitizers
# Each test prints one line: "ok NAME", "not ok NAME: why" or "skip NAME: why". A program that prints
# none, or ends badly without saying so, counts as a failure. The last line is the count.
# ZT_TEST_JOBS programs run at a time, by default as many as there are cores; a suite starts when there is room, not
# when the one before has ended. --long: every combination, hundreds of random kills and all of static analysis, instead
# of a part of them.
set -u
shopt -s extglob
cd "$(dirname "$0")/.." || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that called us
export WERROR=-Werror
export CUDA_ARCHS=${CUDA_ARCHS:-90} # one: no machine code of a GPU runs
long=()
[ "${1:-}" != --long ] || {
    long=(--long)
    export TIDY_NODES=225000
    shift
}
suites=("$@")
[ ${#suites[@]} -gt 0 ] && [ "${suites[0]}" != all ] ||
    suites=(check unit fuzz cli fault parity interop asan tsan cuda)
at_once=${ZT_TEST_JOBS:-$(nproc)}
mkdir -p build
log=build/test.log
: >"$log"
tmp=$(mktemp -d build/out.XXXXXX) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'end_all; exit 130' INT TERM

end_all() {
    local job
    for job in $(jobs -p); do pkill -P "$job"; done
}

# took NAME FILE: notes what a suite took of the cores, and shows what took long. FILE ends with a line of TIMEFORMAT.
TIMEFORMAT='%3R %3U %3S'
took() {
    local wall_s cpu_s
    read -r wall_s cpu_s < <(tail -n 1 "$2" | awk '{ print int($1), $2 + $3 }')
    echo "$suite $cpu_s" >>"$tmp/cpu"
    [ "$wall_s" -lt 20 ] || echo "   $1: $wall_s s, of CPU ${cpu_s%.*} s"
}

# verdict NAME OUT STATUS: counts the lines of a program that has ended. Shows skips, and failures with what was printed
# before them.
verdict() {
    local name=$1 out=$2 status=$3 bad
    grep -aE '^(ok|not ok|skip) ' "$out" >>"$log"
    bad=$(grep -ac '^not ok ' "$out")
    if [ "$status" -gt 128 ] || { [ "$status" -ne 0 ] && [ "$bad" = 0 ]; }; then
        echo "not ok $name: ended with status $status, after \"$(grep -a '^ok ' "$out" | tail -n 1)\"" |
            tee -a "$log"
    elif [ "$status" -eq 0 ] && [ "$bad" != 0 ]; then
        echo "not ok $name: a failed test, but exit status 0" | tee -a "$log"
    elif ! grep -qaE '^(ok|not ok|skip) ' "$out"; then
        echo "not ok $name: ran no test" | tee -a "$log"
    fi
    if [ "$status" -ne 0 ] || [ "$bad" != 0 ]; then
        grep -av '^ok ' "$out" | tail -n 100 | sed "s|^|    $name: |"
    else
        grep -a '^skip ' "$out"
    fi
}

# One program; its verdict is not mixed with others'. What a shell starts in the background ignores interrupts,
# which tests are about. A subshell: the lock goes with it.
run_now() ( # NAME COMMAND...
    name=$1 out=$tmp/$BASHPID
    shift
    { time env --default-signal=INT,QUIT "$@" >"$out" 2>&1 </dev/null; } 2>"$out.time"
    status=$?
    exec {lock}>"$tmp/lock"
    flock "$lock"
    verdict "$name" "$out" $status
    took "$name" "$out.time"
    rm -f "$out" "$out.time"
)

# Until fewer than N programs run, but for those of lanes.
lanes=()
wait_until_below() {
    while [ "$(jobs -rp | grep -cvx -e none "${lanes[@]/#/-e}")" -ge "$1" ]; do wait -n; done
}

# run NAME COMMAND...: a program that prints test lines, beside others.
run() {
    wait_until_below "$at_once"
    run_now "$@" &
}

# run_in_lane "ARG..." TEST...: tests that mostly wait, one after the other; what follows runs beside them.
run_in_lane() {
    local args t
    read -ra args <<<"$1"
    shift
    for t in "$@"; do run_now "$t" "$t" "${args[@]}"; done &
    lanes+=($!)
}

# run_in_lab "ARG..." TEST...: the same on hosts made of network namespaces, of which a machine has one set.
lab=
run_in_lab() {
    [ -z "$lab" ] || wait "$lab"
    run_in_lane "$@"
    lab=$!
}

# run_shares N NAME COMMAND...: a program of many tests, N times, each with a share of them.
run_shares() {
    local n=$1 name=$2 i
    shift 2
    for ((i = 1; i <= n; i++)); do run "$name $i/$n" "$@" --share=$i/$n; done
}

# build [TARGET|VAR=VALUE]...: a failing build is a failing test, not an abort. What still runs was built before, and is
# not built again.
build() {
    wait_until_below "$at_once"
    if { time make -s -j"$(nproc)" "$@" >"$tmp/build" 2>&1; } 2>"$tmp/build.time"; then
        echo "ok build $*" >>"$log"
    else
        echo "not ok build $*" | tee -a "$log"
        head -n 30 "$tmp/build" | sed 's|^|    |'
        return 1
    fi
    took build "$tmp/build.time"
}

# programs_of FOLDER SOURCE...: sets `programs` to what is built of sources of test/unit.
programs_of() {
    programs=("${@:2}")
    programs=("${programs[@]#test/unit/}")
    programs=("${programs[@]%.c}")
    programs=("${programs[@]/#/$1/test/}")
}

# unit_tests FOLDER [SOURCE...]: by default of all that there are, so none is missed and none is stale; layers that take
# longest come first.
unit_tests() {
    local folder=$1 programs t
    shift
    [ $# -gt 0 ] || set -- test/unit/{train,coll,plan,dev}/test_*.c test/unit/!(train|coll|plan|dev)/test_*.c
    programs_of "$folder" "$@"
    for t in "${programs[@]}"; do run "${t#build/}" "$t"; done
}

fuzz_corpora() { # FOLDER
    local src name
    for src in test/fuzz/fuzz_*.c; do
        name=$(basename "$src" .c)
        run "${1#build/} $name" "$1/test/fuzz/${name#fuzz_}"
    done
}

# What takes longest comes first in each suite, so that nothing is left to run by itself.

suite_check() {
    build all tests # or check.sh would, beside the build of the next suite
    run check scripts/check.sh
}
suite_unit() { build all tests && unit_tests build; }
suite_fuzz() { build tests && fuzz_corpora build; }
suite_cli() { build all && run_shares 4 cli test/cli/run.sh build/zerotrain; }
suite_fault() {
    local others
    build all tests || return
    # Not the suite cuda's, and not those below.
    mapfile -t others < <(grep -L ZT_CUDA_LIB test/fault/*.sh test/fault/*.py | grep -vE 'ckpt|chaos')
    # shellcheck disable=SC2046 # names without blanks
    run_in_lab build/zerotrain $(grep -l lab.bash "${others[@]}")
    # shellcheck disable=SC2046
    run_in_lane build/zerotrain $(grep -L lab.bash "${others[@]}")
    run chaos test/fault/chaos.py "${long[@]}" build/zerotrain # on a machine of its own
    run_shares 2 test/fault/ckpt.py test/fault/ckpt.py "${long[@]}" build/zerotrain
}
suite_parity() {
    build all || return
    run_shares 8 parity test/parity/run.py "${long[@]}" build/zerotrain
    run_shares 4 resume test/parity/resume.py "${long[@]}" build/zerotrain
    run nodes test/parity/nodes.py build/zerotrain
    run_shares 2 drawn test/parity/drawn.py "${long[@]}" build/zerotrain
}
suite_interop() { build all && run interop test/interop/run.py build/zerotrain; }

# Whole trainings under a sanitizer.
quick_trainings() { # NAME ZEROTRAIN
    run_shares 2 "parity ($1)" test/parity/run.py --quick "$2"
    run "resume ($1)" test/parity/resume.py --quick "$2"
    run "nodes ($1)" test/parity/nodes.py --quick "$2"
    run "drawn ($1)" test/parity/drawn.py --quick "$2"
}
suite_asan() {
    build all tests SAN=address || return
    local -x ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1
    local -x UBSAN_OPTIONS=print_stacktrace=1
    quick_trainings asan build/address/zerotrain
    unit_tests build/address
    fuzz_corpora build/address
}
suite_tsan() {
    local threaded programs # of kernels only the CUDA ones: on a CPU they have one thread here, as there is no OpenMP
    mapfile -t threaded < <(grep -L FOR_EACH_RIG test/unit/{train,dev,coll,offload,launch}/test_*.c)
    programs_of build/thread "${threaded[@]}"
    build all "${programs[@]}" SAN=thread || return
    local -x TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
    local -x OMP_NUM_THREADS=1
    quick_trainings tsan build/thread/zerotrain
    unit_tests build/thread "${threaded[@]}"
}

# cuda_tests FOLDER [SANITIZER]: the simulator's own, then the kernels and the device on it; what takes longest first.
cuda_tests() {
    local src name
    run "${1#build/}/faults" test/cusim/faults.sh "$1/faults" "${@:2}"
    for src in test/cuda/test_{small_gpu,train,kernels,products}.c \
        test/cuda/test_!(small_gpu|train|kernels|products).c test/cuda/test_*.cu; do
        [ -e "$src" ] || continue
        name=$(basename "${src%.*}")
        run "${1#build/}/$name" "$1/test/$name"
    done
}

# The kernels' own tests, those that run on every device there is, on the simulated GPU instead.
kernel_tests() { # FOLDER
    local programs t
    # shellcheck disable=SC2046 # names without blanks
    programs_of "$1" $(grep -l FOR_EACH_RIG test/unit/dev/test_*.c)
    for t in "${programs[@]}"; do
        run "${1#build/}/cusim ${t#"$1"/test/}" env ZT_TEST_RIGS=cuda ZT_CUDA_LIB="$1/cusim/libzerotrain_cuda.so" "$t"
    done
}
build_cuda() { # FOLDER [VAR=VALUE]
    local programs
    # shellcheck disable=SC2046
    programs_of "$1" $(grep -l FOR_EACH_RIG test/unit/dev/test_*.c)
    build all cusim "${programs[@]}" "${@:2}"
}
# The library that nvcc compiled, host code and all, on the simulator's libraries.
nvcc_tests() {
    local why
    local -x CUSIM_DEVICES=1 LD_LIBRARY_PATH=$PWD/build/cusim/fake
    why=$(make -s no-cuda)
    [ -z "$why" ] || {
        echo "skip nvcc: $why" | tee -a "$log"
        return
    }
    build cuda || return
    run "nvcc dev/test_kernels" env ZT_TEST_RIGS=cuda ZT_CUDA_LIB=build/libzerotrain_cuda.so \
        build/test/dev/test_kernels
    run "nvcc parity" test/parity/cuda.py --quick build/zerotrain build/libzerotrain_cuda.so
}
suite_cuda() {
    local why src=()
    why=$(make -s no-cusim)
    [ -z "$why" ] || {
        echo "skip cuda: $why" | tee -a "$log"
        return
    }
    build_cuda build && {
        run_shares 4 "cusim parity" test/parity/cuda.py build/zerotrain build/cusim/libzerotrain_cuda.so
        CUSIM_LEAKS=1 kernel_tests build
        CUSIM_LEAKS=1 cuda_tests build/cusim
        mapfile -t src < <(grep -l ZT_CUDA_LIB test/fault/*.sh)
        run_in_lab "build/zerotrain build/cusim/libzerotrain_cuda.so" "${src[@]}"
        nvcc_tests
    }
    build_cuda build/address SAN=address && {
        local -x ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1
        local -x UBSAN_OPTIONS=print_stacktrace=1
        run_shares 2 "address/cusim parity" test/parity/cuda.py --quick build/address/zerotrain \
            build/address/cusim/libzerotrain_cuda.so
        kernel_tests build/address
        cuda_tests build/address/cusim address
    }
    build_cuda build/thread SAN=thread && {
        local -x TSAN_OPTIONS=halt_on_error=1 OMP_NUM_THREADS=1
        run "thread/cusim parity" test/parity/cuda.py --quick build/thread/zerotrain \
            build/thread/cusim/libzerotrain_cuda.so "gpt2 fp32" # up to a minute a training
        kernel_tests build/thread
        cuda_tests build/thread/cusim thread
    }
}

for s in "${suites[@]}"; do
    declare -F "suite_$s" >/dev/null || {
        echo "run.sh: no suite \"$s\"" >&2
        exit 2
    }
done
for suite in "${suites[@]}"; do
    echo "== $suite, after $SECONDS s"
    "suite_$suite"
done
wait
echo "== of CPU:" "$(awk '{ s[$1] += $2; all += $2 } END { for (n in s) printf "%s %d s, ", n, s[n]; print "all " all " s" }' "$tmp/cpu")"

passed=$(grep -ac '^ok ' "$log")
failed=$(grep -ac '^not ok ' "$log")
skipped=$(grep -ac '^skip ' "$log")
echo
[ "$failed" = 0 ] || grep -a '^not ok ' "$log"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
