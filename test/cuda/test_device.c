/* The CUDA device: memory, streams, events, host calls, failures. */
#include "cuda_test.h"

#include <stdatomic.h>

#include "../../cuda/device.h"
#include "base/arena.h"
#include "dev/sanitize.h"
#include "planted.h"

TEST(cuda_device_names_itself)
{
    struct gpu g;
    struct zt_gpu_info info;
    int n;
    CHECK_OK(zt_backend()->device_count(&n, &g.err), g.err);
    CHECK(n >= 1);
    CHECK_OK(zt_backend()->device_info(0, &info, &g.err), g.err);
    CHECK(info.name[0] && info.major >= 7 && info.free_bytes <= info.total_bytes);
    CHECK_INT(strspn(info.id, "GPUMI-0123456789abcdef"), 40);
    CHECK_INT(strlen(info.id), 40);
    CHECK_OK(gpu_open(&g), g.err);
    CHECK(strncmp(g.log, "cuda: ", 6) == 0 && strstr(g.log, info.name));
    CHECK(strstr(g.log, info.id));
    CHECK_INT(g.dev->ops->kind, ZT_DEV_CUDA);
    gpu_close(&g);
}

/* Collectives go before products that fill the device. */
TEST(cuda_streams_have_priorities)
{
    struct gpu g;
    int least, greatest, compute, comm;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *s[] = {gpu_stream(&g, "compute"), gpu_stream(&g, "comm")};
    CHECK_INT(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
    CHECK_INT(cudaStreamGetPriority(zt_cuda_ctx_of(s[0])->stream, &compute), cudaSuccess);
    CHECK_INT(cudaStreamGetPriority(zt_cuda_ctx_of(s[1])->stream, &comm), cudaSuccess);
    CHECK_INT(compute, least);
    CHECK_INT(comm, greatest);
    for (int i = 0; i < 2; i++)
        g.dev->ops->stream_free(s[i]);
    gpu_close(&g);
}

TEST(cuda_table_is_complete)
{
    struct gpu g;
    CHECK_OK(gpu_open(&g), g.err);
    CHECK_INT(g.dev->ops->abi, ZT_DEV_ABI);
    CHECK_INT(g.dev->ops->struct_bytes, sizeof(struct zt_dev_ops));
    const void *const *entries = (const void *const *)&g.dev->ops->alloc;
    const char *end = (const char *)g.dev->ops + sizeof(struct zt_dev_ops);
    for (; (const char *)entries < end; entries++)
        CHECK(*entries);
    gpu_close(&g);
}

/* ---- memory ---- */

TEST(cuda_memory_is_zeroed_and_counted)
{
    enum { BYTES = 5 << 20 };
    struct gpu g;
    size_t before, after, total;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *s = gpu_stream(&g, "test");
    unsigned char *host = gpu_alloc_host(&g, BYTES);
    CHECK_OK(g.dev->ops->memory(g.dev, &before, &total, &g.err), g.err);
    void *dev = gpu_alloc(&g, BYTES);
    CHECK_OK(g.dev->ops->memory(g.dev, &after, &total, &g.err), g.err);
    CHECK(after + BYTES <= before && before <= total);
    memset(host, 1, BYTES);
    gpu_copy(s, &g, host, dev, BYTES);
    CHECK_OK(gpu_sync(&g, s), g.err);
    for (int i = 0; i < BYTES; i++)
        CHECK(host[i] == 0);
    g.dev->ops->free(g.dev, dev, BYTES);
    CHECK_OK(g.dev->ops->memory(g.dev, &after, &total, &g.err), g.err);
    CHECK(after == before);
    g.dev->ops->free_host(g.dev, host, BYTES);
    g.dev->ops->stream_free(s);
    gpu_close(&g);
}

/* The message has the three numbers; what comes next is not taken for the failure. */
TEST(cuda_out_of_memory_says_what_there_is)
{
    struct gpu g;
    size_t free_bytes, total;
    char want[128];
    void *p;
    CHECK_OK(gpu_open(&g), g.err);
    CHECK_OK(g.dev->ops->memory(g.dev, &free_bytes, &total, &g.err), g.err);
    CHECK_INT(g.dev->ops->alloc(g.dev, total + 4096, &p, &g.err), ZT_ENOMEM);
    snprintf(want, sizeof want, "cannot allocate %zu bytes: %zu bytes are free (of %zu)",
             total + 4096, free_bytes, total);
    CHECK(strncmp(g.err.msg, "GPU 0 (", 7) == 0 && strstr(g.err.msg, want));
    CHECK_INT(g.dev->ops->alloc(g.dev, SIZE_MAX, &p, &g.err), ZT_ENOMEM);
    struct zt_stream *s = gpu_stream(&g, "test");
    void *dev = gpu_alloc(&g, 4096);
    g.dev->ops->cast(s, &(struct zt_cast){1000, {dev, ZT_F32}, {dev, ZT_F32}, false});
    CHECK_OK(gpu_sync(&g, s), g.err);
    g.dev->ops->free(g.dev, dev, 4096);
    g.dev->ops->stream_free(s);
    gpu_close(&g);
}

TEST(cuda_copies_from_and_to_everywhere)
{
    enum { N = 300001 };
    struct gpu g;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *s = gpu_stream(&g, "test");
    unsigned char *pinned = gpu_alloc_host(&g, N), *own = zt_xcalloc(N, 1), *out = zt_xcalloc(N, 1);
    unsigned char *a = gpu_alloc(&g, N), *b = gpu_alloc(&g, N);
    for (int i = 0; i < N; i++)
        own[i] = (unsigned char)(i * 7 + i / 251);
    gpu_copy(s, &g, a, own, N);
    gpu_copy(s, &g, b, a, N);
    g.dev->ops->zero(s, &(struct zt_zero){b + 10, 20});
    gpu_copy(s, &g, pinned, b, N);
    gpu_copy(s, &g, out, pinned, N);
    gpu_copy(s, &g, out, NULL, 0);
    CHECK_OK(gpu_sync(&g, s), g.err);
    for (int i = 0; i < N; i++)
        CHECK(out[i] == (i >= 10 && i < 30 ? 0 : own[i]));
    CHECK_OK(g.dev->ops->pin(g.dev, own, N, &g.err), g.err);
    gpu_copy(s, &g, own, a, N);
    CHECK_OK(gpu_sync(&g, s), g.err);
    g.dev->ops->unpin(g.dev, own);
    g.dev->ops->free(g.dev, a, N);
    g.dev->ops->free(g.dev, b, N);
    g.dev->ops->free_host(g.dev, pinned, N);
    g.dev->ops->stream_free(s);
    free(own);
    free(out);
    gpu_close(&g);
}

/* ---- order ---- */

/* A counter in device memory, read and written by turns on two streams, through more events than a ring. */
TEST(cuda_events_order_two_streams)
{
    enum { ROUNDS = 1500 };
    struct gpu g;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *s[2] = {gpu_stream(&g, "even"), gpu_stream(&g, "odd")};
    float one = 1, got = 0, *x = gpu_alloc(&g, 2 * sizeof *x), *unit = x + 1;
    gpu_copy(s[0], &g, unit, &one, sizeof one);
    struct zt_event last = g.dev->ops->record(s[0]);
    for (int i = 0; i < ROUNDS; i++) {
        struct zt_stream *now = s[i % 2];
        g.dev->ops->wait(now, last);
        g.dev->ops->cast(now, &(struct zt_cast){1, {unit, ZT_F32}, {x, ZT_F32}, true});
        last = g.dev->ops->record(now);
    }
    CHECK_OK(g.dev->ops->sync(last, &g.err), g.err);
    gpu_copy(s[0], &g, &got, x, sizeof got);
    CHECK_OK(gpu_sync(&g, s[0]), g.err);
    CHECK(got == ROUNDS);
    CHECK_OK(g.dev->ops->sync((struct zt_event){0}, &g.err), g.err);
    g.dev->ops->stream_free(s[0]);
    g.dev->ops->stream_free(s[1]);
    g.dev->ops->free(g.dev, x, 2 * sizeof *x);
    gpu_close(&g);
}

/* An event whose slot was used again is complete, and means no later record. */
TEST(cuda_old_events_are_complete)
{
    enum { LATER = 3000 };
    struct gpu g;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *a = gpu_stream(&g, "a"), *b = gpu_stream(&g, "b");
    void *x = gpu_alloc(&g, 64);
    g.dev->ops->zero(a, &(struct zt_zero){x, 64});
    struct zt_event first = g.dev->ops->record(a);
    struct zt_event again = g.dev->ops->record(a);
    CHECK(first.seq == again.seq); /* nothing new */
    for (int i = 0; i < LATER; i++) {
        g.dev->ops->zero(a, &(struct zt_zero){x, 64});
        g.dev->ops->record(a);
    }
    g.dev->ops->wait(b, first);
    CHECK_OK(gpu_sync(&g, b), g.err);
    CHECK_OK(g.dev->ops->sync(first, &g.err), g.err);
    CHECK_OK(gpu_sync(&g, a), g.err);
    g.dev->ops->stream_free(b);
    g.dev->ops->stream_free(a);
    g.dev->ops->free(g.dev, x, 64);
    gpu_close(&g);
}

struct append {
    int32_t *list, *n, value;
};

static int append(void *arg, struct zt_err *err)
{
    const struct append *a = arg;
    (void)err;
    a->list[(*a->n)++] = a->value;
    return 0;
}

/* Host calls run in stream order, also more of them than the ring of their arguments holds. */
TEST(cuda_host_calls_in_order)
{
    enum { N = 2000 };
    static int32_t list[N], n;
    struct gpu g;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *s = gpu_stream(&g, "test");
    n = 0;
    for (int i = 0; i < N; i++) {
        struct append a = {list, &n, i};
        g.dev->ops->host_call(s, append, &a, sizeof a);
    }
    CHECK_OK(gpu_sync(&g, s), g.err);
    CHECK_INT(n, N);
    for (int i = 0; i < N; i++)
        CHECK_INT(list[i], i);
    g.dev->ops->stream_free(s);
    gpu_close(&g);
}

/* A CPU's stream and a GPU's, by turns: each wait blocks the thread of who waits. */
TEST(cuda_waits_across_devices)
{
    enum { ROUNDS = 200 };
    static int32_t list[2 * ROUNDS], n;
    struct gpu g;
    struct zt_dev *cpu;
    struct zt_stream *host;
    CHECK_OK(gpu_open(&g), g.err);
    CHECK_OK(zt_cpu_dev_create(&cpu, NULL, 0, &g.err), g.err);
    CHECK_OK(cpu->ops->stream_create(cpu, "host", 1, &host, &g.err), g.err);
    struct zt_stream *s = gpu_stream(&g, "gpu");
    struct zt_event last = {0};
    n = 0;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        struct append a = {list, &n, i};
        struct zt_stream *now = i % 2 ? s : host;
        const struct zt_dev_ops *ops = i % 2 ? g.dev->ops : cpu->ops;
        ops->wait(now, last);
        ops->host_call(now, append, &a, sizeof a);
        last = ops->record(now);
    }
    CHECK_OK(gpu_sync(&g, s), g.err);
    CHECK_INT(n, 2 * ROUNDS);
    for (int i = 0; i < n; i++)
        CHECK_INT(list[i], i);
    g.dev->ops->stream_free(s);
    cpu->ops->stream_free(host);
    zt_cpu_dev_free(cpu);
    gpu_close(&g);
}

/* ---- failures ---- */

static int fail(void *arg, struct zt_err *err)
{
    (void)arg;
    return zt_err_set(err, ZT_EPEER, "rank 3 is gone");
}

TEST(cuda_host_call_fails_the_device)
{
    static int32_t list[2], n;
    struct gpu g;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *a = gpu_stream(&g, "a"), *b = gpu_stream(&g, "b");
    struct append later = {list, &n, 1};
    n = 0;
    g.dev->ops->host_call(a, fail, NULL, 0);
    g.dev->ops->host_call(a, append, &later, sizeof later);
    g.dev->ops->wait(b, g.dev->ops->record(a));
    CHECK_INT(gpu_sync(&g, a), ZT_EPEER);
    CHECK(strcmp(g.err.msg, "rank 3 is gone") == 0);
    CHECK_INT(gpu_sync(&g, b), ZT_EPEER);
    g.dev->ops->host_call(b, append, &later, sizeof later); /* later tasks are skipped */
    CHECK_INT(gpu_sync(&g, b), ZT_EPEER);
    CHECK_INT(n, 0);
    g.dev->ops->stream_free(b);
    g.dev->ops->stream_free(a);
    gpu_close(&g);
}

/* What a kernel finds comes out of a sync, of a stream that waited too. */
TEST(cuda_target_outside_the_vocabulary)
{
    enum { ROWS = 5, VOCAB = 64 };
    static const int32_t targets[ROWS] = {0, 63, -100, 64, -1};
    struct gpu g;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *s = gpu_stream(&g, "compute"), *other = gpu_stream(&g, "other");
    char *p = gpu_alloc(&g, 1 << 16);
    struct zt_cross_entropy a = {.rows = ROWS,
                                 .vocab = VOCAB,
                                 .ld = VOCAB,
                                 .targets = (int32_t *)(p + 4096),
                                 .sb = (struct zt_step_block *)(p + 8192),
                                 .count = (struct zt_count *)(p + 16384),
                                 .logits = {p + 32768, ZT_F32},
                                 .losses = (float *)(p + 20480),
                                 .loss_sum = (double *)(p + 24576),
                                 .first = true};
    gpu_copy(s, &g, p + 4096, targets, sizeof targets);
    g.dev->ops->cross_entropy(s, &a);
    g.dev->ops->wait(other, g.dev->ops->record(s));
    CHECK_INT(gpu_sync(&g, other), ZT_EINPUT);
    CHECK(strstr(g.err.msg, "cross_entropy: row 3 has target 64, outside the vocabulary") ||
          strstr(g.err.msg, "cross_entropy: row 4 has target -1, outside the vocabulary"));
    CHECK_INT(gpu_sync(&g, s), ZT_EINPUT);
    g.dev->ops->stream_free(other);
    g.dev->ops->stream_free(s);
    g.dev->ops->free(g.dev, p, 1 << 16);
    gpu_close(&g);
}

/* A call that CUDA refuses fails its stream and those that wait for it; the message says where. */
TEST(cuda_refused_call_fails_the_stream)
{
    struct gpu g;
    CHECK_OK(gpu_open(&g), g.err);
    struct zt_stream *a = gpu_stream(&g, "a"), *b = gpu_stream(&g, "b"), *c = gpu_stream(&g, "c");
    struct zt_event before = g.dev->ops->record(a);
    void *x = gpu_alloc(&g, 64);
    g.dev->ops->zero(a, &(struct zt_zero){(char *)x + 1024, (size_t)1 << 60});
    g.dev->ops->wait(b, g.dev->ops->record(a));
    g.dev->ops->wait(c, before);
    CHECK_INT(gpu_sync(&g, a), ZT_EDEVICE);
    CHECK(strncmp(g.err.msg, "GPU 0 (", 7) == 0);
    CHECK(strstr(g.err.msg, "stream a: cudaMemsetAsync: cudaErrorInvalidValue"));
    CHECK_INT(gpu_sync(&g, b), ZT_EDEVICE);
    CHECK_OK(gpu_sync(&g, c), g.err);
    g.dev->ops->stream_free(c);
    g.dev->ops->stream_free(b);
    g.dev->ops->stream_free(a);
    g.dev->ops->free(g.dev, x, 64);
    gpu_close(&g);
}

/* ---- what ThreadSanitizer sees on the simulator ---- */

static int race_child(const char *how)
{
    struct gpu g;
    if (gpu_open(&g))
        return 1;
    struct zt_stream *a = gpu_stream(&g, "a"), *b = gpu_stream(&g, "b");
    float *x = gpu_alloc(&g, 4096);
    const struct zt_cast twice = {1000, {x, ZT_F32}, {x, ZT_F32}, true};
    g.dev->ops->cast(a, &twice);
    if (strcmp(how, "wait") == 0)
        g.dev->ops->wait(b, g.dev->ops->record(a));
    if (strcmp(how, "sync") == 0 && gpu_sync(&g, a))
        return 1;
    g.dev->ops->cast(b, &twice);
    int rc = gpu_sync(&g, b) || gpu_sync(&g, a);
    g.dev->ops->stream_free(b);
    g.dev->ops->stream_free(a);
    g.dev->ops->free(g.dev, x, 4096);
    gpu_close(&g);
    return rc;
}

TEST_IF(ZT_TSAN, cuda_missing_wait_is_a_race_that_tsan_reports)
{
    const char *how = planted_fault();
    if (how)
        exit(race_child(how));
    CHECK_INT(run_planted("wait", "missing_wait"), 0);
    CHECK_INT(run_planted("sync", "missing_wait"), 0);
    CHECK_INT(run_planted("missing", "missing_wait"), PLANTED_RACE);
}

TEST_MAIN()
