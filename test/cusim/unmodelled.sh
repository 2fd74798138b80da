#!/usr/bin/env bash
# unmodelled.sh cudart|blaslt|nccl INCLUDE NCCL_H: C source with a weak function for each one that the
# library's header declares. It says "cusim: NAME is not modelled" and gives the library's code for "not
# supported". The simulator's own functions take its place, so what is not modelled refuses.
set -eu
case $1 in
cudart) header=$2/cuda_runtime_api.h name='cuda[A-Z][A-Za-z0-9_]*' code=801 ;; # cudaErrorNotSupported
blaslt) header=$2/cublasLt.h name='cublasLt[A-Z][A-Za-z0-9_]*' code=15 ;;      # CUBLAS_STATUS_NOT_SUPPORTED
nccl) header=$3 name='p?nccl[A-Z][A-Za-z0-9_]*' code=5 ;;                      # ncclInvalidUsage
esac
cat <<END
#include <stdio.h>
static int refuse(const char *name)
{
    fprintf(stderr, "cusim: %s is not modelled\\n", name);
    return $code;
}
END
# Declarations: the first name before a parenthesis on a line that starts one.
sed -nE "s/^ *(extern|cublasStatus_t|size_t|const char|ncclResult_t|const char\*|void) .*[ *]($name) *\\(.*/\\2/p
    s/^ *(extern|cublasStatus_t|size_t|ncclResult_t) *($name) *\\(.*/\\2/p" <(sed 's/__dv([^)]*)//g' "$header") |
    sort -u | while read -r f; do
    echo "__attribute__((weak)) int $f(void) { return refuse(\"$f\"); }"
done
