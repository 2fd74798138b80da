/*
 * dtype.h: element types of tensors and files, and the portable scalar conversions (round to nearest,
 * ties to even; NaN stays NaN, quiet). Vectorised ones live with the kernels.
 */
#ifndef ZT_BASE_DTYPE_H
#define ZT_BASE_DTYPE_H

#include "base/compat.h"

enum zt_dtype { ZT_F32, ZT_BF16, ZT_F16, ZT_I32, ZT_I64, ZT_F64, ZT_N_DTYPES };

static inline size_t zt_dtype_bytes(enum zt_dtype t)
{
    static const unsigned char bytes[ZT_N_DTYPES] = {4, 2, 2, 4, 8, 8};
    return bytes[t];
}

const char *zt_dtype_name(enum zt_dtype t); /* "fp32", "bf16", ... */

static inline uint32_t zt_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float zt_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float zt_bf16_to_f32(uint16_t h)
{
    return zt_bits_f32((uint32_t)h << 16);
}

static inline uint16_t zt_f32_to_bf16(float f)
{
    uint32_t u = zt_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40); /* NaN: keep it one */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* What F16C and NEON do, bit for bit: a NaN keeps the bits that fit and becomes quiet. */
static inline float zt_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fffu;
    /* The bits read as fp32 are 2^-112 of the value, also where fp16 is subnormal. */
    uint32_t finite = zt_f32_bits(zt_bits_f32(mag << 13) * 0x1p112f);
    uint32_t special = 0x7f800000u | mag << 13 | (mag > 0x7c00u ? 0x400000u : 0);
    return zt_bits_f32(sign | (mag >= 0x7c00u ? special : finite));
}

static inline uint16_t zt_f32_to_f16(float f)
{
    uint32_t u = zt_f32_bits(f), sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;
    /* Subnormal in fp16: adding 0.5 lines the bits up and rounds. */
    uint32_t tiny = zt_f32_bits(zt_bits_f32(mag) + 0.5f) - 0x3f000000u;
    uint32_t normal = (mag + 0xfffu + (mag >> 13 & 1) - 0x38000000u) >> 13;
    uint32_t nan = 0x7e00u | (mag >> 13 & 0x3ffu);
    uint32_t h = mag < 0x38800000u ? tiny : normal;
    h = mag >= 0x477ff000u ? 0x7c00u : h; /* 65520 and above round to infinity */
    h = mag > 0x7f800000u ? nan : h;
    return (uint16_t)(sign | h);
}

#endif
