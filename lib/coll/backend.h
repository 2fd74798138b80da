/*
 * backend.h: a device and its collectives from a shared object. libzerotrain_cuda.so lies beside the
 * binary (ZT_CUDA_LIB names another) and hands over one table: so one binary runs on machines with
 * and without CUDA. lib/ never includes a header of CUDA.
 *
 * The library is of the same build as the program or is refused: `build` must be equal, and so must
 * the sizes of the tables.
 */
#ifndef ZT_COLL_BACKEND_H
#define ZT_COLL_BACKEND_H

#include "coll/coll.h"

/* ZT_BUILD, from the Makefile: the version and a checksum of the headers that both sides share. */
enum { ZT_BACKEND_ABI = 1, ZT_NCCL_ID_BYTES = 128, ZT_GPU_ID_BYTES = 48 };

/* A job's NCCL rendezvous. Secret: whoever has it can join. Travels over the control plane only. */
struct zt_nccl_id {
    unsigned char bytes[ZT_NCCL_ID_BYTES];
};

struct zt_gpu_info {
    char name[128];
    /* Its UUID as nvidia-smi prints it and CUDA_VISIBLE_DEVICES takes it: "GPU-..." or "MIG-..."; "": not known. */
    char id[ZT_GPU_ID_BYTES];
    int major, minor; /* compute capability */
    size_t total_bytes, free_bytes;
};

/* Something that no call can report: the transport has failed. Called once, from any thread. */
typedef void (*zt_fatal_fn)(void *ctx, const struct zt_err *err);

struct zt_backend {
    uint32_t abi, struct_bytes, dev_ops_bytes, coll_ops_bytes;
    const char *build; /* ZT_BUILD of the library */

    /*
     * Devices that may be used, after CUDA_VISIBLE_DEVICES. ZT_EUNSUPPORTED: none, and the message
     * says why in one line (no driver, a driver too old for this CUDA, no device).
     */
    int (*device_count)(int *n, struct zt_err *err);
    /* On failure out->id is there all the same, where CUDA still tells it. The message does not name the GPU. */
    int (*device_info)(int index, struct zt_gpu_info *out, struct zt_err *err);

    /* `log` (optional) gets one line: the device and the versions of driver and libraries. */
    int (*dev_create)(int index, struct zt_dev **out, char *log, size_t log_bytes,
                      struct zt_err *err);
    void (*dev_free)(struct zt_dev *d);

    /* NULL: this library was built without NCCL. */
    int (*nccl_id)(struct zt_nccl_id *out, struct zt_err *err);

    /*
     * Blocks until all ranks are there. A failed peer or network is found by polling and given to
     * `fatal`, which must end the process: streams may never come back.
     */
    int (*nccl_create)(const struct zt_nccl_id *id, struct zt_dev *dev, const struct zt_mesh *mesh,
                       int rank, zt_fatal_fn fatal, void *fatal_ctx, struct zt_coll **out,
                       struct zt_err *err);
};

/* What the library exports, "zt_backend". */
typedef const struct zt_backend *(*zt_backend_fn)(void);
const struct zt_backend *zt_backend(void);

/*
 * The CUDA backend, which stays; again it is the same. Looked for as ZT_CUDA_LIB says, else beside the
 * program, else in ../lib/zerotrain from there. ZT_EUNSUPPORTED: there is none, and the message says
 * what is missing (the library, one it needs, an equal build).
 */
int zt_backend_load(const struct zt_backend **out, struct zt_err *err) ZT_MUST_CHECK;

#endif
