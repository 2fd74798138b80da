#include "base/dtype.h"

const char *zt_dtype_name(enum zt_dtype t)
{
    static const char *const names[ZT_N_DTYPES] = {"fp32",  "bf16",  "fp16",
                                                   "int32", "int64", "fp64"};
    return t < ZT_N_DTYPES ? names[t] : "?";
}
