/*
 * combine.h: element-wise sum or maximum of several sources in a fixed order, and large copies.
 *
 * isa_combine.c is compiled once per instruction set; all of them give the same bits.
 */
#ifndef ZT_COLL_COMBINE_H
#define ZT_COLL_COMBINE_H

#include "base/dtype.h"
#include "base/isa.h"
#include "coll/coll.h"

/*
 * dst[d][i] = round(src[0][i] op src[1][i] op ...) for every d, in that order. fp32 and 16-bit types
 * are combined in fp32 and rounded once to dst_dtype; the others in their own type (dst_dtype ==
 * dtype; integers wrap). A NaN stays one in ZT_MAX. A destination may be a source, exactly.
 */
struct zt_combine {
    int n_src, n_dst; /* n_src >= 1 */
    const void *const *src;
    void *const *dst;
    enum zt_dtype dtype, dst_dtype;
    enum zt_redop op;
    int64_t count;
};

typedef void zt_combine_fn(const struct zt_combine *a);

/* Of isa_combine.c for this instruction set, which the CPU has to have. */
zt_combine_fn *zt_combine_build(enum zt_isa isa);

/* memcpy that does not drag large blocks through the cache; complete for other threads on return. */
void zt_copy_large(void *dst, const void *src, size_t bytes);

#endif
