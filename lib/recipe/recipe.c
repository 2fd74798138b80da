#include "recipe/recipe.h"

#include "recipe/load.h"

static void take_notes(struct zt_load *ld)
{
    struct zt_recipe *r = &ld->settings->r;
    struct zt_diags *d = &ld->notes;
    zt_diag_sort(d);
    r->n_notes = d->n;
    r->notes = zt_arena_alloc(ld->arena, (size_t)d->n, sizeof *r->notes);
    for (int i = 0; i < d->n; i++)
        r->notes[i].text = zt_arena_printf(
            ld->arena, "%s: %s", zt_pos_text(ld->arena, d->items[i].at), d->items[i].text);
}

int zt_recipe_load(const struct zt_recipe_opts *opts, struct zt_recipe **out, struct zt_err *err)
{
    ZT_ASSERT(opts->n_ranks > 0);
    struct zt_settings *settings = zt_xcalloc(1, sizeof *settings);
    struct zt_arena *arena = &settings->r.arena;
    struct zt_load *ld = zt_xcalloc(1, sizeof *ld);
    ld->opts = opts;
    ld->arena = ld->errors.arena = ld->notes.arena = arena;
    ld->settings = settings;
    ld->given = zt_arena_alloc(arena, (size_t)zt_n_keys, sizeof *ld->given);

    const struct zt_node *root = zt_load_tree(ld);
    settings->r.path = zt_arena_strdup(arena, ld->main->name);
    zt_load_bind(ld, root);
    zt_load_resolve(ld);
    int rc = zt_diag_report(&ld->errors, err);
    if (rc == 0) {
        zt_load_values(ld);
        take_notes(ld);
        *out = &settings->r;
    } else {
        zt_recipe_free(&settings->r);
    }
    free(ld);
    return rc;
}

void zt_recipe_free(struct zt_recipe *r)
{
    if (!r)
        return;
    zt_arena_release(&r->arena);
    free(r); /* the settings that it stands first in */
}
