#!/usr/bin/env bash
# unmodelled.sh INCLUDE NCCL_H: C source with a weak function for each function that CUDA's run-time,
# cuBLASLt and NCCL declare. It says "cusim: NAME is not modelled" and gives the library's code for "not
# supported". The simulator's own functions take their place, so only what is not modelled refuses.
set -eu
names() { # FILE PATTERN
    sed 's/__dv([^)]*)//g' "$1" | grep -oE "\b$2 *\(" | tr -d ' (' | sort -u
}

echo '#include <stdio.h>'
echo 'int cusim_unmodelled(const char *name, int code);'
echo 'int cusim_unmodelled(const char *name, int code)'
echo '{'
echo '    fprintf(stderr, "cusim: %s is not modelled\n", name);'
echo '    return code;'
echo '}'
each() { # CODE
    while read -r name; do
        echo "__attribute__((weak)) int $name(void);"
        echo "__attribute__((weak)) int $name(void) { return cusim_unmodelled(\"$name\", $1); }"
    done
}
grep CUDARTAPI "$1/cuda_runtime_api.h" >"${TMPDIR:-/tmp}/cusim.$$"
trap 'rm -f "${TMPDIR:-/tmp}/cusim.$$"' EXIT
names "${TMPDIR:-/tmp}/cusim.$$" 'cuda[A-Z][A-Za-z0-9_]*' | each 801
grep CUBLASWINAPI -A 1 "$1/cublasLt.h" >"${TMPDIR:-/tmp}/cusim.$$"
names "${TMPDIR:-/tmp}/cusim.$$" 'cublasLt[A-Z][A-Za-z0-9_]*' | each 15
grep -E '^ *(p?nccl[A-Za-z]* +)?p?nccl[A-Z][A-Za-z0-9_]* *\(|ncclResult_t +p?nccl' "$2" >"${TMPDIR:-/tmp}/cusim.$$"
names "${TMPDIR:-/tmp}/cusim.$$" 'p?nccl[A-Z][A-Za-z0-9_]*' | each 5
