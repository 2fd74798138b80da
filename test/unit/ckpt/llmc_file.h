/* llmc_file.h: llm.c's model files for tests, made of the tensors of a safetensors file. */
#ifndef ZT_TEST_LLMC_FILE_H
#define ZT_TEST_LLMC_FILE_H

#include "base/str.h"
#include "ckpt/safetensors.h"
#include "unit/ckpt/st_find.h"

struct llmc_sizes {
    int version, n_positions, vocab, n_layer, n_head, n_embd, padded;
};

static inline void llmc_put_header(struct zt_str *out, int magic, const struct llmc_sizes *s)
{
    int32_t h[256] = {magic,      s->version, s->n_positions, s->vocab,
                      s->n_layer, s->n_head,  s->n_embd,      s->padded};
    zt_str_add(out, h, sizeof h);
}

static inline void llmc_put(struct zt_str *out, int version, float x)
{
    uint16_t h = zt_f32_to_bf16(x);
    if (version == 3)
        zt_str_add(out, &x, sizeof x);
    else
        zt_str_add(out, &h, sizeof h);
}

/* A tensor of Hugging Face's GPT-2 as llm.c has it: matrices (outputs, inputs). */
static inline void llmc_put_tensor(struct zt_str *out, int version, const struct zt_st_file *src,
                                   const char *name, bool transpose)
{
    const struct zt_st_tensor *t = st_find(src, name);
    int64_t rows = t->dims[0], cols = t->n_dims > 1 ? t->dims[1] : 1;
    for (int64_t i = 0; i < t->n_elems; i++) {
        float x;
        zt_st_read_f32(t, transpose ? i % rows * cols + i / rows : i, 1, &x);
        llmc_put(out, version, x);
    }
}

/* The whole file, as write_model() of llm.c's train_gpt2.py makes it. */
static inline void llmc_file(struct zt_str *out, const struct zt_st_file *src,
                             const struct llmc_sizes *s)
{
    static const struct {
        const char *name;
        bool matrix;
    } kinds[] = {
        {"ln_1.weight", false},      {"ln_1.bias", false},         {"attn.c_attn.weight", true},
        {"attn.c_attn.bias", false}, {"attn.c_proj.weight", true}, {"attn.c_proj.bias", false},
        {"ln_2.weight", false},      {"ln_2.bias", false},         {"mlp.c_fc.weight", true},
        {"mlp.c_fc.bias", false},    {"mlp.c_proj.weight", true},  {"mlp.c_proj.bias", false}};
    char name[80];
    llmc_put_header(out, 20240326, s);
    llmc_put_tensor(out, s->version, src, "transformer.wte.weight", false);
    for (int i = s->vocab * s->n_embd; i < s->padded * s->n_embd; i++)
        llmc_put(out, s->version, 1e30f); /* padding that must not be read */
    llmc_put_tensor(out, s->version, src, "transformer.wpe.weight", false);
    for (size_t k = 0; k < ZT_ARRAY_LEN(kinds); k++) {
        for (int l = 0; l < s->n_layer; l++) {
            snprintf(name, sizeof name, "transformer.h.%d.%s", l, kinds[k].name);
            llmc_put_tensor(out, s->version, src, name, kinds[k].matrix);
        }
    }
    llmc_put_tensor(out, s->version, src, "transformer.ln_f.weight", false);
    llmc_put_tensor(out, s->version, src, "transformer.ln_f.bias", false);
}

#endif
