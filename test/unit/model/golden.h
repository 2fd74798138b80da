/*
 * golden.h: the files of scripts/make-golden.py.
 */
#ifndef ZT_TEST_MODEL_GOLDEN_H
#define ZT_TEST_MODEL_GOLDEN_H

#include "ckpt/safetensors.h"
#include "driver.h"

struct golden {
    struct zt_st_file f;
    struct zt_model_config cfg;
    int64_t batch, seq_len;
    struct zt_batch b; /* inside the file */
    double loss;
    bool dropout;
    uint64_t seed; /* of dropout */
    int64_t first_sample;
};

static inline const struct zt_st_tensor *golden_find(const struct golden *g, const char *prefix,
                                                     const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (int i = 0; i < g->f.n_tensors; i++) {
        if (strcmp(g->f.tensors[i].name, full) == 0)
            return &g->f.tensors[i];
    }
    return NULL;
}

static inline const struct zt_st_tensor *golden_tensor(const struct golden *g, const char *prefix,
                                                       const char *name)
{
    const struct zt_st_tensor *t = golden_find(g, prefix, name);
    if (t)
        return t;
    printf("# no tensor %s%s\n", prefix, name);
    abort();
}

static inline int32_t *golden_ints(struct golden *g, const char *name)
{
    const struct zt_st_tensor *t = golden_tensor(g, "", name);
    int32_t *p = zt_arena_alloc(&g->f.arena, (size_t)t->n_elems, sizeof *p);
    memcpy(p, t->data, (size_t)t->n_elems * sizeof *p);
    return p;
}

static inline void golden_read_llama(struct golden *g)
{
    const int32_t *c = golden_ints(g, "llama");
    float rope[5];
    zt_st_read_f32(golden_tensor(g, "", "rope"), 0, 5, rope);
    g->cfg.type = ZT_MODEL_LLAMA;
    g->cfg.n_kv_head = c[0];
    g->cfg.head_dim = c[1];
    g->cfg.qkv_bias = c[2];
    g->cfg.o_bias = c[3];
    g->cfg.mlp_bias = c[4];
    g->cfg.qk_norm = c[5];
    g->cfg.rope = (struct zt_rope_rule){(enum zt_rope_kind)c[6], (double)rope[0], (double)rope[1],
                                        (double)rope[2],         (double)rope[3], (double)rope[4]};
}

static inline void golden_read_dropout(struct golden *g)
{
    double v[5];
    memcpy(v, golden_tensor(g, "", "dropout")->data, sizeof v);
    g->dropout = true;
    g->cfg.embd_pdrop = v[0];
    g->cfg.resid_pdrop = v[1];
    g->cfg.attn_pdrop = v[2];
    g->seed = (uint64_t)v[3];
    g->first_sample = (int64_t)v[4];
}

static inline void golden_open(struct golden *g, const char *path)
{
    struct zt_err err;
    *g = (struct golden){0};
    if (zt_st_open(path, &g->f, &err)) {
        printf("# %s\n", err.msg);
        abort();
    }
    const int32_t *c = golden_ints(g, "config");
    g->cfg = (struct zt_model_config){
        .type = ZT_MODEL_GPT2,
        .n_layer = c[0],
        .n_head = c[1],
        .n_embd = c[2],
        .n_inner = c[3],
        .vocab_size = c[4],
        .n_positions = c[5],
        .norm_eps = 1e-5f,
        .initializer_range = 0.02f,
        .tie_embeddings = c[6],
    };
    if (golden_find(g, "", "llama"))
        golden_read_llama(g);
    if (golden_find(g, "", "dropout"))
        golden_read_dropout(g);
    const struct zt_st_tensor *tokens = golden_tensor(g, "", "tokens");
    g->batch = tokens->dims[0];
    g->seq_len = tokens->dims[1];
    g->b = (struct zt_batch){golden_ints(g, "tokens"), golden_ints(g, "targets"),
                             golden_ints(g, "positions"), golden_ints(g, "seg_start")};
    memcpy(&g->loss, golden_tensor(g, "", "loss")->data, sizeof g->loss);
}

static inline void golden_close(struct golden *g)
{
    zt_st_close(&g->f);
}

/* A driver with the file's weights. */
static inline void golden_driver(struct driver *d, const struct golden *g, int64_t batch,
                                 enum zt_dtype dtype, enum zt_dtype grad_dtype)
{
    driver_init(d, &g->cfg, batch, g->seq_len, dtype, grad_dtype);
    d->dropout = g->dropout;
    d->sb.seed = g->seed;
    d->sb.first_sample = g->first_sample;
    for (int i = 0; i < d->m->n_params; i++) {
        const struct zt_st_tensor *t = golden_tensor(g, "w.", d->m->params[i].name);
        float *w = zt_xcalloc((size_t)t->n_elems, sizeof *w);
        zt_st_read_f32(t, 0, t->n_elems, w);
        for (int64_t j = 0; j < t->n_elems; j++)
            driver_set(d->w[i], j, w[j]);
        free(w);
    }
}

/* The rows from `seq` on. */
static inline struct zt_batch golden_from(const struct golden *g, int64_t seq)
{
    const int64_t o = seq * g->seq_len;
    return (struct zt_batch){g->b.tokens + o, g->b.targets + o, g->b.positions + o,
                             g->b.seg_start + o};
}

#endif
