#include "base/llmc.h"

enum { MAGIC = 20240326, VERSION_F32 = 3, VERSION_BF16 = 5, MAX_SIZE = 1 << 28 };

static int32_t field(const void *bytes, int i)
{
    const unsigned char *p = (const unsigned char *)bytes + 4 * i;
    return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                     (uint32_t)p[3] << 24);
}

bool zt_is_llmc_model(const void *bytes, size_t n)
{
    return n >= 4 && field(bytes, 0) == MAGIC;
}

static int check_version(const char *name, int32_t version, enum zt_dtype *dtype,
                         struct zt_err *err)
{
    *dtype = version == VERSION_BF16 ? ZT_BF16 : ZT_F32;
    if (version == VERSION_F32 || version == VERSION_BF16)
        return 0;
    return zt_err_set(err, ZT_EINPUT,
                      "%s: version %d of llm.c's model files; %d (fp32) and %d (bf16) are read: "
                      "write it again with today's llm.c",
                      name, version, VERSION_F32, VERSION_BF16);
}

static int check_sizes(const char *name, const struct zt_llmc_header *h, struct zt_err *err)
{
    const struct {
        const char *what;
        int64_t value;
    } sizes[] = {{"the longest sequence", h->n_positions},
                 {"the vocabulary", h->vocab_size},
                 {"the number of layers", h->n_layer},
                 {"the number of heads", h->n_head},
                 {"the width", h->n_embd},
                 {"the padded vocabulary", h->padded_vocab_size}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(sizes); i++) {
        if (sizes[i].value < 1 || sizes[i].value > MAX_SIZE)
            return zt_err_set(err, ZT_EINPUT, "%s: %s is %lld by its header; damaged", name,
                              sizes[i].what, (long long)sizes[i].value);
    }
    if (h->padded_vocab_size < h->vocab_size)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: the header says that %lld tokens are padded to %lld; damaged", name,
                          (long long)h->vocab_size, (long long)h->padded_vocab_size);
    if (h->n_embd % h->n_head)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: the header says that the width is %lld, which %lld heads do not "
                          "divide; damaged",
                          name, (long long)h->n_embd, (long long)h->n_head);
    return 0;
}

int zt_llmc_header(const char *name, const void *bytes, size_t n, struct zt_llmc_header *h,
                   struct zt_err *err)
{
    memset(h, 0, sizeof *h);
    if (n < ZT_LLMC_HEADER_BYTES)
        return zt_err_set(err, ZT_EINPUT, "%s: %zu bytes, but the header of an llm.c file has %d",
                          name, n, ZT_LLMC_HEADER_BYTES);
    if (!zt_is_llmc_model(bytes, n))
        return zt_err_set(err, ZT_EINPUT, "%s: magic number %d; llm.c's model files have %d", name,
                          field(bytes, 0), MAGIC);
    int rc = check_version(name, field(bytes, 1), &h->dtype, err);
    if (rc)
        return rc;
    h->n_positions = field(bytes, 2);
    h->vocab_size = field(bytes, 3);
    h->n_layer = field(bytes, 4);
    h->n_head = field(bytes, 5);
    h->n_embd = field(bytes, 6);
    h->padded_vocab_size = field(bytes, 7);
    return check_sizes(name, h, err);
}
