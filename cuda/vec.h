/*
 * vec.h: elements of any float type as fp32, eight at a time: 16 bytes of a 16-bit type, twice 16 of
 * fp32. A kernel is a template over the kind of its tensors:
 *
 *   typed<T>  all of one type, and every group of eight begins at 16 bytes
 *   any_view  what is left: mixed types, rows that begin anywhere. Slower, right for any shape
 *
 * with_views() chooses. Both have load() and store() of the n <= 8 elements that a group really has.
 */
#ifndef ZT_CUDA_VEC_H
#define ZT_CUDA_VEC_H

#include "kernels.h"
#include "port.h"

constexpr int VEC = 8;

/* ---- one element ---- */

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}
static __device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static __device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}

static __device__ __forceinline__ void from_float(float x, float *out)
{
    *out = x;
}
static __device__ __forceinline__ void from_float(float x, __nv_bfloat16 *out)
{
    *out = __float2bfloat16_rn(x);
}
static __device__ __forceinline__ void from_float(float x, __half *out)
{
    *out = __float2half_rn(x);
}

/* ---- eight elements that begin at 16 bytes ---- */

static __device__ __forceinline__ void load8(const float *p, float (&v)[VEC])
{
    float4 a = reinterpret_cast<const float4 *>(p)[0], b = reinterpret_cast<const float4 *>(p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

static __device__ __forceinline__ void store8(float *p, const float (&v)[VEC])
{
    reinterpret_cast<float4 *>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4 *>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

/* 16-bit types: as one uint4. */
union pack8 {
    uint4 raw;
    __nv_bfloat162 bf16[4];
    __half2 f16[4];
    __device__ pack8() : raw()
    {
    }
};

static __device__ __forceinline__ void load8(const __nv_bfloat16 *p, float (&v)[VEC])
{
    pack8 u;
    u.raw = *reinterpret_cast<const uint4 *>(p);
#pragma unroll
    for (int i = 0; i < VEC / 2; i++) {
        float2 f = __bfloat1622float2(u.bf16[i]);
        v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
}

static __device__ __forceinline__ void store8(__nv_bfloat16 *p, const float (&v)[VEC])
{
    pack8 u;
#pragma unroll
    for (int i = 0; i < VEC / 2; i++)
        u.bf16[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    *reinterpret_cast<uint4 *>(p) = u.raw;
}

static __device__ __forceinline__ void load8(const __half *p, float (&v)[VEC])
{
    pack8 u;
    u.raw = *reinterpret_cast<const uint4 *>(p);
#pragma unroll
    for (int i = 0; i < VEC / 2; i++) {
        float2 f = __half22float2(u.f16[i]);
        v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
}

static __device__ __forceinline__ void store8(__half *p, const float (&v)[VEC])
{
    pack8 u;
#pragma unroll
    for (int i = 0; i < VEC / 2; i++)
        u.f16[i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
    *reinterpret_cast<uint4 *>(p) = u.raw;
}

/* ---- views of a tensor ---- */

/* The first n elements of a group, one by one; the others are 0. */
template <class T>
static __device__ __forceinline__ void load_part(const T *p, int n, float (&v)[VEC])
{
#pragma unroll
    for (int j = 0; j < VEC; j++)
        v[j] = j < n ? to_float(p[j]) : 0.0f;
}

template <class T>
static __device__ __forceinline__ void store_part(T *p, int n, const float (&v)[VEC])
{
#pragma unroll
    for (int j = 0; j < VEC; j++)
        if (j < n)
            from_float(v[j], p + j);
}

template <class T> struct typed {
    T *p;

    __device__ __forceinline__ void load(int64_t at, int n, float (&v)[VEC]) const
    {
        if (n == VEC)
            load8(p + at, v);
        else
            load_part(p + at, n, v);
    }
    __device__ __forceinline__ void store(int64_t at, int n, const float (&v)[VEC]) const
    {
        if (n == VEC)
            store8(p + at, v);
        else
            store_part(p + at, n, v);
    }
    __device__ __forceinline__ float get(int64_t at) const
    {
        return to_float(p[at]);
    }
    __device__ __forceinline__ void set(int64_t at, float x) const
    {
        from_float(x, p + at);
    }
};

struct any_view {
    void *p;
    int dtype;
    bool vec; /* groups of eight begin at 16 bytes */

    /* f(pointer of the type) */
    template <class F> __device__ __forceinline__ void with(F f) const
    {
        if (dtype == ZT_F32)
            f(static_cast<float *>(p));
        else if (dtype == ZT_BF16)
            f(static_cast<__nv_bfloat16 *>(p));
        else
            f(static_cast<__half *>(p));
    }
    __device__ __forceinline__ void load(int64_t at, int n, float (&v)[VEC]) const
    {
        with([&](auto *q) {
            if (vec && n == VEC)
                load8(q + at, v);
            else
                load_part(q + at, n, v);
        });
    }
    __device__ __forceinline__ void store(int64_t at, int n, const float (&v)[VEC]) const
    {
        with([&](auto *q) {
            if (vec && n == VEC)
                store8(q + at, v);
            else
                store_part(q + at, n, v);
        });
    }
    __device__ __forceinline__ float get(int64_t at) const
    {
        float x;
        with([&](auto *q) { x = to_float(q[at]); });
        return x;
    }
    __device__ __forceinline__ void set(int64_t at, float x) const
    {
        with([&](auto *q) { from_float(x, q + at); });
    }
};

/* How many of the eight elements from `begin` on lie before `end`. */
static __device__ __forceinline__ int group_elems(int64_t begin, int64_t end)
{
    int64_t n = end - begin;
    return n >= VEC ? (int)VEC : n > 0 ? (int)n : 0;
}

/* ---- the choice, on the host ---- */

template <class A> struct view_kind {
    typedef A view;
    bool vec;
};

template <class T> static inline typed<T> make_view(view_kind<typed<T>>, struct zt_ref r)
{
    return typed<T>{static_cast<T *>(r.ptr)};
}

static inline any_view make_view(view_kind<any_view> k, struct zt_ref r)
{
    return any_view{r.ptr, (int)r.dtype, k.vec};
}

static inline bool is_vec(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/*
 * What tensors have in common; absent ones do not count. `row_elems`: their rows begin at multiples of it;
 * a multiple of 8 keeps groups of eight at 16 bytes in every row.
 */
struct common_layout {
    bool vec, same;
    enum zt_dtype dtype;
};

template <int N>
static inline struct common_layout common_layout(const struct zt_ref (&refs)[N], int64_t row_elems)
{
    struct common_layout c = {row_elems % VEC == 0, true, ZT_F32};
    bool first = true;
    for (const struct zt_ref &r : refs) {
        if (!r.ptr)
            continue;
        c.vec = c.vec && is_vec(r.ptr);
        c.same = c.same && (first || r.dtype == c.dtype);
        c.dtype = r.dtype;
        first = false;
    }
    return c;
}

/* f(view_kind<...>) with the fastest kind of views that fits; returns what f does. */
template <class F> static inline cudaError_t with_views(struct common_layout c, F f)
{
    if (!c.vec || !c.same)
        return f(view_kind<any_view>{c.vec});
    if (c.dtype == ZT_F32)
        return f(view_kind<typed<float>>{true});
    if (c.dtype == ZT_BF16)
        return f(view_kind<typed<__nv_bfloat16>>{true});
    return f(view_kind<typed<__half>>{true});
}

/* f(typed view of r), whatever its type. */
template <class F> static inline cudaError_t with_types(struct zt_ref r, F f)
{
    if (r.dtype == ZT_F32)
        return f(typed<float>{static_cast<float *>(r.ptr)});
    if (r.dtype == ZT_BF16)
        return f(typed<__nv_bfloat16>{static_cast<__nv_bfloat16 *>(r.ptr)});
    return f(typed<__half>{static_cast<__half *>(r.ptr)});
}

/* For kernels that are templates over the kind of view alone. */
#define REGISTER_VIEWS(kernel)                                                                     \
    ZT_SIM_REGISTER((kernel<typed<float>>))                                                        \
    ZT_SIM_REGISTER((kernel<typed<__nv_bfloat16>>))                                                \
    ZT_SIM_REGISTER((kernel<typed<__half>>))                                                       \
    ZT_SIM_REGISTER((kernel<any_view>))

/* Blocks of a kernel whose threads stride over `items` pieces of work: enough to fill the device. */
static inline unsigned grid_for(int64_t items, int64_t per_block, int n_sms, int blocks_per_sm)
{
    int64_t need = (items + per_block - 1) / per_block, most = (int64_t)n_sms * blocks_per_sm;
    return (unsigned)(need < 1 ? 1 : need < most ? need : most);
}

#endif
