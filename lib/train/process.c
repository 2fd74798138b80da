#include "train/run.h"

#include "base/clock.h"
#include "dev/queue.h"

/* CPU time of this process, of all of its threads. */
static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/*
 * FLOP/s of several products of n x n matrices, one after the other; 0 when they fail. The best of as many tries as it
 * takes until more do not help: while others use the processor one alone says little. So does the clock on the wall: on a
 * CPU the time counts that a thread really had.
 */
static double product_rate(struct zt_stream *s, int64_t n, enum zt_dtype dtype)
{
    enum { IN_VAIN = 6, MAX_TRIES = 60, PRODUCTS = 4 };
    const struct zt_dev_ops *ops = s->dev->ops;
    const size_t bytes = (size_t)(n * n) * zt_dtype_bytes(dtype);
    struct zt_ref r = {NULL, dtype};
    struct zt_matmul mm = {
        .m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n, .a = r, .b = r, .c = r};
    struct zt_err err;
    void *mem;
    double best = 0;
    mm.ws_bytes = zt_ws_matmul(ops->kind, &mm, s->n_threads);
    if (ops->alloc(s->dev, 3 * bytes + mm.ws_bytes, &mem, &err))
        return 0;
    mm.a.ptr = mem;
    mm.b.ptr = (char *)mem + bytes;
    mm.c.ptr = (char *)mem + 2 * bytes;
    mm.ws = (char *)mem + 3 * bytes;
    for (int i = 0, last_better = 0; i < MAX_TRIES && i - last_better < IN_VAIN; i++) {
        const int64_t t0 = zt_now_ns(), cpu0 = cpu_ns();
        for (int j = 0; j < PRODUCTS; j++)
            ops->matmul(s, &mm);
        if (ops->sync(ops->record(s), &err))
            break;
        int64_t ns = zt_now_ns() - t0;
        if (ops->kind == ZT_DEV_CPU)
            ns = ZT_MIN(ns, (cpu_ns() - cpu0) / s->n_threads);
        const double work = 2.0 * (double)n * (double)n * (double)n * PRODUCTS;
        const double rate = work / ((double)ZT_MAX(ns, 1) * 1e-9);
        if (rate > 1.02 * best)
            last_better = i;
        best = ZT_MAX(best, rate);
    }
    ops->free(s->dev, mem, 3 * bytes + mm.ws_bytes);
    return best;
}

/* Of ever larger products, until one takes so long that starting it does not count. */
static double peak_of(struct zt_stream *s, enum zt_dtype dtype)
{
    enum { MIN_N = 256, CPU_MAX_N = 1024, GPU_MAX_N = 8192 };
    const bool cpu = s->dev->ops->kind == ZT_DEV_CPU;
    const double enough_s = cpu ? 1e-4 : 1e-3;
    double best = 0, took_s = 0;
    for (int64_t n = MIN_N; n <= (cpu ? CPU_MAX_N : GPU_MAX_N) && took_s < enough_s; n *= 2) {
        const double rate = product_rate(s, n, dtype);
        if (rate <= 0)
            break;
        best = ZT_MAX(best, rate);
        took_s = 2.0 * (double)n * (double)n * (double)n / rate;
    }
    return best;
}

/* A CPU may be faster in fp32 than in the type that is trained in. */
double zt_run_peak_flops(struct zt_dev *dev, int n_threads, enum zt_dtype *dtype)
{
    const bool cpu = dev->ops->kind == ZT_DEV_CPU;
    struct zt_stream *s;
    struct zt_err err;
    if (dev->ops->stream_create(dev, "peak", n_threads, &s, &err))
        return 0;
    double best = peak_of(s, *dtype);
    if (cpu && *dtype != ZT_F32) {
        const double fp32 = peak_of(s, ZT_F32);
        if (fp32 >= best)
            *dtype = ZT_F32;
        best = ZT_MAX(best, fp32);
    }
    dev->ops->stream_free(s);
    return best;
}
