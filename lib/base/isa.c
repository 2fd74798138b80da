#include "base/isa.h"

#include "base/half.h"

#if defined(__x86_64__)

const char *zt_isa_what(enum zt_isa isa)
{
    static const char *const what[ZT_N_ISAS] = {"SSE4.2", "AVX2", "AVX-512"};
    return what[isa];
}

bool zt_isa_supported(enum zt_isa isa)
{
    __builtin_cpu_init();
    bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && zt_cpu_has_f16c();
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    return isa == ZT_ISA_V4 ? v4 : isa == ZT_ISA_V3 ? v3 : v2;
}

#else

const char *zt_isa_what(enum zt_isa isa)
{
    (void)isa;
    return "the compiler's default";
}

bool zt_isa_supported(enum zt_isa isa)
{
    (void)isa;
    return true;
}

#endif

enum zt_isa zt_isa_best(void)
{
    int isa = ZT_N_ISAS - 1;
    while (isa > 0 && !zt_isa_supported((enum zt_isa)isa))
        isa--;
    return (enum zt_isa)isa;
}
