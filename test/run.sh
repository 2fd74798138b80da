#!/usr/bin/env bash
# run.sh [SUITE...]: run test suites and count. Suites, in the order of "all":
#   check   formatting, layers, static analysis, manuals
#   unit    C tests of each layer, release build
#   fuzz    fuzz corpora as tests
#   cli     command-line tests with golden output
#   fault   killed processes, full disks, cut pipes
#   parity  whole trainings: stages, ranks, accumulation, precision, overlap
#   asan    unit tests, corpora and a training under AddressSanitizer and UBSan
#   tsan    tests with threads, and trainings, under ThreadSanitizer
#   interop files exchanged with the Python libraries (skipped where they cannot be had)
# Each test prints one line: "ok NAME", "not ok NAME: why" or "skip NAME: why". A program that ends
# badly without saying so counts as a failure.
set -u
cd "$(dirname "$0")/.." || exit 1
suites=("$@")
[ ${#suites[@]} -gt 0 ] && [ "${suites[0]}" != all ] ||
    suites=(check unit fuzz cli fault parity asan tsan interop)
mkdir -p build
log=build/test.log
: >"$log"

# run NAME COMMAND...: one program that prints test lines.
run() {
    local name=$1 out status
    shift
    out=$(mktemp build/out.XXXXXX)
    "$@" >"$out" 2>&1
    status=$?
    grep -E '^(ok|not ok|skip) ' "$out" >>"$log"
    if [ $status -ne 0 ] && ! grep -q '^not ok ' "$out"; then
        echo "not ok $name: ended with status $status" | tee -a "$log"
    fi
    if [ $status -ne 0 ] || grep -q '^not ok ' "$out"; then
        sed "s|^|    $name: |" "$out" | tail -n 60
    fi
    grep '^skip ' "$out"
    rm -f "$out"
}

# build WHAT [VAR=VALUE...]: a failing build is a failing test, not an abort.
build() {
    local out
    if out=$(make -s -j"$(nproc)" "$@" 2>&1); then
        echo "ok build $*" >>"$log"
    else
        echo "not ok build $*: does not build" | tee -a "$log"
        printf '%s\n' "$out" | tail -n 40
        return 1
    fi
}

unit_tests() { # FOLDER [PATTERN]
    local t
    for t in "$1"/test/*/test_*; do
        case $t in *.d) continue ;; esac
        [ -x "$t" ] && [[ $t =~ ${2:-.} ]] && run "${t#build/}" "$t"
    done
}

fuzz_corpora() { # FOLDER
    local f
    for f in "$1"/test/fuzz/*; do
        case $f in *.d) continue ;; esac
        [ -x "$f" ] && run "fuzz ${f##*/}" "$f"
    done
}

suite_check() { run check scripts/check.sh; }
suite_unit() { build all tests && unit_tests build; }
suite_fuzz() { build tests && fuzz_corpora build; }
suite_cli() { build all && run cli test/cli/run.sh build/zerotrain; }
suite_fault() {
    local t
    build all tests || return
    for t in test/fault/*.sh; do run "$t" "$t" build/zerotrain; done
}
suite_parity() { build all && run parity test/parity/run.py build/zerotrain; }
suite_asan() {
    export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 LSAN_OPTIONS=suppressions=test/lsan.supp
    build all tests SAN=address || return
    unit_tests build/address
    fuzz_corpora build/address
    run "parity (asan)" test/parity/run.py --quick build/address/zerotrain
    unset ASAN_OPTIONS LSAN_OPTIONS
}
suite_tsan() {
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=test/tsan.supp OMP_NUM_THREADS=1
    build all tests SAN=thread || return
    unit_tests build/thread '/(dev|coll|launch|train)/'
    run "parity (tsan)" test/parity/run.py --quick build/thread/zerotrain
    unset TSAN_OPTIONS OMP_NUM_THREADS
}
suite_interop() {
    local t
    for t in test/interop/*.sh; do [ -x "$t" ] && run "$t" "$t" build/zerotrain; done
}

for s in "${suites[@]}"; do
    declare -F "suite_$s" >/dev/null || {
        echo "run.sh: no suite \"$s\"" >&2
        exit 2
    }
    start=$SECONDS
    echo "== $s"
    "suite_$s"
    echo "   $((SECONDS - start)) s"
done

passed=$(grep -c '^ok ' "$log")
failed=$(grep -c '^not ok ' "$log")
skipped=$(grep -c '^skip ' "$log")
[ "$failed" = 0 ] || { echo; grep '^not ok ' "$log"; }
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
