/*
 * half.h: runs of fp16 numbers to fp32 and back, by the CPU's own instructions where the file that
 * includes this is compiled for them. All ways give the same bits (base/dtype.h).
 *
 * bfloat16 needs no such thing: it is the upper half of an fp32, and the compiler vectorises that.
 */
#ifndef ZT_BASE_HALF_H
#define ZT_BASE_HALF_H

#include "base/dtype.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* For the log. */
#if defined(__AVX512F__)
#define ZT_HALF_BY "AVX-512"
#elif defined(__F16C__)
#define ZT_HALF_BY "F16C"
#elif defined(__aarch64__)
#define ZT_HALF_BY "NEON"
#else
#define ZT_HALF_BY "portable C"
#endif

#if defined(__x86_64__)
/* clang 14's __builtin_cpu_supports() does not know it. Whoever asks checks AVX too. */
static inline bool zt_cpu_has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_F16C;
}
#endif

static inline void zt_f16_widen(const uint16_t *restrict src, int64_t n, float *restrict dst)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(src + i))));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(src + i))));
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
        vst1q_f32(dst + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src + i))));
#endif
    for (; i < n; i++)
        dst[i] = zt_f16_to_f32(src[i]);
}

static inline void zt_f16_narrow(const float *restrict src, int64_t n, uint16_t *restrict dst)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((void *)(dst + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(src + i),
                                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(dst + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
        vst1_u16(dst + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(src + i))));
#endif
    for (; i < n; i++)
        dst[i] = zt_f32_to_f16(src[i]);
}

#endif
