#include "recipe_test.h"

#define MODEL                                                                                      \
    "model: {model_type: gpt2, n_layer: 12, n_head: 2, n_embd: 64, n_positions: 32}\n"             \
    "data: {train: /data/x.txt}\n"

/* Keys of activation_checkpointing, alone and together; DeepSpeed's own imply a policy. */
static const struct {
    const char *keys;
    enum zt_activation_policy policy;
    int every;
    bool on_host;
    int notes;
} cases[] = {
    {"", ZT_KEEP_ALL, 0, false, 0},
    {"policy: none", ZT_KEEP_ALL, 0, false, 0},
    {"policy: block", ZT_KEEP_BLOCK_INPUTS, 0, false, 0},
    {"policy: selective", ZT_KEEP_SELECTED, 0, false, 0},
    {"policy: every, every: 5", ZT_KEEP_EVERY_NTH, 5, false, 0},
    {"every: 12", ZT_KEEP_EVERY_NTH, 12, false, 0},
    {"every: 1, cpu_checkpointing: true", ZT_KEEP_EVERY_NTH, 1, true, 0},
    {"number_checkpoints: 4", ZT_KEEP_EVERY_NTH, 3, false, 0},
    {"number_checkpoints: 5", ZT_KEEP_EVERY_NTH, 3, false, 0},
    {"number_checkpoints: 12", ZT_KEEP_EVERY_NTH, 1, false, 0},
    {"policy: every, number_checkpoints: 1", ZT_KEEP_EVERY_NTH, 12, false, 0},
    {"every: 3, number_checkpoints: 4", ZT_KEEP_EVERY_NTH, 3, false, 0},
    {"policy: selective, number_checkpoints: 4", ZT_KEEP_SELECTED, 0, false, 1},
    {"policy: none, number_checkpoints: 4", ZT_KEEP_ALL, 0, false, 1},
    {"cpu_checkpointing: true", ZT_KEEP_BLOCK_INPUTS, 0, true, 0},
    {"policy: selective, cpu_checkpointing: true", ZT_KEEP_SELECTED, 0, true, 0},
    {"cpu_checkpointing: true, number_checkpoints: 6", ZT_KEEP_EVERY_NTH, 2, true, 0},
    /* DeepSpeed's documentation has these, all off; then all on. */
    {"partition_activations: false, cpu_checkpointing: false, contiguous_memory_optimization: "
     "false, "
     "number_checkpoints: null, synchronize_checkpoint_boundary: false, profile: false",
     ZT_KEEP_ALL, 0, false, 0},
    {"partition_activations: true, cpu_checkpointing: true, contiguous_memory_optimization: true, "
     "number_checkpoints: 4, synchronize_checkpoint_boundary: true, profile: true",
     ZT_KEEP_EVERY_NTH, 3, true, 4},
};

TEST(recipe_activations)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_str text = {0}, again = {0};
        zt_str_printf(&text, MODEL BATCH "activation_checkpointing: {%s}\n", cases[i].keys);
        struct zt_recipe *r = load_text(zt_str_get(&text), 1);
        CHECK_LOADED(r);
        zt_recipe_print(r, &again); /* what workers are given says the same */
        struct zt_recipe *other = load_text(zt_str_get(&again), 1);
        CHECK_LOADED(other);
        if (r->activations.policy != cases[i].policy || r->activations.every != cases[i].every ||
            r->activations.on_host != cases[i].on_host || r->n_notes != cases[i].notes)
            FAIL("{%s}: policy %d, every %d, on host %d, %d notes", cases[i].keys,
                 r->activations.policy, r->activations.every, r->activations.on_host, r->n_notes);
        CHECK(memcmp(&r->activations, &other->activations, sizeof r->activations) == 0);
        zt_recipe_free(r);
        zt_recipe_free(other);
        zt_str_release(&text);
        zt_str_release(&again);
    }
}

/* Nothing is guessed of a model that has only a number of parameters. */
TEST(recipe_activations_without_a_model)
{
    struct zt_recipe *r =
        plan_text("model: {params: 7e9}\nactivation_checkpointing: {number_checkpoints: 4}\n", 1);
    CHECK_LOADED(r);
    CHECK_INT(r->activations.policy, ZT_KEEP_ALL);
    zt_recipe_free(r);
}

TEST_MAIN()
