#include <math.h>

#include "base/normal.h"
#include "base/philox16.h"

/*
 * Box-Muller (Box and Muller 1958): of two words a and b, uniform u = (a + 1/2) / 2^32 and likewise v,
 *
 *     z0 = sqrt(-2 ln u) cos 2 pi v,   z1 = sqrt(-2 ln u) sin 2 pi v
 *
 * In double, of nothing but +, -, *, / and sqrt, each rounded (-ffp-contract=off), and integers: so every
 * instruction set, and every width of vectors, gives the same bits. Series are Taylor's, up to terms
 * below 2^-53 of the sum; a result is off by a few ulp of a double, and is then rounded to fp32.
 */

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)

enum { LANES = ZT_PHILOX_LANES, NUMBERS = 4 * LANES };

static inline uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline double of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* n, below 2^52, plus `more`: exact where the sum is a double. */
static inline double to_double(uint64_t n, double more)
{
    return of_bits(0x4330000000000000u | n) - (0x1p52 - more);
}

/*
 * ln of (word + 1/2) / 2^32. x = word + 1/2 = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh s of
 * s = (m - 1) / (m + 1), |s| < 0.172.
 */
static inline double log_uniform(uint32_t word)
{
    const uint64_t sqrt_half = 0x3fe6a09e667f3bcdu, one = 0x3ff0000000000000u;
    const uint64_t fraction = 0x000fffffffffffffu;
    uint64_t at = bits_of(to_double(word, 0.5)) + (one - sqrt_half);
    double m = of_bits((at & fraction) + sqrt_half);
    double e = to_double(at >> 52, -1023 - 32);
    double s = (m - 1) / (m + 1), q = s * s;
    double p = q * (1.0 / 21) + 1.0 / 19;
    p = p * q + 1.0 / 17;
    p = p * q + 1.0 / 15;
    p = p * q + 1.0 / 13;
    p = p * q + 1.0 / 11;
    p = p * q + 1.0 / 9;
    p = p * q + 1.0 / 7;
    p = p * q + 1.0 / 5;
    p = p * q + 1.0 / 3;
    p = p * q * s + s;
    return e * 0x1.62e42fefa39efp-1 + 2 * p;
}

/*
 * cos and sin of 2 pi (word + 1/2) / 2^32: the turn is a multiple of a quarter, plus x of at most an eighth
 * either way.
 */
static inline void cos_sin(uint32_t word, double *cos, double *sin)
{
    uint32_t quarter = (word + (1u << 29)) >> 30;
    uint32_t rest = word - (quarter << 30) + (1u << 31); /* from -2^29, here from 2^31 - 2^29 */
    double x = (to_double(rest, -0x1p31) + 0.5) * (6.283185307179586 * 0x1p-32), q = x * x;
    double s = q * (1.0 / 355687428096000) - 1.0 / 1307674368000;
    s = s * q + 1.0 / 6227020800;
    s = s * q - 1.0 / 39916800;
    s = s * q + 1.0 / 362880;
    s = s * q - 1.0 / 5040;
    s = s * q + 1.0 / 120;
    s = s * q - 1.0 / 6;
    s = s * q * x + x;
    double c = q * (1.0 / 20922789888000) - 1.0 / 87178291200;
    c = c * q + 1.0 / 479001600;
    c = c * q - 1.0 / 3628800;
    c = c * q + 1.0 / 40320;
    c = c * q - 1.0 / 720;
    c = c * q + 1.0 / 24;
    c = c * q - 1.0 / 2;
    c = c * q + 1;
    /* cos of the four quarters: c, -s, -c, s; sin: s, c, -s, -c */
    uint64_t swapped = (bits_of(c) ^ bits_of(s)) & -(uint64_t)(quarter & 1);
    *cos = of_bits(bits_of(c) ^ swapped ^ (uint64_t)((quarter + 1) & 2) << 62);
    *sin = of_bits(bits_of(s) ^ swapped ^ (uint64_t)(quarter & 2) << 62);
}

/* The numbers of LANES blocks, in order. */
static void numbers(uint64_t key, uint64_t first_block, uint64_t tensor, float *restrict out)
{
    uint32_t word[4][LANES];
    float z[4][LANES];
    zt_philox16(key, (uint32_t)first_block, (uint32_t)(first_block >> 32), (uint32_t)tensor,
                (uint32_t)(tensor >> 32), word);
    for (int p = 0; p < 4; p += 2) {
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            double r = sqrt(-2 * log_uniform(word[p][i])), c, s;
            cos_sin(word[p + 1][i], &c, &s);
            z[p][i] = (float)(r * c);
            z[p + 1][i] = (float)(r * s);
        }
    }
    for (int i = 0; i < LANES; i++)
        for (int p = 0; p < 4; p++)
            out[4 * i + p] = z[p][i];
}

zt_normal_fn JOIN(zt_normal, ZT_ISA);

void JOIN(zt_normal, ZT_ISA)(uint64_t seed, enum zt_rng_purpose purpose, uint64_t tensor,
                             int64_t begin, int64_t n, float *out)
{
    const uint64_t key = zt_rng_key(seed, purpose);
    float room[NUMBERS];
    for (int64_t i = begin, end = begin + n; i < end;) {
        int64_t skip = i % NUMBERS, some = ZT_MIN(NUMBERS - skip, end - i);
        bool whole = some == NUMBERS;
        float *to = whole ? out + (i - begin) : room;
        numbers(key, (uint64_t)(i / NUMBERS) * LANES, tensor, to);
        if (!whole)
            memcpy(out + (i - begin), room + skip, (size_t)some * sizeof *out);
        i += some;
    }
}
