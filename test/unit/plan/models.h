/* models.h: the larger models and the plan configuration that the planner's tests start from. */
#ifndef ZT_TEST_PLAN_MODELS_H
#define ZT_TEST_PLAN_MODELS_H

#include "plan/plan.h"
#include "unit/models.h"

static const struct zt_model_config llama_7b = {.type = ZT_MODEL_LLAMA,
                                                .n_layer = 32,
                                                .n_head = 32,
                                                .n_embd = 4096,
                                                .n_inner = 11008,
                                                .vocab_size = 32000,
                                                .n_positions = 4096,
                                                .norm_eps = 1e-5f,
                                                .initializer_range = 0.02f};

static const struct zt_model_config llama_70b = {.type = ZT_MODEL_LLAMA,
                                                 .n_layer = 80,
                                                 .n_head = 64,
                                                 .n_kv_head = 8,
                                                 .n_embd = 8192,
                                                 .n_inner = 28672,
                                                 .vocab_size = 32000,
                                                 .n_positions = 4096,
                                                 .norm_eps = 1e-5f,
                                                 .initializer_range = 0.02f};

static ZT_UNUSED struct zt_plan_config plan_config(int stage, int n_ranks, enum zt_dtype dtype)
{
    return (struct zt_plan_config){.stage = stage,
                                   .mesh = {{1, 1, n_ranks, 1, 1}},
                                   .dtype = dtype,
                                   .micro_batch = 2,
                                   .seq_len = 8,
                                   .accum = 1,
                                   .overlap_comm = true,
                                   .comm_dtype = -1,
                                   .dev_kind = ZT_DEV_CPU,
                                   .n_threads = 2,
                                   .shared_arena = true,
                                   .profile = &zt_profiles[0],
                                   .profile_known = true};
}

/* What may be recomputed, inputs on the host or not; runs of 5 divide neither 12 nor 32 blocks. */
static const struct {
    const char *name;
    enum zt_recompute kind;
    int every;
    bool on_host;
} recomputations[] = {
    {"recompute block", ZT_RECOMPUTE_BLOCK, 0, false},
    {"recompute selective", ZT_RECOMPUTE_SELECTIVE, 0, false},
    {"recompute every 5", ZT_RECOMPUTE_EVERY, 5, false},
    {"recompute block from the host", ZT_RECOMPUTE_BLOCK, 0, true},
    {"recompute selective from the host", ZT_RECOMPUTE_SELECTIVE, 0, true},
    {"recompute every 5 from the host", ZT_RECOMPUTE_EVERY, 5, true},
};

static ZT_UNUSED void set_recomputation(struct zt_plan_config *cfg, size_t i)
{
    cfg->recompute = recomputations[i].kind;
    cfg->recompute_every = recomputations[i].every;
    cfg->cpu_checkpointing = recomputations[i].on_host;
}

#endif
