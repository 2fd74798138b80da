#include "dev/cpu/isa.h"

/*
 * sin and cos of n angles position * frequency[i], within 1.2e-7. The angle is reduced to r in
 * [-pi/4, pi/4] and a quadrant in double, since positions reach 2^31: HALF_PI_HIGH has 22 bits, so
 * that its product with the quadrant number is exact. The polynomials are those of Cephes' sinf and
 * cosf. n <= CHUNK.
 */
static void sin_cos_row(double position, const double *frequency, int64_t n,
                        float *restrict sin_row, float *restrict cos_row)
{
    const double two_over_pi = 0.63661977236758138;
    const double half_pi_high = 0x1.921fb0p+0, half_pi_low = 0x1.5110b4611a626p-22;
    const double round_to_int = 6755399441055744.0; /* 1.5 * 2^52 */
    int32_t quadrant[CHUNK];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        double angle = position * frequency[i];
        double k = (angle * two_over_pi + round_to_int) - round_to_int;
        quadrant[i] = (int32_t)k;
        sin_row[i] = (float)((angle - k * half_pi_high) - k * half_pi_low);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float r = sin_row[i], z = r * r;
        float s = fma_f32(fma_f32(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
        float c = fma_f32(fma_f32(2.443315711809948e-5f, z, -1.388731625493765e-3f), z,
                          4.166664568298827e-2f);
        s = fma_f32(s * z, r, r);
        c = fma_f32(c * z, z, fma_f32(-0.5f, z, 1.0f));
        bool odd = quadrant[i] & 1;
        float sine = odd ? c : s, cosine = odd ? s : c;
        sin_row[i] = quadrant[i] & 2 ? -sine : sine;
        cos_row[i] = (quadrant[i] + 1) & 2 ? -cosine : cosine;
    }
}

/* Pairs (lo[i], hi[i]) turned by their angles; n <= CHUNK. */
static void turn_pairs(struct zt_ref x, int64_t lo_at, int64_t hi_at, int64_t n,
                       const float *sin_row, const float *cos_row)
{
    float lo_buf[CHUNK], hi_buf[CHUNK];
    float *lo = row_to_write(x, lo_at, lo_buf), *hi = row_to_write(x, hi_at, hi_buf);
    if (x.dtype != ZT_F32) {
        widen(x.dtype, x.ptr, lo_at, n, lo);
        widen(x.dtype, x.ptr, hi_at, n, hi);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float a = lo[i], b = hi[i];
        lo[i] = fma_f32(a, cos_row[i], -(b * sin_row[i]));
        hi[i] = fma_f32(b, cos_row[i], a * sin_row[i]);
    }
    write_row(x, lo_at, n, lo);
    write_row(x, hi_at, n, hi);
}

/* Pairs [begin, begin + n) of all heads of a row. */
static void rope_row(const struct zt_rope *a, int64_t row, int64_t begin, int64_t n,
                     const double *frequency)
{
    float sin_row[CHUNK], cos_row[CHUNK];
    int64_t half = a->head_dim / 2;
    sin_cos_row((double)a->positions[row], frequency, n, sin_row, cos_row);
    for (int64_t i = 0; a->inverse && i < n; i++)
        sin_row[i] = -sin_row[i];
    for (int64_t h = 0; h < a->n_head; h++) {
        int64_t at = row * a->ldq + h * a->head_dim + begin;
        turn_pairs(a->q, at, at + half, n, sin_row, cos_row);
    }
    for (int64_t h = 0; h < a->n_kv_head; h++) {
        int64_t at = row * a->ldk + h * a->head_dim + begin;
        turn_pairs(a->k, at, at + half, n, sin_row, cos_row);
    }
}

int ZT_ISA_FN(rope)(const struct zt_rope *a, int n_threads, struct zt_err *err)
{
    (void)n_threads;
    (void)err;
    int64_t half = a->head_dim / 2;
    ZT_ASSERT_CMP(a->head_dim % 2, ==, 0);
    for (int64_t begin = 0; begin < half; begin += CHUNK) {
        double frequency[CHUNK];
        int64_t n = ZT_MIN(half - begin, (int64_t)CHUNK);
        for (int64_t i = 0; i < n; i++)
            frequency[i] = zt_rope_frequency(&a->rule, a->head_dim, begin + i);
        PARALLEL_FOR(n_threads, a->rows * (a->n_head + a->n_kv_head) * a->head_dim)
        for (int64_t row = 0; row < a->rows; row++)
            rope_row(a, row, begin, n, frequency);
    }
    return 0;
}
