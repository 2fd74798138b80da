#include "train/run.h"

#include "base/clock.h"

static int64_t field_kb(const char *path, const char *key)
{
    FILE *f = fopen(path, "re");
    char line[256];
    long long kb = 0;
    if (!f)
        return 0;
    size_t n = strlen(key);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && sscanf(line + n, " %lld", &kb) == 1)
            break;
    fclose(f);
    return kb * 1024;
}

int64_t zt_process_rss_peak(void)
{
    return field_kb("/proc/self/status", "VmHWM:");
}

int64_t zt_process_pss(void)
{
    return field_kb("/proc/self/smaps_rollup", "Pss:");
}

/* Rate of a matmul that fills the caches: what MFU on a CPU is measured against. */
double zt_run_peak_flops(struct zt_dev *dev, int n_threads)
{
    enum { N = 512, TRIES = 6 };
    struct zt_stream *s;
    struct zt_err err;
    void *mem;
    size_t bytes = (size_t)N * N * sizeof(float);
    if (dev->ops->kind != ZT_DEV_CPU || dev->ops->alloc(dev, 3 * bytes, &mem, &err))
        return 0;
    double best = 0;
    if (dev->ops->stream_create(dev, "peak", n_threads, &s, &err))
        goto out;
    float *a = mem;
    struct zt_matmul mm = {.m = N, .n = N, .k = N, .lda = N, .ldb = N, .ldc = N};
    mm.a = (struct zt_ref){a, ZT_F32};
    mm.b = (struct zt_ref){a + (size_t)N * N, ZT_F32};
    mm.c = (struct zt_ref){a + 2 * (size_t)N * N, ZT_F32};
    for (int i = 0; i < TRIES; i++) {
        int64_t t0 = zt_now_ns();
        dev->ops->matmul(s, &mm);
        if (dev->ops->sync(dev->ops->record(s), &err))
            break;
        double rate = 2.0 * N * N * N / ((double)(zt_now_ns() - t0) * 1e-9);
        best = ZT_MAX(best, rate);
    }
    dev->ops->stream_free(s);
out:
    dev->ops->free(dev, mem, 3 * bytes);
    return best;
}
