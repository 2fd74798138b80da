/*
 * GPUs with little shared memory: attention's own tests (unit/dev/test_attention.c) on a simulated one that
 * grants what sm_86, sm_89 and sm_120 do; which GPUs are refused; and that what a kernel may have is asked
 * of each device. On hardware: the same with the tiles that this GPU takes.
 */
#define TEST_LINKED_BACKEND
#include "cuda_test.h"

#include <sys/wait.h>

#ifdef ZT_CUSIM
#define SIMULATED true
#else
#define SIMULATED false
#endif

__attribute__((constructor)) static void set_gpus(void)
{
    setenv("CUSIM_DEVICES", "2", 1);
    setenv("CUSIM_SHARED", "99K", 1);
    setenv("ZT_TEST_RIGS", "cuda", 1);
}

/* Tests that fork come first: the simulator reads its settings once. */

static pid_t fork_with(const char *name, const char *value)
{
    pid_t child = fork();
    if (child < 0)
        abort();
    if (child == 0)
        setenv(name, value, 1);
    return child;
}

static void check_end(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
}

/* The device is refused, before anything runs, with these words; "": it is not. */
static void check_refusal(const char *name, const char *value, const char *want)
{
    pid_t child = fork_with(name, value);
    if (child == 0) {
        struct gpu g;
        const int rc = gpu_open(&g);
        if (strcmp(rc ? g.err.msg : "", want) == 0)
            _exit(0);
        fprintf(stderr, "%s=%s: \"%s\"\n", name, value, rc ? g.err.msg : "");
        _exit(1);
    }
    check_end(child);
}

TEST_IF(SIMULATED, cuda_refuses_gpus_that_are_too_old)
{
    check_refusal("CUSIM_MAJOR", "8", "");
    RETURN_IF_FAILED();
    check_refusal("CUSIM_MAJOR", "7",
                  "GPU 0 (cusim GPU): its compute capability is 7.0; the kernels need 8.0 (Ampere) "
                  "or later");
    RETURN_IF_FAILED();
    check_refusal("CUSIM_SHARED", "96K",
                  "GPU 0 (cusim GPU): a block may have 98304 bytes of shared memory; attention "
                  "needs 101376");
}

/* A kernel that needs more than 48 KiB. */
static int attend(int device, struct zt_err *err)
{
    enum { TOKENS = 4, DIM = 128, N = TOKENS * DIM, BYTES = 3 * N * (int)sizeof(float) };
    struct gpu g;
    int rc = zt_backend()->dev_create(device, &g.dev, NULL, 0, err);
    if (rc)
        return rc;
    struct zt_stream *s = gpu_stream(&g, "test");
    float *x = gpu_alloc(&g, BYTES);
    const struct zt_ref in = {x, ZT_F32};
    const struct zt_attention a = {.batch = 1,
                                   .q_len = TOKENS,
                                   .k_len = TOKENS,
                                   .n_head = 1,
                                   .n_kv_head = 1,
                                   .ldq = DIM,
                                   .ldkv = DIM,
                                   .ldo = DIM,
                                   .head_dim = DIM,
                                   .scale = 1,
                                   .q = in,
                                   .k = in,
                                   .v = in,
                                   .out = {x + N, ZT_F32},
                                   .lse = x + 2 * N};
    g.dev->ops->attention_fwd(s, &a);
    rc = g.dev->ops->sync(g.dev->ops->record(s), err);
    g.dev->ops->free(g.dev, x, BYTES);
    g.dev->ops->stream_free(s);
    gpu_close(&g);
    return rc;
}

/* It is not remembered: who opens the device anew may have it. */
TEST_IF(SIMULATED, cuda_attention_after_a_failure)
{
    pid_t child = fork_with("CUSIM_FAIL", "cudaFuncSetAttribute:1");
    if (child == 0) {
        struct zt_err err;
        _exit(attend(0, &err) == 0 || attend(0, &err) != 0);
    }
    check_end(child);
}

TEST(cuda_attention_on_each_device)
{
    struct zt_err err;
    int n;
    CHECK_OK(zt_backend()->device_count(&n, &err), err);
    for (int d = 0; d < n; d++)
        CHECK_OK(attend(d, &err), err);
}

/* Tensor cores take the same tiles up to a head size of 64 (cuda/attention_fwd.cuh, cuda/attention_bwd.cuh). */
#define ATTENTION_WANTED(t, dtype)                                                                 \
    ((dtype) == ZT_F32 || (t)->head_dim > 64 || (t)->head_dim % 8 || (t)->pad % 8)

#include "unit/dev/test_attention.c"
