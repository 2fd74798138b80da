#include "base/dtype.h"

const char *zt_dtype_name(enum zt_dtype t)
{
    static const char *const names[ZT_N_DTYPES] = {"fp32",  "bf16",  "fp16",
                                                   "int32", "int64", "fp64"};
    return t < ZT_N_DTYPES ? names[t] : "?";
}

float zt_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 0x1f, frac = h & 0x3ffu;
    if (exp == 0x1f)
        return zt_bits_f32(sign | 0x7f800000u | frac << 13);
    if (exp)
        return zt_bits_f32(sign | (exp + 112) << 23 | frac << 13);
    float tiny = (float)frac * (1.0f / 16777216.0f); /* subnormal: frac * 2^-24 */
    return sign ? -tiny : tiny;
}

uint16_t zt_f32_to_f16(float f)
{
    uint32_t u = zt_f32_bits(f), sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (mag >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x38800000u) { /* subnormal in fp16: adding 0.5 lines the bits up and rounds */
        float aligned = zt_bits_f32(mag) + 0.5f;
        return (uint16_t)(sign | (zt_f32_bits(aligned) - 0x3f000000u));
    }
    uint32_t rounded = mag + 0xfffu + (mag >> 13 & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}
