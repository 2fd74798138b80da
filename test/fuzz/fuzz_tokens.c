/* Token files: the first byte chooses the format and the vocabulary, the rest is the file. */
#include "data/token_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    enum zt_data_format format = (enum zt_data_format)(data[0] % 4);
    int64_t vocab_size = data[0] & 4 ? 50257 : 256;
    const char *name = data[0] & 8 ? "x.bin" : "x";
    struct zt_token_file f;
    struct zt_err err;
    if (zt_token_file_parse(name, data + 1, n - 1, format, &f, &err))
        return 0;
    ZT_ASSERT_CMP(f.n_tokens * f.token_bytes, <=, n - 1);
    int32_t *out = malloc((size_t)f.n_tokens * sizeof *out + 1);
    if (!out)
        abort();
    int rc = zt_token_file_read(&f, 0, f.n_tokens, vocab_size, out, &err);
    for (int64_t i = 0; !rc && i < f.n_tokens; i++)
        ZT_ASSERT(out[i] >= 0 && out[i] < vocab_size);
    free(out);
    return 0;
}
