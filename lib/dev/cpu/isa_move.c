#include "dev/cpu/isa.h"

#include "base/size.h"

enum { PIECE = 256 << 10 }; /* bytes that one thread moves at a time */

int ZT_ISA_FN(copy)(const struct zt_copy *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    int64_t n_pieces = zt_ceil_div_i64((int64_t)a->bytes, PIECE);
    PARALLEL_FOR(n_threads, (n_pieces - 1) * PIECE)
    for (int64_t i = 0; i < n_pieces; i++) {
        size_t at = (size_t)i * PIECE;
        memcpy((char *)a->dst + at, (const char *)a->src + at,
               ZT_MIN(a->bytes - at, (size_t)PIECE));
    }
    return 0;
}

int ZT_ISA_FN(zero)(const struct zt_zero *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    int64_t n_pieces = zt_ceil_div_i64((int64_t)a->bytes, PIECE);
    PARALLEL_FOR(n_threads, (n_pieces - 1) * PIECE)
    for (int64_t i = 0; i < n_pieces; i++) {
        size_t at = (size_t)i * PIECE;
        memset((char *)a->dst + at, 0, ZT_MIN(a->bytes - at, (size_t)PIECE));
    }
    return 0;
}

int ZT_ISA_FN(cast)(const struct zt_cast *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    int64_t n_chunks = zt_ceil_div_i64(a->n, CHUNK);
    PARALLEL_FOR(n_threads, a->n)
    for (int64_t c = 0; c < n_chunks; c++) {
        float src_buf[CHUNK], sum[CHUNK];
        int64_t at = c * CHUNK, n = ZT_MIN(a->n - at, (int64_t)CHUNK);
        const float *src = read_row(a->src, at, n, src_buf);
        if (a->accumulate) {
            widen(a->dst.dtype, a->dst.ptr, at, n, sum);
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                sum[i] += src[i];
            src = sum;
        }
        narrow(a->dst.dtype, src, n, a->dst.ptr, at);
    }
    return 0;
}
