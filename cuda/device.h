/*
 * device.h: the CUDA device and its streams. Internal to cuda/.
 *
 *   stream.c   streams, events, host calls, failures
 *   device.c   the table of dev.h: memory, and one entry for each kernel
 *   matmul.c   struct zt_matmul by cuBLASLt
 *   nccl.c     collectives
 *   backend.c  the table that the shared object exports (coll/backend.h)
 *
 * A stream is a queue with a thread (dev/queue.h) that submits to a cudaStream of its own. So a task is
 * over in two ways: submitted (its function has returned), and complete (the GPU has done it). An event
 * is a cudaEvent that a task of the queue records; it is waited for only once that task has run.
 *
 * No deadlock. Tasks have an order: that in which they were enqueued, by one thread, so a wait comes
 * after the record that it names. A submitting thread blocks only for what is earlier: for a record
 * to be submitted, for an event of another device, for an old record of its own stream to be complete
 * (its slot is used again), or for the GPU to take more work. What is submitted to the GPU waits only for
 * what was submitted before. So the earliest task that is not over can always go on. Host calls must not
 * break this: CUDA may run those of all streams on one thread, so they must not wait for other streams
 * or other ranks. (Host-staged collectives do that on streams of the CPU.)
 */
#ifndef ZT_CUDA_DEVICE_H
#define ZT_CUDA_DEVICE_H

#include <cublasLt.h>
#include <stdatomic.h>

#include "coll/backend.h"
#include "dev/queue.h"
#include "kernels.h"

enum { ZT_CUDA_MAX_STREAMS = 16 };

struct zt_cuda_products; /* the algorithms that cuBLASLt chose, of a stream */

struct zt_cuda_dev {
    struct zt_dev base;
    int index; /* of the device, after CUDA_VISIBLE_DEVICES */
    char name[128];
    int n_sms;
    size_t smem_bytes; /* shared memory a block may ask for */
    struct zt_cuda_large large;
    cublasLtHandle_t lt;
    cublasComputeType_t f32;      /* of products of fp32: TF32 only if asked for */
    struct zt_cuda_fault *faults; /* (ZT_CUDA_MAX_STREAMS), pinned; one of each stream */
    _Atomic int n_streams;        /* so far: a slot is not used again */
    /*
     * The first failure that came after its task was submitted: of a host call. The first wins; it
     * comes out of every later sync, of whatever stream, and stops what is submitted later.
     */
    _Atomic int failed; /* FAILURE_* of stream.c */
    struct zt_err failure;
};

/* ---- stream.c ---- */

/*
 * The stream of collectives, by its name (plan/ops.h), has the highest priority of the device, the others the
 * lowest: the blocks of a collective are few and others wait for them, so they go before those of a product
 * that fills the device.
 */
int zt_cuda_stream_create(struct zt_dev *d, const char *name, int n_threads, struct zt_stream **out,
                          struct zt_err *err) ZT_MUST_CHECK;
void zt_cuda_stream_free(struct zt_stream *s);
struct zt_event zt_cuda_record(struct zt_stream *s);
void zt_cuda_wait(struct zt_stream *s, struct zt_event e);
int zt_cuda_sync(struct zt_event e, struct zt_err *err) ZT_MUST_CHECK;
void zt_cuda_host_call(struct zt_stream *s, zt_host_fn fn, const void *arg, size_t arg_bytes);

/* For tasks: what a launcher needs. */
const struct zt_cuda_ctx *zt_cuda_ctx_of(const struct zt_stream *s);
struct zt_cuda_products *zt_cuda_products_of(const struct zt_stream *s);

/* Enqueue `fn` unless the device has failed by the time its turn comes. */
void zt_cuda_push(struct zt_stream *s, zt_task_fn fn, const void *arg, size_t arg_bytes);

/* From now on every sync of the device gives this, unless it has failed before; from any thread. */
void zt_cuda_fail(struct zt_cuda_dev *d, int code, const struct zt_err *why);

/* 0, or ZT_EDEVICE with the stream, the device, what was done, and the name of CUDA's error. */
int zt_cuda_check(const struct zt_stream *s, cudaError_t e, const char *what,
                  struct zt_err *err) ZT_MUST_CHECK;

/* A cudaStream on the current device, first in the queue for its multiprocessors or last. */
cudaError_t zt_cuda_make_stream(cudaStream_t *out, bool urgent);

/* ---- device.c ---- */

/* The same for calls that belong to no stream. */
int zt_cuda_check_dev(const struct zt_cuda_dev *d, cudaError_t e, const char *what,
                      struct zt_err *err) ZT_MUST_CHECK;

/* What CUDA_VISIBLE_DEVICES calls the device, wherever CUDA counts it. */
void zt_cuda_id(const struct cudaDeviceProp *prop, char out[ZT_GPU_ID_BYTES]);

int zt_cuda_dev_create(int index, struct zt_dev **out, char *log, size_t log_bytes,
                       struct zt_err *err) ZT_MUST_CHECK;
void zt_cuda_dev_free(struct zt_dev *d);

/* ---- matmul.c ---- */

struct zt_cuda_products *zt_cuda_products_create(const struct zt_cuda_dev *d);
void zt_cuda_products_free(struct zt_cuda_products *p); /* NULL: nothing */

/* The product of dev.h on the thread of stream `s`. */
int zt_cuda_matmul(struct zt_stream *s, const struct zt_matmul *a,
                   struct zt_err *err) ZT_MUST_CHECK;

/* ---- nccl.c: as in coll/backend.h ---- */

int zt_cuda_nccl_id(struct zt_nccl_id *out, struct zt_err *err) ZT_MUST_CHECK;
int zt_cuda_nccl_create(const struct zt_nccl_id *id, struct zt_dev *dev, const struct zt_mesh *mesh,
                        int rank, zt_fatal_fn fatal, void *fatal_ctx, struct zt_coll **out,
                        struct zt_err *err) ZT_MUST_CHECK;

#endif
