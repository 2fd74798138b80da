#include "recipe/load.h"

/* A path of the current folder, for workers that may have another. */
static const char *absolute(struct zt_load *ld, const char *path)
{
    char *cwd = path[0] == '/' ? NULL : realpath(".", NULL);
    const char *out = cwd ? zt_arena_printf(ld->arena, "%s/%s", cwd, path) : path;
    free(cwd);
    return out;
}

static void need_dir(struct zt_load *ld, const char *key, bool given)
{
    if (given)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, key),
                    "%s: there is no checkpoint.dir: give a folder for checkpoints", key);
}

void zt_load_resolve_checkpoint(struct zt_load *ld)
{
    struct zt_recipe_checkpoint *c = &ld->settings->r.checkpoint;
    const bool fresh = strcmp(c->resume, "never") == 0, newest = strcmp(c->resume, "newest") == 0;
    if (zt_load_any_bad(ld, "checkpoint"))
        return;
    if (c->dir && !*c->dir)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, "checkpoint.dir"),
                    "checkpoint.dir: must be a path");
    if (!c->dir) {
        need_dir(ld, "checkpoint.every_steps", c->every_steps > 0);
        need_dir(ld, "checkpoint.every_minutes", c->every_minutes > 0);
        need_dir(ld, "checkpoint.keep", c->keep > 0);
        need_dir(ld, "checkpoint.resume", newest);
    } else if (*c->dir) {
        c->dir = absolute(ld, c->dir);
    }
    if (c->keep_every > 0 && c->keep == 0)
        zt_diag_add(
            &ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, "checkpoint.keep_every"),
            "checkpoint.keep_every: without checkpoint.keep nothing is removed: give how many "
            "of the newest to keep besides");
    if (!fresh && !newest)
        c->resume = absolute(ld, c->resume);
}
