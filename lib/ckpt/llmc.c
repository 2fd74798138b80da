#include "ckpt/llmc.h"

#include "base/size.h"

/* The tensors in the file's order, as multiples of the width. */
struct kind {
    const char *name; /* behind "h.N." where it is one for each layer */
    bool per_layer, matrix;
    int in, out; /* per layer: of (in, out) or, for one dimension, (out) */
};

static const struct kind kinds[] = {
    {"wte.weight", false, false, 0, 0},       {"wpe.weight", false, false, 0, 0},
    {"ln_1.weight", true, false, 0, 1},       {"ln_1.bias", true, false, 0, 1},
    {"attn.c_attn.weight", true, true, 1, 3}, {"attn.c_attn.bias", true, false, 0, 3},
    {"attn.c_proj.weight", true, true, 1, 1}, {"attn.c_proj.bias", true, false, 0, 1},
    {"ln_2.weight", true, false, 0, 1},       {"ln_2.bias", true, false, 0, 1},
    {"mlp.c_fc.weight", true, true, 1, 4},    {"mlp.c_fc.bias", true, false, 0, 4},
    {"mlp.c_proj.weight", true, true, 4, 1},  {"mlp.c_proj.bias", true, false, 0, 1},
    {"ln_f.weight", false, false, 0, 1},      {"ln_f.bias", false, false, 0, 1},
};

enum { WTE, WPE };

/* Elements of a kind, of one layer. */
static bool kind_elems(const struct zt_llmc_header *h, size_t kind, int64_t *n)
{
    const struct kind *k = &kinds[kind];
    int64_t c = h->n_embd;
    switch (kind) {
    case WTE:
        return zt_mul_i64(h->padded_vocab_size, c, n);
    case WPE:
        return zt_mul_i64(h->n_positions, c, n);
    default:
        return zt_mul_i64(k->matrix ? k->in * c : 1, k->out * c, n);
    }
}

/* Elements of a kind in the file. */
static bool total_elems(const struct zt_llmc_header *h, size_t kind, int64_t *n)
{
    return kind_elems(h, kind, n) && zt_mul_i64(*n, kinds[kind].per_layer ? h->n_layer : 1, n);
}

/* Bytes of a whole file with this header; false: more than 2^63. */
static bool file_bytes(const struct zt_llmc_header *h, size_t *bytes)
{
    int64_t total = 0, n;
    for (size_t i = 0; i < ZT_ARRAY_LEN(kinds); i++) {
        if (!total_elems(h, i, &n) || !zt_add_i64(total, n, &total))
            return false;
    }
    int64_t b;
    if (!zt_mul_i64(total, (int64_t)zt_dtype_bytes(h->dtype), &b) ||
        !zt_add_i64(b, ZT_LLMC_HEADER_BYTES, &b))
        return false;
    *bytes = (size_t)b;
    return true;
}

int zt_llmc_check(const char *name, const void *bytes, size_t n, struct zt_llmc_header *h,
                  struct zt_err *err)
{
    size_t want;
    int rc = zt_llmc_header(name, bytes, n, h, err);
    if (rc)
        return rc;
    if (!file_bytes(h, &want))
        return zt_err_set(err, ZT_EINPUT, "%s: the header tells of more than 2^63 bytes; damaged",
                          name);
    if (n != want)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: %zu bytes, but %zu by its header (%lld layers of %lld wide, %lld "
                          "padded tokens, %s); the file is damaged or cut",
                          name, n, want, (long long)h->n_layer, (long long)h->n_embd,
                          (long long)h->padded_vocab_size, zt_dtype_name(h->dtype));
    return 0;
}

static int check_model(const char *name, const struct zt_model *m, const struct zt_llmc_header *h,
                       struct zt_err *err)
{
    const struct zt_model_config *c = &m->cfg;
    const struct {
        const char *what;
        int64_t model, file;
    } sizes[] = {{"n_layer", c->n_layer, h->n_layer},
                 {"n_head", c->n_head, h->n_head},
                 {"n_embd", c->n_embd, h->n_embd},
                 {"n_inner", c->n_inner, 4 * h->n_embd},
                 {"vocab_size", c->vocab_size, h->vocab_size},
                 {"n_positions", c->n_positions, h->n_positions}};
    if (c->type != ZT_MODEL_GPT2 || !c->tie_embeddings)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: the weights do not fit the model: llm.c's files hold GPT-2 with a "
                          "tied head (model_type: gpt2, tie_word_embeddings: true)",
                          name);
    for (size_t i = 0; i < ZT_ARRAY_LEN(sizes); i++) {
        if (sizes[i].model != sizes[i].file)
            return zt_err_set(err, ZT_EINPUT,
                              "%s: the weights do not fit the model: %s is %lld in the file and "
                              "%lld in the recipe",
                              name, sizes[i].what, (long long)sizes[i].file,
                              (long long)sizes[i].model);
    }
    return 0;
}

/* The tensor of a kind and layer is one of the model's parameters. */
static void place(const struct zt_model *m, struct zt_llmc *f, size_t kind, int64_t layer,
                  const unsigned char *data)
{
    char name[64];
    if (kinds[kind].per_layer)
        snprintf(name, sizeof name, "h.%lld.%s", (long long)layer, kinds[kind].name);
    else
        snprintf(name, sizeof name, "%s", kinds[kind].name);
    int i = zt_model_find_param(m, name);
    ZT_ASSERT_CMP(i, >=, 0);
    const struct zt_param_spec *p = &m->params[i];
    f->tensors[i] = (struct zt_llmc_tensor){.data = data,
                                            .transposed = kinds[kind].matrix,
                                            .rows = p->dims[0],
                                            .cols = p->n_dims > 1 ? p->dims[1] : 1};
}

int zt_llmc_parse(const char *name, const void *bytes, size_t n, const struct zt_model *m,
                  struct zt_arena *arena, struct zt_llmc *f, struct zt_err *err)
{
    memset(f, 0, sizeof *f);
    int rc = zt_llmc_check(name, bytes, n, &f->header, err);
    if (!rc)
        rc = check_model(name, m, &f->header, err);
    if (rc)
        return rc;
    const unsigned char *at = (const unsigned char *)bytes + ZT_LLMC_HEADER_BYTES;
    f->n_tensors = m->n_params;
    f->tensors = zt_arena_alloc(arena, (size_t)m->n_params, sizeof *f->tensors);
    for (size_t k = 0; k < ZT_ARRAY_LEN(kinds); k++) {
        int64_t elems = 0;
        ZT_ASSERT(kind_elems(&f->header, k, &elems)); /* zt_llmc_check() has */
        for (int64_t l = 0; l < (kinds[k].per_layer ? f->header.n_layer : 1); l++) {
            place(m, f, k, l, at);
            at += (size_t)elems * zt_dtype_bytes(f->header.dtype);
        }
    }
    return 0;
}

static float element(const struct zt_llmc *f, const unsigned char *data, int64_t i)
{
    uint32_t word;
    uint16_t half;
    if (f->header.dtype == ZT_F32) {
        memcpy(&word, data + 4 * i, sizeof word);
        return zt_bits_f32(word);
    }
    memcpy(&half, data + 2 * i, sizeof half);
    return zt_bf16_to_f32(half);
}

void zt_llmc_read_f32(const struct zt_llmc *f, int param, int64_t begin, int64_t n, float *out)
{
    const struct zt_llmc_tensor *t = &f->tensors[param];
    ZT_ASSERT(begin >= 0 && n >= 0 && begin <= t->rows * t->cols - n);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (begin + i) / t->cols, col = (begin + i) % t->cols;
        out[i] = element(f, t->data, t->transposed ? col * t->rows + row : begin + i);
    }
}
