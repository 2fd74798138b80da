#!/usr/bin/env bash
# check.sh: form. Formatting, layers, warnings as errors with both compilers, static analysis, manuals,
# scripts. Prints one test line each; details of what is wrong go before it. Formatting and analysis differ
# between versions of LLVM: 14 counts.
set -u
cd "$(dirname "$0")/.." || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that called us
export WERROR=-Werror
status=0

verdict() { # NAME STATUS
    if [ "$2" = 0 ]; then
        echo "ok check $1"
    else
        echo "not ok check $1: see above"
        status=1
    fi
}

skip() { echo "skip check $1: $2"; }

# find_tool NAME: sets `tool` to NAME-14, or to NAME if there is no other.
find_tool() { tool=$(command -v "$1-14" || command -v "$1"); }

# llvm_14 NAME: the same, and it is version 14.
llvm_14() { find_tool "$1" && "$tool" --version | grep -q 'version 14\.'; }

mapfile -t sources < <(git ls-files 'cmd/*.[ch]' 'lib/*.[ch]' 'test/*.[ch]' 'test/*.cpp' 'test/*.cu' 'cuda/*.[ch]' 'cuda/*.cu' 'cuda/*.cuh')
if llvm_14 clang-format; then
    "$tool" --dry-run --Werror "${sources[@]}"
    verdict format $?
else
    skip format "clang-format 14 is not installed"
fi

scripts/check-layers.sh
verdict "layers and includes" $?

make -s -j"$(nproc)" SAN= all tests
verdict "gcc warnings" $?

# Without -fopenmp, as libomp may not be there.
if find_tool clang; then
    make -s -k -j"$(nproc)" CC="$tool" SAN= B=build/clang OPENMP=-fopenmp-simd syntax
    verdict "clang warnings" $?
else
    skip "clang warnings" "clang is not installed"
fi

if llvm_14 clang-tidy; then
    make -s -k -j"$(nproc)" TIDY="$tool" tidy
    verdict "static analysis" $?
else
    skip "static analysis" "clang-tidy 14 is not installed"
fi

if command -v mandoc >/dev/null; then
    mandoc -T lint -W warning man/*
    verdict manuals $?
else
    skip manuals "mandoc is not installed"
fi

if command -v shellcheck >/dev/null; then
    git ls-files -z '*.sh' '*.bash' .ci/run | xargs -0 shellcheck -S warning
    verdict scripts $?
else
    skip scripts "shellcheck is not installed"
fi

! git grep -nwE 'TODO|FIXME|XXX|HACK' -- '*.c' '*.h' '*.sh' '*.py' Makefile ':!scripts/check.sh'
verdict leftovers $?
exit $status
