/* Megatron pairs: the first two bytes are the length of the index, which follows; the rest is the .bin. */
#include "data/megatron.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Each file on its own heap block, so that AddressSanitizer sees its ends. */
static unsigned char *copy_of(const uint8_t *data, size_t n)
{
    unsigned char *copy = malloc(n ? n : 1);
    if (!copy)
        abort();
    memcpy(copy, data, n);
    return copy;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2)
        return 0;
    size_t n_index = ZT_MIN((size_t)data[0] | (size_t)data[1] << 8, n - 2), n_bin = n - 2 - n_index;
    unsigned char *index = copy_of(data + 2, n_index), *tokens = copy_of(data + 2 + n_index, n_bin);
    struct zt_bytes x = {"x.idx", index, n_index}, b = {"x.bin", tokens, n_bin};
    struct zt_token_file f;
    struct zt_err err;
    if (zt_megatron_parse(&x, &b, &f, &err) == 0) {
        ZT_ASSERT_CMP(f.n_tokens * f.token_bytes, ==, n_bin);
        for (int64_t pos = 0, next; pos < f.n_tokens; pos = next) {
            int32_t token;
            next = zt_megatron_next_document(&f, pos);
            ZT_ASSERT(next > pos && next <= f.n_tokens);
            if (zt_token_file_read(&f, next - 1, 1, 50257, &token, &err) == 0)
                ZT_ASSERT(token >= 0 && token < 50257);
        }
    }
    free(index);
    free(tokens);
    return 0;
}
