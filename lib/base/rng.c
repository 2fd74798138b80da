#include "base/rng.h"

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
