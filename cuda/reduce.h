/*
 * reduce.h: sums within a warp and within a team, in an order that depends on the shape alone.
 *
 * A team is some neighbouring warps of a block that work on one row; a block holds one team or several.
 */
#ifndef ZT_CUDA_REDUCE_H
#define ZT_CUDA_REDUCE_H

#include "port.h"

constexpr int WARP = 32, MAX_WARPS = 32;

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

static __device__ __forceinline__ int64_t warp_sum(int64_t x)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, (long long)x, d);
    return x;
}

/* Shared memory of team_sum(): two halves used in turn, so that one barrier a sum is enough. */
constexpr int TEAM_SHARED = 2 * 2 * MAX_WARPS;

struct team {
    int size, index, lane; /* threads, number of the team, place of this thread in it */
    float *shared;         /* TEAM_SHARED floats of the block */
    int turn;

    __device__ __forceinline__ team(int threads, float *buffer)
        : size(threads), index((int)threadIdx.x / threads), lane((int)threadIdx.x % threads),
          shared(buffer), turn(0)
    {
    }

    /* a and b become their sums over the team. All threads of the block call it. */
    __device__ __forceinline__ void sum2(float &a, float &b)
    {
        a = warp_sum(a);
        b = warp_sum(b);
        if (size == WARP)
            return;
        float *part = shared + turn * 2 * MAX_WARPS;
        int warp = (int)threadIdx.x / WARP, first = index * (size / WARP);
        turn ^= 1;
        if (threadIdx.x % WARP == 0) {
            part[warp] = a;
            part[MAX_WARPS + warp] = b;
        }
        __syncthreads();
        a = b = 0;
        for (int w = first; w < first + size / WARP; w++) {
            a += part[w];
            b += part[MAX_WARPS + w];
        }
    }
};

#endif
