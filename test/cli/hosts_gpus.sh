#!/usr/bin/env bash
# GPUs of other hosts, and of this one by a hostfile: what is asked of whom, and what is refused before anything
# starts. The CUDA part is a stand-in that counts; hosts are this machine behind a stand-in for ssh.
. "$REPO/test/cli/common.bash"
tiny
unset DS_ENV_FILE CUDA_VISIBLE_DEVICES ZT_CUDA_LIB
export HOME=$PWD FAKE_HOSTS=$PWD/hosts PATH=$REPO/test/fake-ssh:$PATH
mkdir hosts
cat >part.c <<'END'
#include "coll/backend.h"
static const char *given(const char *name, const char *other)
{
    const char *v = getenv(name);
    return v ? v : other;
}
/* As many as there are, or as CUDA_VISIBLE_DEVICES names. */
static int count(int *n, struct zt_err *err)
{
    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    *n = mask ? 1 : (int)strtol(given("GPUS", "1"), NULL, 10);
    for (; mask && *mask; mask++)
        *n += *mask == ',';
    if (*n)
        return 0;
    snprintf(err->msg, sizeof err->msg, "CUDA finds no GPU that it may use");
    return err->code = ZT_EUNSUPPORTED;
}
static int info(int index, struct zt_gpu_info *out, struct zt_err *err)
{
    *out = (struct zt_gpu_info){.free_bytes = strtoull(given("FREE", "1000000000"), NULL, 10) - (size_t)index};
    snprintf(out->name, sizeof out->name, "%s", given("MODEL", "Abacus 1"));
    if (getenv("UUIDS"))
        snprintf(out->id, sizeof out->id, "GPU-ba11000%d", index);
    if (index != (int)strtol(given("BROKEN", "-1"), NULL, 10))
        return 0;
    snprintf(err->msg, sizeof err->msg, "it fell off the bus");
    return err->code = ZT_EDEVICE;
}
static int nccl_id(struct zt_nccl_id *id, struct zt_err *err)
{
    (void)id, (void)err;
    return 0;
}
static struct zt_backend b = {
    .abi = ZT_BACKEND_ABI, .struct_bytes = sizeof b, .dev_ops_bytes = sizeof(struct zt_dev_ops),
    .coll_ops_bytes = sizeof(struct zt_coll_ops), .build = BUILD, .device_count = count, .device_info = info};
const struct zt_backend *zt_backend(void)
{
    b.nccl_id = getenv("NO_NCCL") ? NULL : nccl_id;
    return &b;
}
END
part() { "${CC:-cc}" -shared -fPIC -D_GNU_SOURCE -I"$REPO/lib" -DBUILD="\"$1\"" -o "$PWD/part.so" part.c; }
part other
build=$(ZT_CUDA_LIB=$PWD/part.so zerotrain --device=cuda tiny.yaml 2>&1 | sed -E 's/.*this program is of ([^;]*);.*/\1/')
part "$build"

host() { # NAME [NAME=VALUE...]: one with GPUs
    printf '%s\n' "ZT_CUDA_LIB=$PWD/part.so" "${@:2}" >"hosts/$1"
}
gpus() { zerotrain --launcher=openssh --hostfile=two "$@" tiny.yaml; }
said() { grep -aE '^(zerotrain|note|\[exit)'; }
printf 'node-a slots=2\nme@node-b slots=4\n' >two
large=(--set=model.n_embd=512 --set=model.n_layer=4)

# The least memory counts, of what is chosen; the rest matters only there.
host node-a GPUS=2 FREE=50000000
host node-b GPUS=4 FREE=30000000 CUDA_VISIBLE_DEVICES=7,3,GPU-5,1
try gpus "${large[@]}" | said | head -n 1
try gpus --include=node-a "${large[@]}" | said | head -n 1
host node-b GPUS=4 BROKEN=3 FREE=40000000
try gpus --exclude=node-b:3 "${large[@]}" | said | head -n 1
try gpus --num_gpus=1 --device_memory=20MB "${large[@]}" | said | head -n 1
try gpus
host node-b GPUS=4 FREE=30000000 'MODEL=Abacus 2'
try gpus "${large[@]}" | said | head -n 2

# Hosts without, with too few, with a mask that is wrong; every one is named.
host node-b GPUS=2
try gpus
host node-a GPUS=8 CUDA_VISIBLE_DEVICES=5
try gpus
host node-b GPUS=8 CUDA_VISIBLE_DEVICES=4,x
try gpus
host node-b CUDA_VISIBLE_DEVICES=
try gpus
place() { sed -E 's/(on this machine|that CUDA_VISIBLE_DEVICES lets us use)/HERE/'; }
echo CUDA_VISIBLE_DEVICES= >hosts/node-b
try gpus | place
host node-a ZT_CUDA_LIB="$PWD/none.so"
try gpus | place
rm hosts/node-b
try gpus 2>&1 | said | sort | grep -v '^zerotrain: agent on'
host node-a GPUS=2
host node-b GPUS=4 NO_NCCL=1
try gpus

# The same with CPU workers asks nobody for GPUs.
rm hosts/*
host node-a GPUS=none ZT_CUDA_LIB=/none.so
export ZT_TCP_INTERFACE=lo
try gpus --device=cpu --include=node-a:1 --log_dir=cpu | grep -aE '^(1 CPU|step 3|\[exit)'
try gpus --device=cpu --devices_per_gpu=2

# What cannot be asked for.
host node-a GPUS=2
host node-b GPUS=4
try gpus --num_gpus=3
try gpus --num_gpus=1 --include=node-b
try gpus --num_gpus=1 --include=node-b:0
try gpus --include=node-b:4
try gpus --devices_per_gpu=2 --collectives=nccl

# This machine alone.
export ZT_CUDA_LIB=$PWD/part.so GPUS=2
this_host() { zerotrain --hostfile=here "$@" tiny.yaml; }
echo 'localhost slots=4' >here
try this_host
try this_host --num_gpus=2 "${large[@]}" --device_memory=20MB | said | head -n 1
try this_host --num_gpus=2 --include=localhost:0
try this_host --num_gpus=5
try this_host --include=localhost:3
try zerotrain --num_gpus=1 --include=localhost:0 tiny.yaml
try zerotrain --num_gpus=3 tiny.yaml
try zerotrain --include=localhost:2 tiny.yaml
CUDA_VISIBLE_DEVICES=1 try zerotrain --include=localhost:1 tiny.yaml
CUDA_VISIBLE_DEVICES=1,x try zerotrain tiny.yaml
BROKEN=1 try zerotrain tiny.yaml
BROKEN=1 UUIDS=1 try zerotrain tiny.yaml
BROKEN=1 UUIDS=1 CUDA_VISIBLE_DEVICES=GPU-c0,GPU-ba try zerotrain tiny.yaml
BROKEN=0 UUIDS=1 CUDA_VISIBLE_DEVICES=GPU-ba110000 try zerotrain tiny.yaml
BROKEN=1 FREE=30000000 try zerotrain --num_gpus=1 "${large[@]}" tiny.yaml | said | head -n 1
FREE=30000000 try zerotrain --include=localhost:1 --devices_per_gpu=2 "${large[@]}" tiny.yaml | said | head -n 1
GPUS=0 try zerotrain --device=cuda tiny.yaml
[ ! -e runs ] && echo "nothing was written"
