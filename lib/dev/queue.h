/*
 * queue.h: the stream of every device: a bounded ring of tasks and a thread that carries them out
 * in order. The CPU device runs its kernels in that thread; a CUDA device launches on a cudaStream
 * from it. A wait for another stream, of whatever device, is itself a task: it blocks that thread,
 * never the caller.
 *
 * Positions: the first task of a stream is 1. An event is (stream, position): complete once all
 * tasks up to that position are.
 *
 * Threads: one thread at a time may enqueue on a stream and record its events (the engine's). Any
 * thread may sync. Enqueueing blocks while the ring is full, and allocates nothing.
 *
 * Order that is promised, and that ThreadSanitizer builds see exactly (dev/sanitize.h): enqueueing
 * before the task; a task before the later ones of its stream; tasks up to an event before whoever
 * waited for or synced that event. Nothing else: a producer that waited for room in the ring learns
 * nothing of what the tasks did. (An event more than ZT_QUEUE_TASKS behind orders more than
 * promised.)
 *
 * Failure: the first task that returns non-zero fails the stream; its later tasks are skipped, and
 * their events complete. A wait or sync for an event at or after the failed task gets its code and
 * message. A failed stream stays so.
 */
#ifndef ZT_DEV_QUEUE_H
#define ZT_DEV_QUEUE_H

#include "dev/dev.h"

/* Room for a host function beside the largest argument. */
enum { ZT_QUEUE_TASKS = 1024, ZT_QUEUE_ARG_BYTES = ZT_TASK_ARG_BYTES + 16 };

/* A task. `arg` is the ring's copy, 16-byte aligned, valid during the call. */
typedef int (*zt_task_fn)(struct zt_stream *s, void *arg, struct zt_err *err);

struct zt_queue;

struct zt_stream {
    struct zt_dev *dev; /* the device that carries the tasks out */
    int n_threads;
    char name[16]; /* of the thread too */
    void *impl;    /* the device's own */
    struct zt_queue *queue;
};

/* `name` is cut to 15 characters. All signals are blocked in the stream's thread. */
int zt_stream_create(struct zt_dev *dev, const char *name, int n_threads, struct zt_stream **out,
                     struct zt_err *err) ZT_MUST_CHECK;

/* Waits for the queue to empty. No other stream may still have a wait for one of its events. */
void zt_stream_free(struct zt_stream *s);

void zt_stream_push(struct zt_stream *s, zt_task_fn fn, const void *arg, size_t arg_bytes);

/*
 * What the entries record, wait, sync and host_call of a device's table do where a task is over when its
 * function returns. The wait asks the other stream's device whether its event is complete (the table's
 * sync), so it may come from any device.
 */
struct zt_event zt_stream_record(struct zt_stream *s);
void zt_stream_wait(struct zt_stream *s, struct zt_event e);
int zt_stream_sync(struct zt_event e, struct zt_err *err) ZT_MUST_CHECK;
void zt_stream_host_call(struct zt_stream *s, zt_host_fn fn, const void *arg, size_t arg_bytes);

#endif
