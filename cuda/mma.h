/*
 * mma.h: the PTX that the attention kernels are made of, each wrapper beside its twin for the
 * simulator: mma.sync m16n8k16, ldmatrix, cp.async, ex2.approx (PTX ISA 8.0, 9.7).
 *
 * Fragments of mma.m16n8k16 by lane, with g = lane / 4 and t = lane % 4; a register holds two
 * 16-bit elements, the lower one in the lower half:
 *   A (16 x 16)  a[0] (g, 2t..2t+1)  a[1] (g + 8, 2t..)  a[2] (g, 2t + 8..)  a[3] (g + 8, 2t + 8..)
 *   B (16 x 8)   b0 (2t..2t+1, g)    b1 (2t + 8.., g)
 *   C (16 x 8)   c[0..1] (g, 2t..2t+1)   c[2..3] (g + 8, 2t..2t+1)
 * So C of one product, packed, is A of the next: a[0..1] of columns 0..7, a[2..3] of 8..15.
 *
 * ldmatrix.x4 reads four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8
 * (16 bytes, aligned) and gets elements (l / 4, 2 (l % 4)..) of each; with .trans of the transposed.
 *
 * All of these are for whole warps. A thread waits for all of its copies before it ends.
 */
#ifndef ZT_CUDA_MMA_H
#define ZT_CUDA_MMA_H

#include "port.h"

/* Two floats, rounded to nearest, as the two halves of a register. */
template <class T> static __device__ __forceinline__ uint32_t zt_pack(float lo, float hi);

template <> __device__ __forceinline__ uint32_t zt_pack<__nv_bfloat16>(float lo, float hi)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

template <> __device__ __forceinline__ uint32_t zt_pack<__half>(float lo, float hi)
{
    __half2 v = __floats2half2_rn(lo, hi);
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

/* And back. */
template <class T> static __device__ __forceinline__ float2 zt_unpack(uint32_t u);

template <> __device__ __forceinline__ float2 zt_unpack<__nv_bfloat16>(uint32_t u)
{
    return make_float2(__uint_as_float(u << 16), __uint_as_float(u & 0xffff0000u));
}

template <> __device__ __forceinline__ float2 zt_unpack<__half>(uint32_t u)
{
    __half2_raw v;
    v.x = (unsigned short)u;
    v.y = (unsigned short)(u >> 16);
    return __half22float2(v);
}

#ifndef ZT_CUSIM

/* c += a b */
template <class T>
static __device__ __forceinline__ void zt_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1);

#define ZT_MMA_OF(type, name)                                                                      \
    template <>                                                                                    \
    __device__ __forceinline__ void zt_mma<type>(float(&c)[4], const uint32_t(&a)[4], uint32_t b0, \
                                                 uint32_t b1)                                      \
    {                                                                                              \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0,%1,%2,%3}, "          \
            "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                               \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                       \
    }

ZT_MMA_OF(__nv_bfloat16, "bf16")
ZT_MMA_OF(__half, "f16")
#undef ZT_MMA_OF

static __device__ __forceinline__ uint32_t zt_smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void zt_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(zt_smem_addr(row))
                 : "memory");
}

static __device__ __forceinline__ void zt_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(zt_smem_addr(row))
                 : "memory");
}

/* 16 bytes from global to shared memory, both aligned, past the L1; zeros where not `valid`. */
static __device__ __forceinline__ void zt_cp_async_16(void *dst, const void *src, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(zt_smem_addr(dst)), "l"(src),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

/* The same of 4 bytes. */
static __device__ __forceinline__ void zt_cp_async_4(void *dst, const void *src, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(zt_smem_addr(dst)), "l"(src),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

/* All copies of this thread have arrived, for this thread: a barrier makes them so for others. */
static __device__ __forceinline__ void zt_cp_async_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* 2^x, within 2 ulp; 0 of -infinity. */
static __device__ __forceinline__ float zt_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else /* ZT_CUSIM */

#include "base/dtype.h"

static inline float zt_sim_f32(__nv_bfloat16, uint32_t h)
{
    return zt_bf16_to_f32((uint16_t)h);
}

static inline float zt_sim_f32(__half, uint32_t h)
{
    return zt_f16_to_f32((uint16_t)h);
}

struct zt_sim_mma {
    uint32_t a[4], b[2];
    float c[4];
};

/* Products in fp32, added up in the order of k; a tensor core may add in another order. */
template <class T>
static CUSIM_QUIET void zt_sim_mma_fn(unsigned, const void *const in[32], void *const out[32], int)
{
    float a[16][16], b[16][8], c[16][8];
    for (int l = 0; l < 32; l++) {
        const zt_sim_mma *m = (const zt_sim_mma *)in[l];
        const int g = l / 4, t = l % 4 * 2;
        for (int e = 0; e < 2; e++) {
            for (int r = 0; r < 4; r++)
                a[g + r % 2 * 8][t + e + r / 2 * 8] = zt_sim_f32(T(), m->a[r] >> 16 * e & 0xffff);
            for (int r = 0; r < 2; r++)
                b[t + e + r * 8][g] = zt_sim_f32(T(), m->b[r] >> 16 * e & 0xffff);
        }
        for (int r = 0; r < 4; r++)
            c[g + r / 2 * 8][t + r % 2] = m->c[r];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                c[i][j] += a[i][k] * b[k][j];
    for (int l = 0; l < 32; l++)
        for (int r = 0; r < 4; r++)
            ((float *)out[l])[r] = c[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2];
}

template <class T>
static inline void zt_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    zt_sim_mma in = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
    cusim_warp_op(0xffffffffu, CUSIM_OP_MMA, &in, c, zt_sim_mma_fn<T>, 0, __FILE__, __LINE__);
}

static CUSIM_QUIET void zt_sim_ldmatrix_fn(unsigned, const void *const in[32], void *const out[32],
                                           int trans)
{
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < 4; m++) {
            uint32_t u = 0;
            for (int e = 0; e < 2; e++) {
                int row = l / 4, col = l % 4 * 2 + e;
                const uint16_t *from = (const uint16_t *)in[8 * m + (trans ? col : row)];
                u |= (uint32_t)from[trans ? row : col] << 16 * e;
            }
            ((uint32_t *)out[l])[m] = u;
        }
}

/* Each lane reads its own row, so that the sanitizers see who reads what. */
static inline void zt_sim_ldmatrix(uint32_t (&r)[4], const void *row, int trans)
{
    uint16_t mine[8];
    if ((uintptr_t)row % 16)
        cusim_trap("ldmatrix of an address that is not aligned", __FILE__, __LINE__);
    memcpy(mine, row, sizeof mine);
    cusim_warp_op(0xffffffffu, CUSIM_OP_LDMATRIX, mine, r, zt_sim_ldmatrix_fn, trans, __FILE__,
                  __LINE__);
}

static inline void zt_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    zt_sim_ldmatrix(r, row, 0);
}

static inline void zt_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    zt_sim_ldmatrix(r, row, 1);
}

/*
 * Copies under way, by thread of the block. They happen when the thread waits for them, so that a
 * missing wait gives the NaNs that shared memory begins with.
 */
struct zt_sim_copy {
    void *dst;
    const void *src;
    unsigned bytes, valid;
};
struct zt_sim_copies {
    enum { MAX = 256 };
    int n;
    zt_sim_copy copy[MAX];
};

/* Of the threads of a block; as long as the simulator's thread. */
struct zt_sim_copies_table {
    zt_sim_copies *of;
    ~zt_sim_copies_table()
    {
        free(of);
    }
};

static CUSIM_QUIET zt_sim_copies *zt_sim_copies_of_thread()
{
    static thread_local zt_sim_copies_table all = {nullptr};
    if (!all.of)
        all.of = (zt_sim_copies *)calloc(1024, sizeof *all.of);
    return &all.of[threadIdx.x];
}

static CUSIM_QUIET void zt_sim_cp_async(void *dst, const void *src, unsigned bytes, bool valid)
{
    zt_sim_copies *c = zt_sim_copies_of_thread();
    if ((uintptr_t)dst % bytes || (uintptr_t)src % bytes)
        cusim_trap("cp.async of an address that is not aligned", __FILE__, __LINE__);
    if (c->n == zt_sim_copies::MAX)
        cusim_trap("more copies under way than the twin of cp.async holds", __FILE__, __LINE__);
    c->copy[c->n].dst = dst;
    c->copy[c->n].src = src;
    c->copy[c->n].bytes = bytes;
    c->copy[c->n++].valid = valid;
}

static CUSIM_QUIET bool zt_sim_next_copy(zt_sim_copy *out)
{
    zt_sim_copies *c = zt_sim_copies_of_thread();
    if (!c->n)
        return false;
    *out = c->copy[--c->n];
    return true;
}

static inline void zt_cp_async_16(void *dst, const void *src, bool valid)
{
    zt_sim_cp_async(dst, src, 16, valid);
}

static inline void zt_cp_async_4(void *dst, const void *src, bool valid)
{
    zt_sim_cp_async(dst, src, 4, valid);
}

static inline void zt_cp_async_wait(void)
{
    for (zt_sim_copy c; zt_sim_next_copy(&c);) {
        if (c.valid)
            memcpy(c.dst, c.src, c.bytes);
        else
            memset(c.dst, 0, c.bytes);
    }
}

static inline float zt_exp2(float x)
{
    return exp2f(x);
}

#endif
#endif
