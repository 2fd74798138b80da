#include "coll/combine.h"

#include "coll/stream.h"

#define DECLARE(isa) zt_combine_fn zt_combine_##isa;
ZT_ISAS(DECLARE)

zt_combine_fn *zt_combine_build(enum zt_isa isa)
{
#define ADDRESS(isa) zt_combine_##isa,
    static zt_combine_fn *const builds[ZT_N_ISAS] = {ZT_ISAS(ADDRESS)};
    return builds[isa];
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
