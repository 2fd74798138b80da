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

float zt_f16_to_f32(uint16_t h);
uint16_t zt_f32_to_f16(float f);

#endif
