#include "fit.h"

#include "gpus.h"
#include "train/train.h"

/*
 * What a worker will hold beside its arenas: the program, its libraries and their scratch, page tables,
 * on a GPU NCCL. It is not known before the worker runs (its end shows it, as "outside"; there it is
 * measured), so these are allowances.
 */
enum { LIBRARIES_SHARE = 32 /* of what is free */, PROGRAM_BYTES = 64 << 20 };

static size_t less_outside(size_t bytes)
{
    const size_t outside = bytes / LIBRARIES_SHARE + PROGRAM_BYTES;
    return bytes > outside ? bytes - outside : 0;
}

/* ---- what is free ---- */

/* On this machine, of its workers, where GPUs are not asked for or not known. */
static int limit_both(const struct cmd_devices *dev, struct zt_fit_limits *out, struct zt_err *err)
{
    size_t bytes;
    if (dev->n_here == 0)
        return 0;
    int rc = cmd_host_memory(&bytes, err);
    if (!rc)
        out->both = (struct zt_fit_limit){less_outside(bytes / (size_t)dev->n_here),
                                          "its part of what is free on this machine"};
    return rc;
}

int cmd_fit_limits(const struct zt_recipe *r, const struct cmd_devices *dev, bool measure,
                   struct zt_fit_limits *out, struct zt_err *err)
{
    const int n = dev->on_a_host, per_gpu = ZT_MAX(dev->per_gpu, 1);
    struct zt_arena arena = {0};
    struct cmd_free free = dev->free;
    int rc = 0;
    *out = ZT_FIT_NO_LIMITS;
    out->nvme_path = r->zero.nvme.given;
    if (r->device_memory > 0)
        out->device = (struct zt_fit_limit){(size_t)r->device_memory, "--device_memory"};
    if (r->host_memory > 0)
        out->host =
            (struct zt_fit_limit){(size_t)r->host_memory / (size_t)n, "its part of --host_memory"};
    if (!measure)
        return 0;
    if (dev->kind == ZT_DEV_CPU || (!free.cores && !cmd_may_have_gpus()))
        return limit_both(dev, out, err); /* planned for GPUs elsewhere: ours is all we know */
    if (!free.cores)
        rc = cmd_free_here(n / per_gpu, n, &arena, &free, err);
    if (!rc && out->host.bytes == SIZE_MAX)
        out->host = (struct zt_fit_limit){less_outside(free.host_bytes), free.host_what};
    if (!rc && out->device.bytes == SIZE_MAX)
        out->device = (struct zt_fit_limit){
            (free.gpu_bytes - free.gpu_bytes / LIBRARIES_SHARE) / (size_t)per_gpu, free.gpu_what};
    zt_arena_release(&arena); /* of this machine's GPUs the words are literals */
    return rc;
}

/* ---- too large ---- */

int cmd_fit_check(const char *name, const struct zt_plan *p, const struct zt_fit_limits *limits)
{
    struct zt_fit changes;
    struct zt_err err;
    struct zt_str text = {0};
    if (zt_fit_fits(p, limits))
        return 0;
    struct zt_fit_limits all = *limits;
    if (!all.nvme_path)
        all.nvme_path = ZT_FIT_ANY_FOLDER;
    int rc = zt_fit_search(p->model, &p->cfg, &all, ZT_FIT_CHANGES, &changes, &err);
    ZT_ASSERT_CMP(rc, ==, 0); /* it was planned */
    zt_fit_print_refusal(p, &changes, limits, &text);
    cmd_error("%s: it does not fit: %s", name, zt_str_get(&text));
    zt_str_release(&text);
    zt_fit_release(&changes);
    return ZT_EXIT_MEMORY;
}

/* ---- stage: auto ---- */

static void take_choice(struct cmd_options *o, const struct zt_fit_choice *best)
{
    const char *const *sets;
    int n;
    zt_fit_sets(best, true, &o->arena, &n, &sets);
    o->chosen.n = n;
    o->chosen.items = zt_arena_alloc(&o->arena, (size_t)n, sizeof *o->chosen.items);
    for (int i = 0; i < n; i++)
        o->chosen.items[i] = sets[i];
}

static int no_choice(const struct zt_fit *fit, struct zt_err *err)
{
    struct zt_str text = {0};
    zt_fit_print_least(fit, ZT_FIT_ALL, &text);
    int rc = zt_err_set(err, ZT_ENOMEM, "zero_optimization.stage: auto: %s", zt_str_get(&text));
    zt_str_release(&text);
    return rc;
}

static int search(const struct cmd_options *o, const struct zt_recipe *r,
                  const struct cmd_devices *dev, const struct zt_fit_limits *limits,
                  struct zt_fit *out, struct zt_err *err)
{
    struct zt_arena arena = {0};
    struct zt_model *model;
    struct zt_plan_config cfg;
    int rc = zt_train_model(r, &arena, &model, err);
    if (!rc)
        rc = cmd_plan_config(r, model, dev, 0, &cfg, err);
    if (!rc && o->profile)
        cfg.profile = zt_profile_find(o->profile);
    if (!rc)
        rc = zt_fit_search(model, &cfg, limits, ZT_FIT_ALL, out, err);
    zt_arena_release(&arena);
    return rc;
}

int cmd_fit_choose(struct cmd_options *o, const struct zt_recipe *r, const struct cmd_devices *dev,
                   const struct zt_fit_limits *limits, enum cmd_fit_show show, struct zt_str *out,
                   struct zt_err *err)
{
    struct zt_fit fit = {0};
    int rc = search(o, r, dev, limits, &fit, err);
    if (!rc && show == CMD_FIT_JSON)
        zt_fit_print_json(&fit, limits, out);
    else if (!rc && show == CMD_FIT_TABLE)
        zt_fit_print_table(&fit, limits, out);
    const struct zt_fit_choice *best = rc ? NULL : zt_fit_cheapest(&fit);
    if (best)
        take_choice(o, best);
    else if (!rc)
        rc = no_choice(&fit, err);
    zt_fit_release(&fit);
    return rc ? zt_err_wrap(err, "%s", o->recipe_path) : 0;
}
