/*
 * layout.h: how the CPU kernels cut their work and their workspace: what workspace.c promises and
 * the kernels use. Nothing here depends on the instruction set, and block partitions depend on the
 * shape alone, so that the thread count changes no result.
 */
#ifndef ZT_DEV_CPU_LAYOUT_H
#define ZT_DEV_CPU_LAYOUT_H

#include "base/size.h"
#include "dev/dev.h"

/* ---- sums over rows: partial sums of a fixed number of row blocks ---- */

enum { ZT_SUM_BLOCKS = 32, ZT_SUM_MIN_ROWS = 16 };

static inline int64_t zt_sum_blocks(int64_t rows)
{
    return ZT_MIN((int64_t)ZT_SUM_BLOCKS, zt_ceil_div_i64(rows, ZT_SUM_MIN_ROWS));
}

/* ---- matmul: 16-bit operands are widened block by block into workspace ---- */

enum { ZT_MM_BLOCK_BYTES = 16 << 20, ZT_MM_MIN_BLOCK = 64 };

struct zt_mm_layout {
    int64_t block_m, block_n;         /* rows and columns of C done at a time */
    size_t a_bytes, b_bytes, c_bytes; /* fp32 copies in workspace, in this order */
};

void zt_mm_layout(const struct zt_matmul *shape, struct zt_mm_layout *out);

/* Rows of a 16-bit C that are done at a time where no operand is widened; they fit c_bytes. */
int64_t zt_mm_sum_rows(const struct zt_matmul *shape);

/* ---- attention: tiles of queries by keys ---- */

enum { ZT_ATT_Q = 64, ZT_ATT_K = 128, ZT_ATT_PAD = 32 };

/* Offsets of one thread's scratch, in floats; each region a multiple of 16 floats. */
struct zt_att_layout {
    int64_t dim;      /* head_dim rounded up to ZT_ATT_PAD: row length of every tile */
    size_t kt, vt, k; /* keys transposed in panels, values (forward: plain), keys plain */
    size_t q, out, s, ds;
    size_t dk, dv, dq; /* backward; dq for all query heads of one key/value head */
    size_t row_a, row_b;
    size_t total;
};

void zt_att_layout(const struct zt_attention *shape, bool backward, struct zt_att_layout *out);

#endif
