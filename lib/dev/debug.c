#include "dev/queue.h"
#include "dev/sanitize.h"

#if ZT_TSAN

enum { RANGES_PER_TASK = ZT_QUEUE_ARG_BYTES / sizeof(struct zt_range) - 1 };

struct announcement {
    int n;
    struct zt_range ranges[RANGES_PER_TASK];
};
_Static_assert(sizeof(struct announcement) <= ZT_QUEUE_ARG_BYTES, "fits the ring");

static int run_announce(struct zt_stream *s, void *arg, struct zt_err *err)
{
    (void)s;
    (void)err;
    const struct announcement *a = arg;
    for (int i = 0; i < a->n; i++) {
        if (a->ranges[i].write)
            __tsan_write_range(a->ranges[i].ptr, a->ranges[i].bytes);
        else
            __tsan_read_range(a->ranges[i].ptr, a->ranges[i].bytes);
    }
    return 0;
}

void zt_dev_announce(struct zt_stream *s, const struct zt_range *ranges, int n)
{
    for (int i = 0; i < n; i += RANGES_PER_TASK) {
        struct announcement a = {.n = ZT_MIN(n - i, RANGES_PER_TASK)};
        memcpy(a.ranges, ranges + i, (size_t)a.n * sizeof *ranges);
        zt_stream_push(s, run_announce, &a, sizeof a);
    }
}

#else

void zt_dev_announce(struct zt_stream *s, const struct zt_range *ranges, int n)
{
    (void)s;
    (void)ranges;
    (void)n;
}

#endif

#if ZT_ASAN

void zt_dev_poison(const void *p, size_t bytes)
{
    __asan_poison_memory_region(p, bytes);
}

void zt_dev_unpoison(const void *p, size_t bytes)
{
    __asan_unpoison_memory_region(p, bytes);
}

#else

void zt_dev_poison(const void *p, size_t bytes)
{
    (void)p;
    (void)bytes;
}

void zt_dev_unpoison(const void *p, size_t bytes)
{
    (void)p;
    (void)bytes;
}

#endif
