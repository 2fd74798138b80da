#include "base/normal.h"

#define DECLARE(isa) zt_normal_fn zt_normal_##isa;
ZT_ISAS(DECLARE)

zt_normal_fn *zt_normal_build(enum zt_isa isa)
{
#define ADDRESS(isa) zt_normal_##isa,
    static zt_normal_fn *const builds[ZT_N_ISAS] = {ZT_ISAS(ADDRESS)};
    return builds[isa];
}

void zt_rng_normal(uint64_t seed, enum zt_rng_purpose purpose, uint64_t tensor, int64_t begin,
                   int64_t n, float *out)
{
    zt_normal_build(zt_isa_best())(seed, purpose, tensor, begin, n, out);
}
