/*
 * plan.c: `zerotrain plan`: what every worker will hold, send and do. Needs no device and no data.
 */
#include "cmd.h"

#include "devices.h"
#include "train/train.h"

enum { N_STAGES = 4 };

struct planning {
    struct zt_recipe *r;
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_plan *stages[N_STAGES];
};

static int build(struct planning *pl, const struct cmd_options *o, int n_ranks, struct zt_err *err)
{
    bool cpu = strcmp(o->device, "cpu") == 0;
    int threads = cpu ? cmd_threads(pl->r, n_ranks) : 1;
    int rc = zt_train_model(pl->r, &pl->arena, &pl->model, err);
    for (int s = 0; s < N_STAGES && !rc; s++) {
        struct zt_plan_config cfg;
        rc = zt_train_plan_config(pl->r, pl->model, n_ranks, threads,
                                  cpu ? ZT_DEV_CPU : ZT_DEV_CUDA, s, &cfg, err);
        if (s == 0) /* there is nothing to offload from a rank's own full state at stage 0 */
            cfg.offload_optimizer = ZT_OFFLOAD_NONE;
        if (!rc && o->profile)
            cfg.profile = zt_profile_find(o->profile);
        if (!rc)
            rc = zt_plan_build(pl->model, &cfg, o->rank, &pl->stages[s], err);
    }
    return rc;
}

static void print(const struct planning *pl, const struct cmd_options *o)
{
    const struct zt_plan *const *stages = (const struct zt_plan *const *)pl->stages;
    struct zt_str out = {0};
    if (o->json)
        zt_plan_print_json(stages, N_STAGES, o->schedule, &out);
    else if (o->schedule)
        zt_plan_print_schedule(pl->stages[pl->r->zero.stage], &out);
    else
        zt_plan_print_ledger(stages, N_STAGES, &out);
    fwrite(zt_str_get(&out), 1, out.len, stdout);
    zt_str_release(&out);
}

static void print_state_table(const struct zt_recipe *r, const struct cmd_options *o)
{
    struct zt_str out = {0};
    zt_print_state_table(r->model.params, o->num_gpus ? o->num_gpus : 4, &out);
    fwrite(zt_str_get(&out), 1, out.len, stdout);
    if (!o->num_gpus)
        puts("(for 4 ranks; --num_gpus=N for another number)");
    zt_str_release(&out);
}

int cmd_plan(int argc, char **argv)
{
    struct cmd_options o;
    int code = cmd_parse(argc, argv, true, &o);
    if (code >= 0)
        return code;
    int n_ranks = o.num_gpus ? o.num_gpus : 1;
    if (o.rank >= n_ranks) {
        cmd_error("--rank=%d: ranks are 0 to %d (--num_gpus=%d)", o.rank, n_ranks - 1, n_ranks);
        return ZT_EXIT_USAGE;
    }
    if (o.profile && !zt_profile_find(o.profile)) {
        cmd_error("--profile: \"%s\" is not fast, slow or cpu", o.profile);
        return ZT_EXIT_USAGE;
    }
    struct planning pl = {0};
    struct zt_err err = {0};
    code = cmd_load_recipe(&o, n_ranks, true, &pl.r);
    if (code)
        return code;
    for (int i = 0; i < pl.r->n_notes; i++)
        fprintf(stderr, "note: %s\n", pl.r->notes[i].text);
    if (o.print_recipe) {
        struct zt_str out = {0};
        zt_recipe_print(pl.r, &out);
        fwrite(zt_str_get(&out), 1, out.len, stdout);
        zt_str_release(&out);
    } else if (pl.r->model.params > 0) {
        print_state_table(pl.r, &o);
    } else {
        int rc = build(&pl, &o, n_ranks, &err);
        if (rc)
            cmd_error("%s: %s", o.recipe_path, err.msg);
        else
            print(&pl, &o);
        code = zt_exit_code(rc);
    }
    for (int s = 0; s < N_STAGES; s++)
        if (pl.stages[s])
            zt_plan_free(pl.stages[s]);
    zt_arena_release(&pl.arena);
    zt_recipe_free(pl.r);
    return code;
}
