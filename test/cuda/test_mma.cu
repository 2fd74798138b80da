/*
 * test_mma.cu: the wrappers of cuda/mma.h do what its first lines say, on the simulator and on a GPU.
 * Values are small whole numbers, so every order of summation gives the same.
 */
#include "port.h"

#include "base/dtype.h"
#include "mma.h"

#include "harness.h"

#define CU(call)                                                                                   \
    do {                                                                                           \
        cudaError_t zt_e_ = (call);                                                                \
        if (zt_e_ != cudaSuccess)                                                                  \
            FAIL("%s: %s", #call, cudaGetErrorName(zt_e_));                                        \
    } while (0)

enum { WARP = 32 };

/* Zeroed memory that both sides reach; it is a test, so it ends with the process. */
template <class T> static T *shared_memory(size_t n)
{
    T *p = NULL;
    if (cudaMallocHost((void **)&p, n * sizeof(T)) != cudaSuccess) {
        fprintf(stderr, "test_mma: no memory\n");
        abort();
    }
    memset(p, 0, n * sizeof(T));
    return p;
}

/* ---- mma ---- */

static uint16_t narrow(__nv_bfloat16, int x)
{
    return zt_f32_to_bf16((float)x);
}

static uint16_t narrow(__half, int x)
{
    return zt_f32_to_f16((float)x);
}

/* Fragments straight from memory, by the layout that mma.h states: a (16, 16), b (16, 8), c (16, 8). */
template <class T> __global__ void mma_kernel(const uint16_t *a, const uint16_t *b, float *c)
{
    const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4 * 2;
    uint32_t fa[4], fb[2];
    float fc[4];
    for (int r = 0; r < 4; r++) {
        const uint16_t *from = a + (g + r % 2 * 8) * 16 + t + r / 2 * 8;
        fa[r] = from[0] | (uint32_t)from[1] << 16;
        fc[r] = c[(g + r / 2 * 8) * 8 + t + r % 2];
    }
    for (int r = 0; r < 2; r++)
        fb[r] = b[(t + r * 8) * 8 + g] | (uint32_t)b[(t + r * 8 + 1) * 8 + g] << 16;
    zt_mma<T>(fc, fa, fb[0], fb[1]);
    for (int r = 0; r < 4; r++)
        c[(g + r / 2 * 8) * 8 + t + r % 2] = fc[r];
}
ZT_SIM_REGISTER(mma_kernel<__nv_bfloat16>)
ZT_SIM_REGISTER(mma_kernel<__half>)

template <class T> static void check_mma(void)
{
    uint16_t *a = shared_memory<uint16_t>(256), *b = shared_memory<uint16_t>(128);
    float *c = shared_memory<float>(128);
    int na[256], nb[128];
    for (int i = 0; i < 256; i++)
        a[i] = narrow(T(), na[i] = (i * 7 + i / 16 * 3) % 17 - 8);
    for (int i = 0; i < 128; i++) {
        b[i] = narrow(T(), nb[i] = (i * 5 + i / 8) % 13 - 6);
        c[i] = (float)(i - 50);
    }
    ZT_LAUNCH(mma_kernel<T>, 1, WARP, 0, 0, a, b, c);
    CU(cudaGetLastError());
    CU(cudaDeviceSynchronize());
    for (int i = 0; i < 128; i++) {
        int want = i - 50;
        for (int k = 0; k < 16; k++)
            want += na[i / 8 * 16 + k] * nb[k * 8 + i % 8];
        CHECK_INT((int)c[i], want);
    }
    cudaFreeHost(a);
    cudaFreeHost(b);
    cudaFreeHost(c);
}

TEST(mma_of_bf16)
{
    check_mma<__nv_bfloat16>();
}

TEST(mma_of_f16)
{
    check_mma<__half>();
}

/* ---- ldmatrix ---- */

enum { LD = 40 }; /* elements from row to row in shared memory; a row is 32 */

/* Four 8 x 8 matrices side by side, element (i, j) of number m being 1000 m + 10 i + j. */
__global__ void ldmatrix_kernel(uint32_t *plain, uint32_t *trans)
{
    ZT_SHARED(uint4, storage, 8 * LD * 2 / 16);
    uint16_t *x = (uint16_t *)storage;
    const int lane = (int)threadIdx.x;
    for (int i = lane; i < 8 * 32; i += WARP)
        x[i / 32 * LD + i % 32] = (uint16_t)(i % 32 / 8 * 1000 + i / 32 * 10 + i % 8);
    __syncwarp();
    uint32_t r[4];
    zt_ldmatrix_x4(r, x + lane % 8 * LD + lane / 8 * 8);
    for (int m = 0; m < 4; m++)
        plain[lane * 4 + m] = r[m];
    zt_ldmatrix_x4_trans(r, x + lane % 8 * LD + lane / 8 * 8);
    for (int m = 0; m < 4; m++)
        trans[lane * 4 + m] = r[m];
}
ZT_SIM_REGISTER(ldmatrix_kernel)

TEST(ldmatrix)
{
    uint32_t *plain = shared_memory<uint32_t>(WARP * 4), *trans = shared_memory<uint32_t>(WARP * 4);
    ZT_LAUNCH(ldmatrix_kernel, 1, WARP, 0, 0, plain, trans);
    CU(cudaGetLastError());
    CU(cudaDeviceSynchronize());
    for (int l = 0; l < WARP; l++)
        for (int m = 0; m < 4; m++)
            for (int e = 0; e < 2; e++) {
                const int i = l / 4, j = l % 4 * 2 + e;
                CHECK_INT(plain[l * 4 + m] >> 16 * e & 0xffff, 1000 * m + 10 * i + j);
                CHECK_INT(trans[l * 4 + m] >> 16 * e & 0xffff, 1000 * m + 10 * j + i);
            }
    cudaFreeHost(plain);
    cudaFreeHost(trans);
}

/* ---- cp.async ---- */

/* Thread t copies unit t of `wide` and of `narrow`, every third one as not there; out in reverse. */
__global__ void copy_kernel(const uint4 *wide, const uint32_t *narrow, uint4 *wide_out,
                            uint32_t *narrow_out)
{
    ZT_SHARED(uint4, a, 64);
    ZT_SHARED(uint32_t, b, 64);
    const int t = (int)threadIdx.x;
    zt_cp_async_16(a + t, wide + t, t % 3 != 0);
    zt_cp_async_4(b + t, narrow + t, t % 3 != 0);
    zt_cp_async_wait();
    __syncthreads();
    wide_out[t] = a[63 - t];
    narrow_out[t] = b[63 - t];
}
ZT_SIM_REGISTER(copy_kernel)

TEST(cp_async)
{
    uint4 *wide = shared_memory<uint4>(64), *wide_out = shared_memory<uint4>(64);
    uint32_t *narrow = shared_memory<uint32_t>(64), *narrow_out = shared_memory<uint32_t>(64);
    for (unsigned i = 0; i < 64; i++) {
        wide[i] = make_uint4(i + 1, i + 2, i + 3, i + 4);
        narrow[i] = i + 5;
    }
    ZT_LAUNCH(copy_kernel, 1, 64, 0, 0, wide, narrow, wide_out, narrow_out);
    CU(cudaGetLastError());
    CU(cudaDeviceSynchronize());
    for (unsigned t = 0; t < 64; t++) {
        const unsigned i = 63 - t, there = i % 3 != 0;
        CHECK_INT(wide_out[t].x, there * (i + 1));
        CHECK_INT(wide_out[t].y, there * (i + 2));
        CHECK_INT(wide_out[t].z, there * (i + 3));
        CHECK_INT(wide_out[t].w, there * (i + 4));
        CHECK_INT(narrow_out[t], there * (i + 5));
    }
    cudaFreeHost(wide);
    cudaFreeHost(wide_out);
    cudaFreeHost(narrow);
    cudaFreeHost(narrow_out);
}

/* ---- arithmetic ---- */

__global__ void exp2_kernel(const float *x, float *y)
{
    y[threadIdx.x] = zt_exp2(x[threadIdx.x]);
}
ZT_SIM_REGISTER(exp2_kernel)

TEST(exp2_within_two_ulp)
{
    float *x = shared_memory<float>(256), *y = shared_memory<float>(256);
    for (int i = 0; i < 255; i++)
        x[i] = -(float)(i * i) / 600 + 3;
    x[255] = -INFINITY;
    ZT_LAUNCH(exp2_kernel, 1, 256, 0, 0, x, y);
    CU(cudaGetLastError());
    CU(cudaDeviceSynchronize());
    for (int i = 0; i < 255; i++) {
        const double want = exp2((double)x[i]);
        CHECK_NEAR(y[i] / want, 1, 2.5e-7);
    }
    CHECK(y[255] == 0);
    cudaFreeHost(x);
    cudaFreeHost(y);
}

template <class T> __global__ void pack_kernel(const float *x, uint32_t *packed, float *back)
{
    const uint32_t u = zt_pack<T>(x[0], x[1]);
    const float2 v = zt_unpack<T>(u);
    *packed = u;
    back[0] = v.x;
    back[1] = v.y;
}
ZT_SIM_REGISTER(pack_kernel<__nv_bfloat16>)
ZT_SIM_REGISTER(pack_kernel<__half>)

template <class T> static void check_pack(uint16_t lo, uint16_t hi, float back_lo, float back_hi)
{
    float *x = shared_memory<float>(2), *back = shared_memory<float>(2);
    uint32_t *packed = shared_memory<uint32_t>(1);
    x[0] = 1.2345678f;
    x[1] = -1e-3f;
    ZT_LAUNCH(pack_kernel<T>, 1, 1, 0, 0, x, packed, back);
    CU(cudaGetLastError());
    CU(cudaDeviceSynchronize());
    CHECK_INT(*packed, (uint32_t)hi << 16 | lo);
    CHECK(back[0] == back_lo && back[1] == back_hi);
    cudaFreeHost(x);
    cudaFreeHost(back);
    cudaFreeHost(packed);
}

TEST(pack_rounds_and_puts_the_first_one_low)
{
    const uint16_t b0 = zt_f32_to_bf16(1.2345678f), b1 = zt_f32_to_bf16(-1e-3f);
    const uint16_t h0 = zt_f32_to_f16(1.2345678f), h1 = zt_f32_to_f16(-1e-3f);
    check_pack<__nv_bfloat16>(b0, b1, zt_bf16_to_f32(b0), zt_bf16_to_f32(b1));
    RETURN_IF_FAILED();
    check_pack<__half>(h0, h1, zt_f16_to_f32(h0), zt_f16_to_f32(h1));
}

TEST_MAIN()
