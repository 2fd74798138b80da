/*
 * cuda_test.h: what the tests of the CUDA device share. They take it as the program does, by its table; on
 * the simulator and on a GPU.
 */
#ifndef ZT_TEST_CUDA_TEST_H
#define ZT_TEST_CUDA_TEST_H

#include "coll/backend.h"

#include "harness.h"

struct gpu {
    struct zt_dev *dev;
    char log[512];
    struct zt_err err;
};

/* Close it in either case. */
static inline int gpu_open(struct gpu *g)
{
    memset(g, 0, sizeof *g);
    return zt_backend()->dev_create(0, &g->dev, g->log, sizeof g->log, &g->err);
}

static inline void gpu_close(struct gpu *g)
{
    if (g->dev)
        zt_backend()->dev_free(g->dev);
}

static inline struct zt_stream *gpu_stream(struct gpu *g, const char *name)
{
    struct zt_stream *s = NULL;
    if (g->dev->ops->stream_create(g->dev, name, 1, &s, &g->err)) {
        fprintf(stderr, "no stream: %s\n", g->err.msg);
        abort();
    }
    return s;
}

static inline void *gpu_alloc(struct gpu *g, size_t bytes)
{
    void *p = NULL;
    if (g->dev->ops->alloc(g->dev, bytes, &p, &g->err)) {
        fprintf(stderr, "no memory: %s\n", g->err.msg);
        abort();
    }
    return p;
}

static inline void *gpu_alloc_host(struct gpu *g, size_t bytes)
{
    void *p = NULL;
    if (g->dev->ops->alloc_host(g->dev, bytes, &p, &g->err)) {
        fprintf(stderr, "no pinned memory: %s\n", g->err.msg);
        abort();
    }
    return p;
}

static inline void gpu_copy(struct zt_stream *s, const struct gpu *g, void *dst, const void *src,
                            size_t bytes)
{
    g->dev->ops->copy(s, &(struct zt_copy){dst, src, bytes});
}

static inline int gpu_sync(struct gpu *g, struct zt_stream *s)
{
    return g->dev->ops->sync(g->dev->ops->record(s), &g->err);
}

#endif
