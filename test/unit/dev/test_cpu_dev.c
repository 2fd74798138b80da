#include "dev_test.h"

#include "dev/sanitize.h"

TEST(dev_cpu_isa_is_checked)
{
    struct zt_dev *d = NULL;
    struct zt_err err;
    char log[200];
    setenv("ZT_CPU_ISA", "v9", 1);
    CHECK_INT(zt_cpu_dev_create(&d, NULL, 0, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "ZT_CPU_ISA=v9"));
    unsetenv("ZT_CPU_ISA");
    CHECK_OK(zt_cpu_dev_create(&d, log, sizeof log, &err), err);
    CHECK(strncmp(log, "cpu: kernels ", 13) == 0);
    zt_cpu_dev_free(d);
}

TEST(dev_cpu_table_is_complete)
{
    struct rig r;
    CHECK(rig_open(&r, 0));
    CHECK_INT(r.dev->ops->abi, ZT_DEV_ABI);
    CHECK_INT(r.dev->ops->struct_bytes, sizeof(struct zt_dev_ops));
    const void *const *entries = (const void *const *)&r.dev->ops->alloc;
    const char *end = (const char *)r.dev->ops + sizeof(struct zt_dev_ops);
    const void *pin = &r.dev->ops->pin, *unpin = &r.dev->ops->unpin; /* optional */
    for (; (const char *)entries < end; entries++)
        CHECK(*entries || entries == pin || entries == unpin);
    rig_close(&r);
}

TEST(dev_cpu_memory)
{
    struct rig r;
    struct zt_err err;
    size_t free_bytes, total;
    void *p = NULL;
    enum { BYTES = (5 << 20) + 1 };
    CHECK(rig_open(&r, 0));
    const struct zt_dev_ops *ops = r.dev->ops;
    CHECK_OK(ops->memory(r.dev, &free_bytes, &total, &err), err);
    CHECK(free_bytes > 0 && free_bytes <= total);
    CHECK_OK(ops->alloc(r.dev, BYTES, &p, &err), err);
    CHECK_INT((uintptr_t)p % (2 << 20), 0);
    for (int i = 0; i < BYTES; i++)
        CHECK_INT(((unsigned char *)p)[i], 0);
    ops->free(r.dev, p, BYTES);
    CHECK_INT(ops->alloc(r.dev, total + 1, &p, &err), ZT_ENOMEM);
    char size[40];
    snprintf(size, sizeof size, "%zu", total + 1);
    CHECK(strstr(err.msg, size));
    CHECK_INT(ops->alloc(r.dev, SIZE_MAX - 5, &p, &err), ZT_ENOMEM);
    rig_close(&r);
}

#if ZT_ASAN
int __asan_address_is_poisoned(void const volatile *addr);

TEST(dev_poison)
{
    static _Alignas(64) unsigned char bytes[128];
    zt_dev_poison(bytes + 64, 64);
    CHECK(!__asan_address_is_poisoned(bytes + 63));
    CHECK(__asan_address_is_poisoned(bytes + 64) && __asan_address_is_poisoned(bytes + 127));
    zt_dev_unpoison(bytes + 64, 64);
    CHECK(!__asan_address_is_poisoned(bytes + 64));
}
#endif

/* A larger shape never needs less; a plan sizes one workspace by the largest. */
TEST(dev_workspace_is_monotonic)
{
    for (int i = 0; i < 2000; i++) {
        struct zt_philox_block b = zt_philox(1, ZT_RNG_SAMPLE, 0, (uint64_t)i);
        struct zt_matmul m = {.m = b.v[0] % 9000,
                              .n = b.v[1] % 60000,
                              .k = b.v[2] % 9000,
                              .a.dtype = b.v[3] & 1 ? ZT_BF16 : ZT_F32,
                              .b.dtype = b.v[3] & 2 ? ZT_BF16 : ZT_F32,
                              .c.dtype = b.v[3] & 4 ? ZT_BF16 : ZT_F32};
        size_t ws = zt_ws_matmul(ZT_DEV_CPU, &m, 2);
        int64_t *dims[] = {&m.m, &m.n, &m.k};
        *dims[b.v[3] >> 8 & 1 ? 0 : b.v[3] >> 9 & 1 ? 1 : 2] += b.v[3] >> 10 & 0x3ff;
        CHECK(zt_ws_matmul(ZT_DEV_CPU, &m, 2) >= ws);
        CHECK(zt_ws_norm_bwd(ZT_DEV_CPU, m.m + 1, m.n, 2) >=
              zt_ws_norm_bwd(ZT_DEV_CPU, m.m, m.n, 2));
        CHECK(zt_ws_col_sum(ZT_DEV_CPU, m.m, m.n + 1, 2) >= zt_ws_col_sum(ZT_DEV_CPU, m.m, m.n, 2));
    }
}

TEST_MAIN()
