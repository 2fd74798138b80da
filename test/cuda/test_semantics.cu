/*
 * test_semantics.cu: what the simulator assumes of a GPU and of its runtime, as assertions that hold on
 * both: run on the simulator by `make test`, and on hardware by scripts/gpu-check.sh.
 */
#include "box.h"

/* ---- Indices ---- */

__global__ void number(unsigned *out)
{
    unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[b * blockDim.x * blockDim.y * blockDim.z + t] = b * 1000 + t;
}
ZT_SIM_REGISTER(number)

TEST(indices_of_threads_and_blocks)
{
    box<unsigned> x(2 * 3 * 2 * 24);
    ZT_LAUNCH(number, dim3(2, 3, 2), dim3(4, 3, 2), 0, x.stream, x.dev);
    CU(x.download());
    for (int i = 0; i < x.n; i++)
        CHECK_INT(x.host[i], i / 24 * 1000 + i % 24);
}

/* ---- Warp operations ---- */

__global__ void shuffles(int *out)
{
    int lane = (int)threadIdx.x;
    int *o = out + lane;
    o[0 * 32] = __shfl_sync(0xffffffffu, lane, 5);
    o[1 * 32] = __shfl_xor_sync(0xffffffffu, lane, 3);
    o[2 * 32] = __shfl_down_sync(0xffffffffu, lane, 4);
    o[3 * 32] = __shfl_up_sync(0xffffffffu, lane, 4);
    o[4 * 32] = __shfl_sync(0xffffffffu, lane, 9, 8);
    o[5 * 32] = __shfl_xor_sync(0xffffffffu, lane, 12, 8);
    o[6 * 32] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
    o[7 * 32] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
    o[8 * 32] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0);
    o[9 * 32] = __any_sync(0xffffffffu, lane == 31) + 2 * __all_sync(0xffffffffu, lane < 31);
    o[10 * 32] = __reduce_add_sync(0xffffffffu, lane);
    o[11 * 32] = __reduce_max_sync(0xffffffffu, lane ^ 21);
    o[12 * 32] = (int)__match_any_sync(0xffffffffu, lane & 3);
}
ZT_SIM_REGISTER(shuffles)

TEST(warp_operations)
{
    box<int> x(13 * 32);
    ZT_LAUNCH(shuffles, 1, 32, 0, x.stream, x.dev);
    CU(x.download());
    for (int l = 0; l < 32; l++) {
        const int *o = x.host + l;
        CHECK_INT(o[0 * 32], 5);
        CHECK_INT(o[1 * 32], l ^ 3);
        CHECK_INT(o[2 * 32], l + 4 < 32 ? l + 4 : l);
        CHECK_INT(o[3 * 32], l < 4 ? l : l - 4);
        CHECK_INT(o[4 * 32], (l & ~7) | 1);
        /* Another group of 8: earlier ones may be read, later ones give the lane's own value. */
        CHECK_INT(o[5 * 32], (l ^ 12) > (l | 7) ? l : l ^ 12);
        CHECK_INT(o[6 * 32], (l & 7) + 3 < 8 ? l + 3 : l);
        CHECK_INT(o[7 * 32], (l & 7) < 3 ? l : l - 3);
        CHECK_INT(o[8 * 32], 0x49249249);
        CHECK_INT(o[9 * 32], 1);
        CHECK_INT(o[10 * 32], 496);
        CHECK_INT(o[11 * 32], 31);
        CHECK_INT(o[12 * 32], 0x11111111 << (l & 3));
    }
}

/* Lanes that have ended count as arrived; parts of a warp meet under masks of their own. */
__global__ void partial_warps(int *out)
{
    int lane = (int)threadIdx.x;
    if (lane >= 24)
        return;
    __syncwarp(0x00ffffff);
    unsigned mask = lane < 8 ? 0x000000ff : 0x00ffff00;
    out[lane] = __reduce_add_sync(mask, 1) + 100 * __popc(__ballot_sync(mask, lane & 1));
}
ZT_SIM_REGISTER(partial_warps)

TEST(parts_of_a_warp)
{
    box<int> x(24);
    ZT_LAUNCH(partial_warps, 1, 32, 0, x.stream, x.dev);
    CU(x.download());
    for (int l = 0; l < 24; l++)
        CHECK_INT(x.host[l], l < 8 ? 408 : 816);
}

/* ---- Blocks ---- */

__global__ void reverse(int *out, int rounds)
{
    ZT_SHARED(int, a, 256);
    ZT_DYN_SHARED(int, b);
    int t = (int)threadIdx.x, v = t;
    for (int r = 0; r < rounds; r++) {
        a[t] = v;
        b[t] = v + 1;
        __syncthreads();
        v = a[255 - t] + b[255 - t];
        __syncthreads();
    }
    int odd = __syncthreads_count(v & 1), any = __syncthreads_or(t == 7),
        all = __syncthreads_and(t);
    out[blockIdx.x * 256 + t] = v + 100000 * odd + (any ? 0 : 1) + (all ? 2 : 0);
}
ZT_SIM_REGISTER(reverse)

TEST(shared_memory_and_barriers)
{
    box<int> x(2 * 256);
    CU(cudaFuncSetAttribute((const void *)reverse, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            100 << 10));
    ZT_LAUNCH(reverse, 2, 256, 100 << 10, x.stream, x.dev, 2);
    CU(x.download());
    for (int i = 0; i < x.n; i++) {
        int t = i % 256;
        CHECK_INT(x.host[i], 2 * (2 * t + 1) + 1 + 100000 * 256);
    }
}

__global__ void last_block_adds(int *partial, unsigned *count, int *sum)
{
    ZT_SHARED(int, last, 1);
    int t = (int)threadIdx.x;
    partial[blockIdx.x * 32 + t] = (int)blockIdx.x * 32 + t;
    __threadfence();
    __syncthreads();
    if (t == 0)
        last[0] = atomicAdd(count, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last[0] || t != 0)
        return;
    __threadfence();
    for (int i = 0; i < (int)gridDim.x * 32; i++)
        *sum += ((volatile int *)partial)[i];
}
ZT_SIM_REGISTER(last_block_adds)

TEST(a_fence_publishes_to_other_blocks)
{
    box<int> x(16 * 32 + 2);
    CU(x.upload());
    int *count = x.dev + 16 * 32;
    ZT_LAUNCH(last_block_adds, 16, 32, 0, x.stream, x.dev, (unsigned *)count, count + 1);
    CU(x.download());
    CHECK_INT(x.host[16 * 32], 16);
    CHECK_INT(x.host[16 * 32 + 1], 512 * 511 / 2);
}

__global__ void atomics(unsigned *out)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(out + 0, i);
    atomicMax(out + 1, i);
    atomicMin(out + 2, i + 5);
    atomicOr(out + 3, 1u << (i & 31));
    atomicInc(out + 4, 99u);
    atomicCAS(out + 5, 0u, i + 1);
    atomicSub(out + 6, 1u);
}
ZT_SIM_REGISTER(atomics)

TEST(atomic_operations)
{
    box<unsigned> x(7);
    x.host[2] = 1u << 30;
    CU(x.upload());
    ZT_LAUNCH(atomics, 8, 64, 0, x.stream, x.dev);
    CU(x.download());
    CHECK_INT(x.host[0], 512 * 511 / 2);
    CHECK_INT(x.host[1], 511);
    CHECK_INT(x.host[2], 5);
    CHECK_INT(x.host[3], 0xffffffff);
    CHECK_INT(x.host[4], 512 % 100);
    CHECK(x.host[5] >= 1 && x.host[5] <= 512);
    CHECK_INT(x.host[6], (unsigned)-512);
}

/* ---- Arithmetic ---- */

__global__ void arithmetic(float *out, float a, float b, float c)
{
    out[0] = __fmaf_rn(a, b, c);
    out[1] = __fadd_rn(__fmul_rn(a, b), c);
    out[2] = __fdiv_rn(a, b);
    out[3] = __fsqrt_rn(a);
    out[4] = __bfloat162float(__float2bfloat16_rn(a));
    out[5] = __half2float(__float2half_rn(a));
    out[6] = __uint_as_float(__float_as_uint(a) + 1);
    out[7] = (float)__float2int_rn(2.5f) + (float)__clz(1) + (float)__ffs(8);
}
ZT_SIM_REGISTER(arithmetic)

TEST(arithmetic_is_rounded_as_said)
{
    box<float> x(8);
    volatile float a = 1.0000001f, b = 3.1415927f, c = -3.1415929f;
    ZT_LAUNCH(arithmetic, 1, 1, 0, x.stream, x.dev, a, b, c);
    CU(x.download());
    volatile float product = a * b;
    CHECK(x.host[0] == fmaf(a, b, c));
    CHECK(x.host[1] == product + c);
    CHECK(x.host[0] != x.host[1]);
    CHECK(x.host[2] == a / b);
    CHECK(x.host[3] == sqrtf(a));
    CHECK(x.host[4] == 1.0f);
    CHECK(x.host[5] == 1.0f);
    CHECK(x.host[6] == nextafterf(a, 2.0f));
    CHECK(x.host[7] == 2 + 31 + 4);
}

/* ---- Launches ---- */

TEST(launches_that_are_refused)
{
    box<unsigned> x(1);
    ZT_LAUNCH(number, 1, 1025, 0, x.stream, x.dev);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidConfiguration);
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    ZT_LAUNCH(number, dim3(1, 65536), 1, 0, x.stream, x.dev);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidConfiguration);
    ZT_LAUNCH(number, 0, 32, 0, x.stream, x.dev);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidConfiguration);
    ZT_LAUNCH(number, 1, 32, (48 << 10) + 1, x.stream, x.dev);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK_INT(cudaFuncSetAttribute((const void *)number,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
              cudaErrorInvalidValue);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST_MAIN()
