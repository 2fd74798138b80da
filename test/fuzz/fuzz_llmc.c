/* A model file of llm.c: whatever is accepted can be read to the last element. */
#include "ckpt/llmc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct zt_model *model_of(const struct zt_llmc_header *h, struct zt_arena *arena)
{
    struct zt_model_config cfg = {.type = ZT_MODEL_GPT2,
                                  .n_layer = (int)h->n_layer,
                                  .n_head = (int)h->n_head,
                                  .n_embd = h->n_embd,
                                  .vocab_size = h->vocab_size,
                                  .n_positions = h->n_positions,
                                  .norm_eps = 1e-5f,
                                  .tie_embeddings = true};
    struct zt_model *m;
    struct zt_err err;
    return zt_model_build(&cfg, arena, &m, &err) ? NULL : m;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct zt_llmc_header h;
    struct zt_llmc f;
    struct zt_arena arena = {0};
    struct zt_err err;
    if (zt_llmc_check("x", data, n, &h, &err))
        return 0;
    struct zt_model *m = model_of(&h, &arena);
    if (m && zt_llmc_parse("x", data, n, m, &arena, &f, &err) == 0) {
        for (int i = 0; i < m->n_params; i++) {
            for (int64_t j = 0; j < m->params[i].n_elems; j += 100) {
                float out[100];
                zt_llmc_read_f32(&f, i, j, ZT_MIN((int64_t)100, m->params[i].n_elems - j), out);
            }
        }
    }
    zt_arena_release(&arena);
    return 0;
}
