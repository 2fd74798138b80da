#include "base/rng.h"

#include <math.h>

void zt_rng_normal(uint64_t seed, enum zt_rng_purpose purpose, uint64_t tensor, int64_t begin,
                   int64_t n, float *out)
{
    const double two_pi = 6.283185307179586;
    int64_t i = begin, end = begin + n;
    while (i < end) {
        struct zt_philox_block b = zt_philox(seed, purpose, tensor, (uint64_t)(i / 4));
        double z[4];
        for (int p = 0; p < 4; p += 2) {
            double r = sqrt(-2.0 * log(zt_uniform(b.v[p])));
            double a = two_pi * zt_uniform(b.v[p + 1]);
            z[p] = r * cos(a);
            z[p + 1] = r * sin(a);
        }
        for (int64_t lane = i % 4; lane < 4 && i < end; lane++, i++)
            out[i - begin] = (float)z[lane];
    }
}

int64_t zt_permute(uint64_t seed, uint64_t epoch, int64_t n, int64_t index)
{
    int half_bits = 1;
    while (((int64_t)1 << (2 * half_bits)) < n)
        half_bits++;
    uint64_t mask = ((uint64_t)1 << half_bits) - 1, x = (uint64_t)index;
    do {
        uint64_t left = x >> half_bits, right = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t hi = epoch * 8 + round;
            uint64_t f = zt_philox(seed, ZT_RNG_SHUFFLE, hi, right).v[0] & mask;
            uint64_t next = left ^ f;
            left = right;
            right = next;
        }
        x = left << half_bits | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}
