/*
 * load.h: the steps of zt_recipe_load(), and what they share.
 *
 * Internal to lib/recipe: merge.c makes one tree, bind.c holds it against the table, resolve*.c
 * derive and cross-check, print.c writes it down again.
 */
#ifndef ZT_RECIPE_LOAD_H
#define ZT_RECIPE_LOAD_H

#include "recipe/keys.h"
#include "recipe/tree.h"

#define ZT_NOT_GIVEN INT64_MIN /* a batch size */

/* What the tree says about one row of the table. */
struct zt_given {
    const struct zt_node *node; /* NULL: not given */
    const char *origin;         /* of the value in the settings; NULL: it has none */
    bool null;                  /* the key is there, as null */
    bool bad;                   /* given, but not usable; of a section: a key in it is unknown */
};

struct zt_load {
    const struct zt_recipe_opts *opts;
    struct zt_arena *arena; /* the recipe's */
    struct zt_diags errors, notes;
    int n_sources;
    bool incomplete; /* a file or a key was not understood: what is missing may stand there */
    const struct zt_source *main;   /* where what is missing should have stood */
    const struct zt_source *config; /* the config.json, or NULL */
    struct zt_settings *settings;
    struct zt_given *given; /* [zt_n_keys] */
};

/* merge.c: everything the recipe is made of as one tree (never NULL). */
struct zt_node *zt_load_tree(struct zt_load *ld);

/* bind.c: defaults, then the values of the tree. */
void zt_load_bind(struct zt_load *ld, const struct zt_node *root);
const struct zt_node *zt_load_given(const struct zt_load *ld, const char *path);
struct zt_pos zt_load_pos(const struct zt_load *ld, const char *path); /* else the whole recipe */
const char *zt_load_origin(const struct zt_load *ld,
                           const char *path);                        /* where its value is from */
bool zt_load_null(const struct zt_load *ld, const char *path);       /* there, as null: not auto */
bool zt_load_any_bad(const struct zt_load *ld, const char *section); /* or in it */
void zt_load_derived(struct zt_load *ld, const char *path); /* the settings now hold its value */
void zt_load_unsaid(struct zt_load *ld, const char *path);  /* its value means nothing here */
/* An error when running, a note when planning. */
void zt_load_refuse(struct zt_load *ld, struct zt_pos at, const char *fmt, ...) ZT_PRINTF(3, 4);

/* resolve.c */
void zt_load_resolve(struct zt_load *ld);
/* An error about a key that has no place, unless it may stand in what was not understood. */
void zt_load_missing(struct zt_load *ld, const char *text);

/* resolve_model.c */
void zt_load_resolve_model(struct zt_load *ld);
void zt_load_check_window(struct zt_load *ld); /* once data.seq_len is known */

/* resolve_activations.c: activation_checkpointing, once the model is known. */
void zt_load_activations(struct zt_load *ld);

/* resolve_checkpoint.c */
void zt_load_resolve_checkpoint(struct zt_load *ld);

/* resolve_schedule.c: scheduler and what it takes -> r->schedule. */
void zt_load_schedule(struct zt_load *ld);

/* groups.c: optimizer.param_groups from the tree, and as YAML again. */
bool zt_recipe_groups_parse(struct zt_load *ld, const char *path, const struct zt_node *list,
                            struct zt_recipe_groups *out);
const char *zt_recipe_groups_text(struct zt_arena *a, const struct zt_recipe_groups *g);

/* print.c: fill r->values; the shortest text that reads back as the same number. */
void zt_load_values(struct zt_load *ld);
const char *zt_yaml_f64(struct zt_arena *a, double x);

#endif
