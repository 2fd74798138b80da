/*
 * intrinsics.h: CUDA's device functions of one thread: memory accesses with cache hints, atomics, bits,
 * arithmetic with a given rounding, fast approximations. A part of device.h.
 *
 * The approximations (__expf, __fdividef, ...) are computed exactly rounded or by libm: a tolerance
 * that holds here need not hold on a GPU.
 */
#ifndef CUSIM_INTRINSICS_H
#define CUSIM_INTRINSICS_H

#include <algorithm>
#include <limits>

using std::max;
using std::min;

/* ---- Loads and stores with cache hints ---- */

#define CUSIM_LOAD(name)                                                                           \
    template <class T> static inline T name(const T *p)                                            \
    {                                                                                              \
        return *p;                                                                                 \
    }
CUSIM_LOAD(__ldg)
CUSIM_LOAD(__ldca)
CUSIM_LOAD(__ldcg)
CUSIM_LOAD(__ldcs)
CUSIM_LOAD(__ldlu)
CUSIM_LOAD(__ldcv)
#undef CUSIM_LOAD

#define CUSIM_STORE(name)                                                                          \
    template <class T> static inline void name(T *p, std::type_identity_t<T> v)                    \
    {                                                                                              \
        *p = v;                                                                                    \
    }
CUSIM_STORE(__stwb)
CUSIM_STORE(__stcg)
CUSIM_STORE(__stcs)
CUSIM_STORE(__stwt)
#undef CUSIM_STORE

/* ---- Atomics: relaxed, unless a fence was executed before ---- */

template <class T, class F> static inline T cusim_atomic(T *p, F f)
{
    T old, next;
    cusim_atomic_order(p);
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do {
        next = f(old);
    } while (!__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    cusim_atomic_order(p);
    return old;
}

#define CUSIM_ATOMIC(name, expression)                                                             \
    template <class T> static inline T name(T *p, std::type_identity_t<T> v)                       \
    {                                                                                              \
        return cusim_atomic(p, [v](T a) { return (T)(expression); });                              \
    }
CUSIM_ATOMIC(atomicAdd, a + v)
CUSIM_ATOMIC(atomicSub, a - v)
CUSIM_ATOMIC(atomicMin, a < v ? a : v)
CUSIM_ATOMIC(atomicMax, a > v ? a : v)
CUSIM_ATOMIC(atomicAnd, a &v)
CUSIM_ATOMIC(atomicOr, a | v)
CUSIM_ATOMIC(atomicXor, a ^ v)
CUSIM_ATOMIC(atomicInc, a >= v ? 0 : a + 1)
CUSIM_ATOMIC(atomicDec, a == 0 || a > v ? v : a - 1)
#undef CUSIM_ATOMIC

template <class T> static inline T atomicExch(T *p, std::type_identity_t<T> v)
{
    return cusim_atomic(p, [v](T) { return v; });
}

template <class T>
static inline T atomicCAS(T *p, std::type_identity_t<T> expected, std::type_identity_t<T> v)
{
    cusim_atomic_order(p);
    __atomic_compare_exchange(p, &expected, &v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    cusim_atomic_order(p);
    return expected;
}

/* ---- Bits ---- */

template <class To, class From> static inline To cusim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline unsigned __float_as_uint(float x)
{
    return cusim_bits<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return cusim_bits<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return cusim_bits<float>(x);
}
static inline float __int_as_float(int x)
{
    return cusim_bits<float>(x);
}
static inline long long __double_as_longlong(double x)
{
    return cusim_bits<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return cusim_bits<double>(x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++)
        r |= (x >> i & 1) << (31 - i);
    return r;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    unsigned long long xy = (unsigned long long)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= (unsigned)(xy >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n)
{
    return (unsigned)((((unsigned long long)hi << 32 | lo) << (n & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n)
{
    return (unsigned)(((unsigned long long)hi << 32 | lo) >> (n & 31));
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

/* ---- Arithmetic: rounded to nearest even, never contracted ---- */

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

/* What must not be contracted into an fma goes through a barrier for the optimizer. */
#define CUSIM_EXACT(name, type, expression)                                                        \
    static inline type name(type a, type b)                                                        \
    {                                                                                              \
        type r = expression;                                                                       \
        __asm__("" : "+x"(r));                                                                     \
        return r;                                                                                  \
    }
#if defined(__aarch64__)
#undef CUSIM_EXACT
#define CUSIM_EXACT(name, type, expression)                                                        \
    static inline type name(type a, type b)                                                        \
    {                                                                                              \
        type r = expression;                                                                       \
        __asm__("" : "+w"(r));                                                                     \
        return r;                                                                                  \
    }
#endif
CUSIM_EXACT(__fadd_rn, float, a + b)
CUSIM_EXACT(__fsub_rn, float, a - b)
CUSIM_EXACT(__fmul_rn, float, a *b)
CUSIM_EXACT(__fdiv_rn, float, a / b)
CUSIM_EXACT(__dadd_rn, double, a + b)
CUSIM_EXACT(__dsub_rn, double, a - b)
CUSIM_EXACT(__dmul_rn, double, a *b)
CUSIM_EXACT(__ddiv_rn, double, a / b)
#undef CUSIM_EXACT

static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __frsqrt_rn(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; /* NaN gives 0, as on the GPU */
}
static inline float rsqrtf(float x)
{
    return (float)(1.0 / sqrt((double)x));
}

/* glibc declares these names itself: macros, not functions. */
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)

/* ---- Conversions ---- */

/* Out of range saturates, NaN gives 0. */
template <class To, class From> static inline To cusim_to_int(From x)
{
    if (x != x)
        return 0;
    const double lo = (double)std::numeric_limits<To>::min();
    const double hi = -lo > 0 ? -lo : 2.0 * (double)(std::numeric_limits<To>::max() / 2 + 1);
    return x <= (From)lo   ? std::numeric_limits<To>::min()
           : x >= (From)hi ? std::numeric_limits<To>::max()
                           : (To)x;
}

#define CUSIM_TO_INT(name, to, from, round)                                                        \
    static inline to name(from x)                                                                  \
    {                                                                                              \
        return cusim_to_int<to>(round(x));                                                         \
    }
CUSIM_TO_INT(__float2int_rn, int, float, nearbyintf)
CUSIM_TO_INT(__float2int_rz, int, float, truncf)
CUSIM_TO_INT(__float2int_rd, int, float, floorf)
CUSIM_TO_INT(__float2int_ru, int, float, ceilf)
CUSIM_TO_INT(__float2uint_rn, unsigned, float, nearbyintf)
CUSIM_TO_INT(__float2uint_rz, unsigned, float, truncf)
CUSIM_TO_INT(__float2ll_rn, long long, float, nearbyintf)
CUSIM_TO_INT(__double2int_rn, int, double, nearbyint)
CUSIM_TO_INT(__double2ll_rn, long long, double, nearbyint)
#undef CUSIM_TO_INT

static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}
static inline float __ll2float_rn(long long x)
{
    return (float)x;
}
static inline float __double2float_rn(double x)
{
    return (float)x;
}

#endif
