/* models.h: the models that tests of several layers start from. */
#ifndef ZT_TEST_MODELS_H
#define ZT_TEST_MODELS_H

#include "model/model.h"

static const struct zt_model_config gpt2_124m = {.type = ZT_MODEL_GPT2,
                                                 .n_layer = 12,
                                                 .n_head = 12,
                                                 .n_embd = 768,
                                                 .vocab_size = 50257,
                                                 .n_positions = 1024,
                                                 .norm_eps = 1e-5f,
                                                 .initializer_range = 0.02f,
                                                 .tie_embeddings = true};

/* The case fixture_gpt2: 572 parameters. */
static const struct zt_model_config gpt2_fixture = {.type = ZT_MODEL_GPT2,
                                                    .n_layer = 2,
                                                    .n_head = 2,
                                                    .n_embd = 4,
                                                    .vocab_size = 11,
                                                    .n_positions = 8,
                                                    .norm_eps = 1e-5f,
                                                    .initializer_range = 0.02f,
                                                    .tie_embeddings = true};

/* The case fixture_llama: 4336 parameters, grouped heads, untied. */
static const struct zt_model_config llama_fixture = {.type = ZT_MODEL_LLAMA,
                                                     .n_layer = 2,
                                                     .n_head = 4,
                                                     .n_kv_head = 2,
                                                     .n_embd = 16,
                                                     .n_inner = 24,
                                                     .vocab_size = 13,
                                                     .n_positions = 16,
                                                     .norm_eps = 1e-5f,
                                                     .initializer_range = 0.02f};

#endif
