#include "data/token_file.h"

enum { LLMC_HEADER_BYTES = 1024, SNIFF_BYTES = 8192 };

struct llmc_format {
    int32_t magic, version;
    int token_bytes;
    enum zt_token_kind kind;
};

static const struct llmc_format llmc_formats[] = {
    {20240520, 1, 2, ZT_TOKENS_GPT2},
    {20240801, 7, 4, ZT_TOKENS_LLAMA3},
};

static uint32_t le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t le16(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static const struct llmc_format *llmc_find(const void *bytes, size_t n)
{
    for (size_t i = 0; n >= 4 && i < ZT_ARRAY_LEN(llmc_formats); i++) {
        if (le32(bytes) == (uint32_t)llmc_formats[i].magic)
            return &llmc_formats[i];
    }
    return NULL;
}

bool zt_is_llmc(const void *bytes, size_t n)
{
    return llmc_find(bytes, n) != NULL;
}

bool zt_is_binary(const void *bytes, size_t n)
{
    return n && memchr(bytes, 0, ZT_MIN(n, (size_t)SNIFF_BYTES));
}

bool zt_is_bin_name(const char *name)
{
    size_t n = strlen(name);
    return n >= 4 && strcmp(name + n - 4, ".bin") == 0;
}

const char *zt_token_kind_name(enum zt_token_kind k)
{
    static const char *const names[] = {
        [ZT_TOKENS_TEXT] = "text as bytes",          [ZT_TOKENS_GPT2] = "llm.c GPT-2 tokens",
        [ZT_TOKENS_LLAMA3] = "llm.c Llama 3 tokens", [ZT_TOKENS_RAW_U16] = "raw uint16 tokens",
        [ZT_TOKENS_MEGATRON] = "Megatron tokens",
    };
    return names[k];
}

static int parse_llmc(const unsigned char *bytes, size_t n, struct zt_token_file *f,
                      struct zt_err *err)
{
    if (n < LLMC_HEADER_BYTES)
        return zt_err_set(err, ZT_EINPUT, "%s: %zu bytes, but the header of an llm.c file has %d",
                          f->name, n, LLMC_HEADER_BYTES);
    const struct llmc_format *lf = llmc_find(bytes, n);
    if (!lf)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: magic number %d; llm.c token files have %d (GPT-2) or %d (Llama 3)",
                          f->name, (int32_t)le32(bytes), llmc_formats[0].magic,
                          llmc_formats[1].magic);
    int32_t version = (int32_t)le32(bytes + 4), count = (int32_t)le32(bytes + 8);
    if (version != lf->version)
        return zt_err_set(err, ZT_EINPUT, "%s: version %d of the format with magic %d; expected %d",
                          f->name, version, lf->magic, lf->version);
    long long body = (long long)(n - LLMC_HEADER_BYTES),
              expected = (long long)count * lf->token_bytes;
    if (count <= 0)
        return zt_err_set(
            err, ZT_EINPUT,
            "%s: the header counts %d tokens, %lld bytes follow it; expected 1 or more "
            "tokens of %d bytes",
            f->name, count, body, lf->token_bytes);
    if (body != expected)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: %lld bytes of tokens, but its header counts %d tokens of %d bytes: "
                          "expected %lld; the file is damaged or cut",
                          f->name, body, count, lf->token_bytes, expected);
    f->kind = lf->kind;
    f->token_bytes = lf->token_bytes;
    f->data = bytes + LLMC_HEADER_BYTES;
    f->n_tokens = count;
    return 0;
}

static int parse_raw_u16(const unsigned char *bytes, size_t n, struct zt_token_file *f,
                         struct zt_err *err)
{
    if (n % 2)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: %zu bytes, an odd number; raw uint16 tokens have 2 bytes each",
                          f->name, n);
    f->kind = ZT_TOKENS_RAW_U16;
    f->token_bytes = 2;
    f->data = bytes;
    f->n_tokens = (int64_t)(n / 2);
    return 0;
}

static void parse_text(const unsigned char *bytes, size_t n, struct zt_token_file *f)
{
    f->kind = ZT_TOKENS_TEXT;
    f->token_bytes = 1;
    f->data = bytes;
    f->n_tokens = (int64_t)n;
}

static int parse_auto(const unsigned char *bytes, size_t n, struct zt_token_file *f,
                      struct zt_err *err)
{
    static const char advice[] = "say what it is: data.format: raw_u16, llm.c, megatron or text";
    if (zt_is_llmc(bytes, n))
        return parse_llmc(bytes, n, f, err);
    if (zt_is_bin_name(f->name))
        return zt_err_set(err, ZT_EINPUT, "%s: a .bin file without llm.c's magic number; %s",
                          f->name, advice);
    if (zt_is_binary(bytes, n))
        return zt_err_set(err, ZT_EINPUT, "%s: not text (NUL bytes), nor llm.c's magic number; %s",
                          f->name, advice);
    parse_text(bytes, n, f);
    return 0;
}

int zt_token_file_parse(const char *name, const void *bytes, size_t n, enum zt_data_format format,
                        struct zt_token_file *f, struct zt_err *err)
{
    memset(f, 0, sizeof *f);
    f->name = name;
    switch (format) {
    case ZT_DATA_AUTO:
        return parse_auto(bytes, n, f, err);
    case ZT_DATA_LLMC:
        return parse_llmc(bytes, n, f, err);
    case ZT_DATA_RAW_U16:
        return parse_raw_u16(bytes, n, f, err);
    case ZT_DATA_MEGATRON:
        return zt_err_set(err, ZT_EINPUT,
                          "%s: Megatron's tokens are a pair of files, NAME.bin and NAME.idx; name "
                          "either, or NAME",
                          name);
    case ZT_DATA_TEXT:
        break;
    }
    parse_text(bytes, n, f);
    return 0;
}

static int id_error(const struct zt_token_file *f, int64_t pos, uint32_t id, int64_t vocab_size,
                    struct zt_err *err)
{
    return zt_err_set(
        err, ZT_EINPUT,
        "%s: token %lld is id %lu, but the model's vocab_size is %lld (ids 0 to %lld); "
        "the file is of another vocabulary",
        f->name, (long long)pos, (unsigned long)id, (long long)vocab_size,
        (long long)vocab_size - 1);
}

int zt_token_file_read(const struct zt_token_file *f, int64_t begin, int64_t n, int64_t vocab_size,
                       int32_t *out, struct zt_err *err)
{
    ZT_ASSERT(begin >= 0 && n >= 0 && begin <= f->n_tokens - n);
    const unsigned char *p = f->data + begin * f->token_bytes;
    for (int64_t i = 0; i < n; i++, p += f->token_bytes) {
        uint32_t id = f->token_bytes == 1 ? *p : f->token_bytes == 2 ? le16(p) : le32(p);
        if (id >= (uint64_t)vocab_size)
            return id_error(f, begin + i, id, vocab_size, err);
        out[i] = (int32_t)id;
    }
    return 0;
}
