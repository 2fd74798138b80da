/* A safetensors file: whatever is accepted can be read to the last element. */
#include "ckpt/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct zt_st_file f;
    struct zt_err err;
    if (zt_st_parse("x", data, n, &f, &err))
        return 0;
    size_t bytes = 0;
    for (int i = 0; i < f.n_tensors; i++) {
        const struct zt_st_tensor *t = &f.tensors[i];
        bytes += t->bytes;
        ZT_ASSERT(t->bytes == 0 || ((const uint8_t *)t->data >= data &&
                                    (const uint8_t *)t->data + t->bytes <= data + n));
        for (int64_t j = 0; t->dtype >= 0 && j < t->n_elems; j += 100) {
            float out[100];
            zt_st_read_f32(t, j, ZT_MIN((int64_t)100, t->n_elems - j), out);
        }
    }
    ZT_ASSERT_CMP(bytes, <=, n);
    zt_st_close(&f);
    return 0;
}
