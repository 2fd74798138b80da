#!/usr/bin/env bash
# What is said of a CUDA part that cannot be used; ZT_CUDA_LIB names one where there is no GPU either.
. "$REPO/test/cli/common.bash"
set -o pipefail
unset CUDA_VISIBLE_DEVICES
tiny
cat >part.c <<'END'
#include "coll/backend.h"
static const struct zt_backend b = {
    .abi = ZT_BACKEND_ABI, .struct_bytes = sizeof b, .dev_ops_bytes = sizeof(struct zt_dev_ops),
    .coll_ops_bytes = sizeof(struct zt_coll_ops), .build = "0.0.0-other"};
const struct zt_backend *zt_backend(void) { return &b; }
END
shared() { "${CC:-cc}" -shared -fPIC -D_GNU_SOURCE -I"$REPO/lib" -o "$@"; }
shared libgone.so -x c /dev/null
shared nothing.so -x c /dev/null
shared other.so part.c
shared needy.so part.c -Wl,--no-as-needed -L. -lgone
rm libgone.so
with() { ZT_CUDA_LIB=$1 zerotrain "${@:2}" 2>&1 | sed -E 's/[0-9]+\.[0-9]+\.[0-9]+-[0-9a-f]{12}/BUILD/'; }
try with ./none.so --device=cuda tiny.yaml
try with ./text.txt --num_gpus=2 tiny.yaml
try with ./needy.so --device=cuda tiny.yaml
try with ./nothing.so --device=cuda tiny.yaml
try with ./other.so --device=cuda tiny.yaml
with ./other.so --log_dir=run tiny.yaml | head -n 2
CUDA_VISIBLE_DEVICES=-1 try with ./other.so --device=cuda tiny.yaml
