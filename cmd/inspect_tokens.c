/*
 * Token files: what they are, how many tokens, of which ids, in how many documents.
 */
#include <unistd.h>

#include "base/arena.h"
#include "data/megatron.h"
#include "data/token_file.h"
#include "inspect.h"

enum { CHUNK = 4096, GPT2_END_OF_TEXT = 50256, LLAMA3_BEGIN_OF_TEXT = 128000 };

struct stats {
    int64_t min_id, max_id, separators;
    int32_t separator; /* the token that tools put between documents; -1: not known */
};

static int scan(const struct zt_token_file *f, struct stats *s, struct zt_err *err)
{
    int32_t ids[CHUNK];
    s->min_id = INT32_MAX;
    s->max_id = -1;
    for (int64_t at = 0; at < f->n_tokens; at += CHUNK) {
        int64_t n = ZT_MIN(f->n_tokens - at, (int64_t)CHUNK);
        int rc = zt_token_file_read(f, at, n, (int64_t)INT32_MAX + 1, ids, err);
        if (rc)
            return rc;
        for (int64_t i = 0; i < n; i++) {
            s->min_id = ZT_MIN(s->min_id, (int64_t)ids[i]);
            s->max_id = ZT_MAX(s->max_id, (int64_t)ids[i]);
            s->separators += ids[i] == s->separator;
        }
    }
    return 0;
}

static int32_t separator_of(enum zt_token_kind k)
{
    switch (k) {
    case ZT_TOKENS_GPT2:
    case ZT_TOKENS_RAW_U16:
        return GPT2_END_OF_TEXT;
    case ZT_TOKENS_LLAMA3:
        return LLAMA3_BEGIN_OF_TEXT;
    case ZT_TOKENS_TEXT:
    case ZT_TOKENS_MEGATRON:
        break;
    }
    return -1;
}

static const char *dtype_of(const struct zt_token_file *f)
{
    if (f->token_bytes == 4)
        return f->kind == ZT_TOKENS_MEGATRON ? "int32" : "uint32";
    return f->token_bytes == 2 ? "uint16" : "uint8";
}

static int tell(struct inspection *in, const struct zt_token_file *f, struct zt_err *err)
{
    struct stats s = {.separator = separator_of(f->kind)};
    int rc = scan(f, &s, err);
    if (rc)
        return rc;
    inspect_str(in, "kind", zt_token_kind_name(f->kind));
    inspect_str(in, "dtype", dtype_of(f));
    inspect_int(in, "tokens", f->n_tokens);
    if (f->n_tokens) {
        inspect_int(in, "smallest_id", s.min_id);
        inspect_int(in, "largest_id", s.max_id);
    }
    if (f->kind == ZT_TOKENS_MEGATRON) {
        inspect_int(in, "documents", f->n_docs);
    } else if (s.separators) {
        inspect_int(in, "documents", s.separators);
        inspect_int(in, "document_token", s.separator);
    }
    return 0;
}

/* NAME.bin and NAME.idx, of which `path` is one. */
static int tell_megatron(struct inspection *in, const char *bin_path, const char *index_path,
                         struct zt_err *err)
{
    struct zt_mapped bin, index;
    struct zt_token_file f;
    int rc = zt_map_file(bin_path, &bin, err);
    if (rc)
        return rc;
    rc = zt_map_file(index_path, &index, err);
    if (!rc) {
        struct zt_bytes b = {bin_path, bin.data, bin.bytes},
                        x = {index_path, index.data, index.bytes};
        rc = zt_megatron_parse(&x, &b, &f, err);
        if (!rc)
            rc = tell(in, &f, err);
        if (!rc)
            inspect_int(in, "bytes", (int64_t)(bin.bytes + index.bytes));
        zt_unmap_file(&index);
    }
    zt_unmap_file(&bin);
    return rc;
}

/* The other file of a pair. */
static char *with_suffix(const char *path, const char *suffix)
{
    struct zt_str out = {0};
    zt_str_add(&out, path, strlen(path) - strlen(suffix));
    zt_str_puts(&out, suffix);
    return out.buf;
}

static bool ends_in(const char *path, const char *suffix)
{
    size_t n = strlen(path), k = strlen(suffix);
    return n > k && strcmp(path + n - k, suffix) == 0;
}

static int tell_pair(struct inspection *in, struct zt_err *err)
{
    char *bin = with_suffix(in->path, ".bin"), *index = with_suffix(in->path, ".idx");
    int rc = tell_megatron(in, bin, index, err);
    free(bin);
    free(index);
    return rc;
}

static bool has_index(const char *path)
{
    char *index = with_suffix(path, ".idx");
    bool there = access(index, F_OK) == 0;
    free(index);
    return there;
}

/* A header of llm.c, if of no magic number that we know: three words, and zeros to its end. */
static bool looks_like_header(const struct zt_mapped *map)
{
    enum { WORDS_BYTES = 12, HEADER_BYTES = 1024 };
    for (size_t i = WORDS_BYTES; i < HEADER_BYTES && i < map->bytes; i++) {
        if (map->data[i])
            return false;
    }
    return map->bytes >= HEADER_BYTES;
}

/* nanoGPT's files have no header: what is named .bin and is not llm.c's can be nothing else. */
int inspect_tokens(struct inspection *in, const struct zt_mapped *map, struct zt_err *err)
{
    struct zt_token_file f;
    bool bin = ends_in(in->path, ".bin");
    bool llmc = zt_is_llmc(map->data, map->bytes) || (bin && looks_like_header(map));
    if (ends_in(in->path, ".idx") || (bin && !llmc && has_index(in->path)))
        return tell_pair(in, err);
    if (!bin && !llmc && zt_is_binary(map->data, map->bytes))
        return zt_err_set(err, ZT_EINPUT,
                          "%s: not a checkpoint, weights or tokens of a known format", in->path);
    int rc = zt_token_file_parse(in->path, map->data, map->bytes,
                                 llmc  ? ZT_DATA_LLMC
                                 : bin ? ZT_DATA_RAW_U16
                                       : ZT_DATA_TEXT,
                                 &f, err);
    if (!rc)
        rc = tell(in, &f, err);
    if (!rc)
        inspect_int(in, "bytes", (int64_t)map->bytes);
    return rc;
}
