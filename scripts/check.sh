#!/usr/bin/env bash
# check.sh: form. Formatting, layers, warnings as errors with both compilers, static analysis, manuals.
# Prints one test line each; details of what is wrong go before it.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0
mapfile -t sources < <(git ls-files 'cmd/*.[ch]' 'lib/*.[ch]' 'test/*.[ch]' 'cuda/*')

verdict() { # NAME STATUS
    if [ "$2" = 0 ]; then
        echo "ok check $1"
    else
        echo "not ok check $1: see above"
        status=1
    fi
}

have() { # TOOL NAME: skips the check when the tool is missing
    command -v "$1" >/dev/null || {
        echo "skip check $2: $1 is not installed"
        return 1
    }
}

have clang-format format && {
    clang-format --dry-run --Werror "${sources[@]}"
    verdict format $?
}
scripts/check-layers.sh
verdict layers $?
have clang "clang warnings" && {
    make -s -j"$(nproc)" CC=clang SAN= B=build/clang OPT=-O1 all tests 2>&1 | tail -n 40
    verdict "clang warnings" "${PIPESTATUS[0]}"
}
have clang-tidy "static analysis" && {
    mapfile -t units < <(git ls-files 'cmd/*.c' 'lib/*.c')
    printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 8 clang-tidy --quiet \
        --warnings-as-errors='*' 2>/dev/null -- -std=c11 -D_GNU_SOURCE -Ilib -DZT_ISA=check
    verdict "static analysis" $?
}
have mandoc manuals && {
    mandoc -T lint -W warning man/*
    verdict manuals $?
}
have shellcheck scripts && {
    git ls-files '*.sh' .ci/run | xargs shellcheck -S warning
    verdict scripts $?
}
! git grep -nE 'TODO|FIXME|XXX|HACK' -- '*.c' '*.h' '*.sh' ':!scripts/check.sh'
verdict leftovers $?
exit $status
