/*
 * recipe_test.h: loading recipes in tests. One recipe and one error at a time.
 */
#ifndef ZT_TEST_RECIPE_TEST_H
#define ZT_TEST_RECIPE_TEST_H

#include "harness.h"

#include <stdarg.h>

#include "recipe/recipe.h"

/* A recipe of a few lines that lacks nothing but what a test adds. */
#define TINY                                                                                       \
    "model: {model_type: gpt2, n_layer: 2, n_head: 2, n_embd: 64, n_positions: 32}\n"              \
    "data: {train: /data/x.txt}\n"
#define BATCH "train_batch_size: 8\n"

static struct zt_err err;

ZT_UNUSED static struct zt_recipe *load_opts(const struct zt_recipe_opts *o)
{
    struct zt_recipe *r = NULL;
    err.code = 0;
    err.msg[0] = '\0';
    return zt_recipe_load(o, &r, &err) == 0 ? r : NULL;
}

/* The text, on `n_ranks`; NULL and `err` when it is not good. */
ZT_UNUSED static struct zt_recipe *load_text(const char *text, int n_ranks)
{
    const struct zt_recipe_opts o = {.path = "r.yaml", .text = text, .n_ranks = n_ranks};
    return load_opts(&o);
}

ZT_UNUSED static struct zt_recipe *plan_text(const char *text, int n_ranks)
{
    const struct zt_recipe_opts o = {
        .path = "r.yaml", .text = text, .n_ranks = n_ranks, .for_plan = true};
    return load_opts(&o);
}

/* The text with one --set. */
ZT_UNUSED static struct zt_recipe *load_set(const char *text, const char *set)
{
    const struct zt_recipe_opts o = {
        .path = "r.yaml", .text = text, .n_ranks = 1, .set = {1, &set}};
    return load_opts(&o);
}

/* The value or origin of a resolved key, or "". */
ZT_UNUSED static const char *value_of(const struct zt_recipe *r, const char *key, bool origin)
{
    for (int i = 0; i < r->n_values; i++) {
        if (strcmp(r->values[i].key, key) == 0)
            return origin ? r->values[i].origin : r->values[i].value;
    }
    return "";
}

ZT_UNUSED static bool has_note(const struct zt_recipe *r, const char *part)
{
    for (int i = 0; i < r->n_notes; i++) {
        if (strstr(r->notes[i].text, part))
            return true;
    }
    return false;
}

#define CHECK_LOADED(r)                                                                            \
    do {                                                                                           \
        if (!(r))                                                                                  \
            FAIL("not loaded: %s", err.msg);                                                       \
    } while (0)

#endif
