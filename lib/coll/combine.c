#include "coll/combine.h"

#include "base/half.h"
#include "coll/stream.h"

#if defined(__x86_64__)
zt_combine_fn zt_combine_v2, zt_combine_v3, zt_combine_v4;

int zt_combine_isas(struct zt_combine_isa isas[ZT_COMBINE_MAX_ISAS])
{
    __builtin_cpu_init();
    bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    bool v3 =
        v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && zt_cpu_has_f16c();
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    isas[0] = (struct zt_combine_isa){"SSE4.2", zt_combine_v2, v2};
    isas[1] = (struct zt_combine_isa){"AVX2", zt_combine_v3, v3};
    isas[2] = (struct zt_combine_isa){"AVX-512", zt_combine_v4, v4};
    return 3;
}
#else
zt_combine_fn zt_combine_base;

int zt_combine_isas(struct zt_combine_isa isas[ZT_COMBINE_MAX_ISAS])
{
    isas[0] = (struct zt_combine_isa){"the compiler's default", zt_combine_base, true};
    return 1;
}
#endif

zt_combine_fn *zt_combine_best(void)
{
    struct zt_combine_isa isas[ZT_COMBINE_MAX_ISAS];
    int i = zt_combine_isas(isas) - 1;
    while (i > 0 && !isas[i].supported)
        i--;
    return isas[i].combine;
}

void zt_copy_large(void *dst, const void *src, size_t bytes)
{
    if (bytes < STREAM_MIN_BYTES) {
        memcpy(dst, src, bytes);
        return;
    }
    stream_copy(dst, src, bytes);
    stream_end();
}
