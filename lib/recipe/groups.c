#include "recipe/load.h"

#include <math.h>

/*
 * optimizer.param_groups: a list of {match: GLOB, weight_decay: NUMBER, lr_scale: NUMBER,
 * frozen: BOOL}. Which parameters a glob fits is known only with the model (optim/groups.h).
 */

enum { MAX_GROUPS = 256 };

/* A number of a group, from 0 on. */
static bool group_number(struct zt_load *ld, const char *path, const struct zt_node *n, double *out)
{
    if (n->kind == ZT_NODE_SCALAR && zt_parse_f64(n->text, out) && *out >= 0 && *out <= 1e6)
        return true;
    zt_diag_add(&ld->errors, ZT_DIAG_WRONG, n->at, "%s: %s must be a number from 0 to 1e6", path,
                n->key);
    return false;
}

static bool group_flag(struct zt_load *ld, const char *path, const struct zt_node *n, bool *out)
{
    const char *t = n->kind == ZT_NODE_SCALAR ? n->text : "";
    *out = strcmp(t, "true") == 0;
    if (*out || strcmp(t, "false") == 0)
        return true;
    zt_diag_add(&ld->errors, ZT_DIAG_WRONG, n->at, "%s: %s must be true or false", path, n->key);
    return false;
}

static bool parse_entry(struct zt_load *ld, const char *path, const struct zt_node *n,
                        struct zt_recipe_group *g)
{
    if (strcmp(n->key, "match") == 0 && n->kind == ZT_NODE_SCALAR && n->text[0]) {
        g->match = n->text;
        return true;
    }
    if (strcmp(n->key, "weight_decay") == 0)
        return group_number(ld, path, n, &g->weight_decay);
    if (strcmp(n->key, "lr_scale") == 0)
        return group_number(ld, path, n, &g->lr_scale);
    if (strcmp(n->key, "frozen") == 0)
        return group_flag(ld, path, n, &g->frozen);
    zt_diag_add(&ld->errors, ZT_DIAG_WRONG, n->key_at,
                "%s: a group has match (a glob), weight_decay, lr_scale and frozen, not \"%s\"",
                path, n->key);
    return false;
}

static bool parse_group(struct zt_load *ld, const char *path, const struct zt_node *n,
                        struct zt_recipe_group *g)
{
    *g = (struct zt_recipe_group){.weight_decay = (double)NAN, .lr_scale = 1};
    bool ok = true;
    if (n->kind == ZT_NODE_MAP)
        for (const struct zt_node *c = n->children; c; c = c->next)
            if (!zt_node_not_given(c))
                ok &= parse_entry(ld, path, c, g);
    if (ok && !g->match) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, n->at,
                    "%s: each must be a mapping such as {match: \"*.bias\", weight_decay: 0}",
                    path);
        ok = false;
    }
    return ok;
}

bool zt_recipe_groups_parse(struct zt_load *ld, const char *path, const struct zt_node *list,
                            struct zt_recipe_groups *out)
{
    int n = 0;
    for (const struct zt_node *c = list->children; c; c = c->next)
        n++;
    if (list->kind != ZT_NODE_LIST || n > MAX_GROUPS) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, list->at,
                    "%s: must be a list of at most %d mappings such as {match: \"*.bias\", "
                    "weight_decay: 0}",
                    path, MAX_GROUPS);
        return false;
    }
    struct zt_recipe_group *groups = zt_arena_alloc(ld->arena, (size_t)n + 1, sizeof *groups);
    bool ok = true;
    n = 0;
    for (const struct zt_node *c = list->children; c; c = c->next)
        ok &= parse_group(ld, path, c, &groups[n++]);
    *out = (struct zt_recipe_groups){n, groups};
    return ok;
}

const char *zt_recipe_groups_text(struct zt_arena *a, const struct zt_recipe_groups *g)
{
    const char *out = "[";
    for (int i = 0; i < g->n; i++) {
        const struct zt_recipe_group *x = &g->items[i];
        out = zt_arena_printf(a, "%s%s{match: %s", out, i ? ", " : "", zt_yaml_string(a, x->match));
        if (!isnan(x->weight_decay))
            out = zt_arena_printf(a, "%s, weight_decay: %s", out, zt_yaml_f64(a, x->weight_decay));
        out = zt_arena_printf(a, "%s, lr_scale: %s, frozen: %s}", out, zt_yaml_f64(a, x->lr_scale),
                              x->frozen ? "true" : "false");
    }
    return zt_arena_printf(a, "%s]", out);
}
