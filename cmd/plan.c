/*
 * plan.c: `zerotrain plan`: what every worker will hold, send and do. Needs no device and no data.
 */
#include "cmd.h"

#include "fit.h"
#include "hosts_in.h"
#include "plan_memory.h"
#include "train/train.h"

enum { N_STAGES = 4 };

struct planning {
    struct zt_recipe *r;
    struct cmd_devices dev; /* what is planned for: kind and number of workers */
    struct zt_fit_limits limits;
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_plan *stages[N_STAGES];
};

static int build(struct planning *pl, const struct cmd_options *o, struct zt_err *err)
{
    int rc = zt_train_model(pl->r, &pl->arena, &pl->model, err);
    for (int s = 0; s < N_STAGES && !rc; s++) {
        struct zt_plan_config cfg;
        rc = cmd_plan_config(pl->r, pl->model, &pl->dev, s, &cfg, err);
        if (rc)
            break;
        if (s == 0) /* there is nothing to offload from a rank's own full state at stage 0 */
            cfg.offload_optimizer = ZT_OFFLOAD_NONE;
        if (s < 3)
            cfg.offload_param = ZT_OFFLOAD_NONE;
        if (o->profile)
            cfg.profile = zt_profile_find(o->profile);
        rc = o->schedule ? zt_plan_build(pl->model, &cfg, o->rank, &pl->stages[s], err)
                         : zt_plan_build_folded(pl->model, &cfg, o->rank, &pl->stages[s], err);
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

static void print_state_json(double n_params, int n_ranks, struct zt_str *out)
{
    zt_str_printf(out, "{\n \"version\": 1,\n \"parameters\": %.0f,\n \"ranks\": %d,\n", n_params,
                  n_ranks);
    zt_str_puts(out, " \"state_bytes\": [");
    for (int stage = 0; stage < N_STAGES; stage++)
        zt_str_printf(out, "%s%.0f", stage ? ", " : "", zt_state_bytes(n_params, stage, n_ranks));
    zt_str_puts(out, "]\n}\n");
}

/* A number of parameters alone: there is no model whose ops and ranks could be shown. */
static int print_state(double n_params, const struct cmd_options *o)
{
    int n_ranks = o->num_gpus ? o->num_gpus : 4;
    struct zt_str out = {0};
    if (o->schedule || o->rank || o->profile || o->fit) {
        cmd_error("%s: model.params alone gives the table of resident state; %s needs a whole "
                  "model",
                  o->recipe_path,
                  o->fit        ? "--fit"
                  : o->schedule ? "--schedule"
                  : o->rank     ? "--rank"
                                : "--profile");
        return ZT_EXIT_USAGE;
    }
    if (o->json)
        print_state_json(n_params, n_ranks, &out);
    else
        zt_print_state_table(n_params, n_ranks, &out);
    if (!o->json && !o->num_gpus)
        zt_str_puts(&out, "(for 4 ranks; --num_gpus=N for another number)\n");
    fwrite(zt_str_get(&out), 1, out.len, stdout);
    zt_str_release(&out);
    return 0;
}

static int print_plan(struct planning *pl, const struct cmd_options *o)
{
    struct zt_err err = {0};
    int rc = build(pl, o, &err);
    if (rc) {
        cmd_error("%s: %s", o->recipe_path, err.msg);
        return zt_exit_code(rc);
    }
    print(pl, o);
    fflush(stdout);
    return cmd_fit_check(o->recipe_path, pl->stages[pl->r->zero.stage], &pl->limits);
}

/* What the recipe limits; where it leaves the stage to us and limits nothing, what is free here. */
static int load(struct planning *pl, struct cmd_options *o)
{
    struct zt_err err = {0};
    int code = cmd_load_recipe(o, pl->dev.n_workers, true, 0, &pl->r);
    if (code)
        return code;
    const bool choose = pl->r->zero.stage == ZT_STAGE_AUTO && pl->r->model.params == 0;
    if (cmd_fit_limits(pl->r, &pl->dev, choose && pl->r->device_memory == 0, &pl->limits, &err)) {
        cmd_error("%s", err.msg);
        return zt_exit_code(err.code);
    }
    if (!choose)
        return 0;
    const bool list = o->schedule || o->print_recipe;
    struct zt_str shown = {0};
    int rc = cmd_fit_choose(o, pl->r, &pl->dev, &pl->limits,
                            list || (o->json && !o->fit) ? CMD_FIT_QUIET
                            : o->json                    ? CMD_FIT_JSON
                                                         : CMD_FIT_TABLE,
                            &shown, &err);
    fputs(zt_str_get(&shown), stdout);
    fflush(stdout);
    zt_str_release(&shown);
    if (rc)
        cmd_error("%s", err.msg);
    zt_recipe_free(pl->r);
    pl->r = NULL;
    return rc ? zt_exit_code(rc) : cmd_load_recipe(o, pl->dev.n_workers, true, 0, &pl->r);
}

static void print_recipe(const struct zt_recipe *r)
{
    struct zt_str out = {0};
    zt_recipe_print(r, &out);
    fwrite(zt_str_get(&out), 1, out.len, stdout);
    zt_str_release(&out);
}

static int check_options(const struct cmd_options *o, int n_ranks)
{
    if (o->rank >= n_ranks)
        cmd_error("--rank=%d: ranks are 0 to %d (--num_gpus=%d)", o->rank, n_ranks - 1, n_ranks);
    else if (o->profile && !zt_profile_find(o->profile))
        cmd_error("--profile: \"%s\" is not fast, slow or cpu", o->profile);
    else if (o->print_recipe && (o->json || o->schedule))
        cmd_error("--print_recipe prints the recipe and no plan; leave out %s",
                  o->json ? "--json" : "--schedule");
    else if (o->deepspeed_estimate && (o->fit || o->schedule))
        cmd_error("--deepspeed_estimate prints its table alone; leave out %s",
                  o->fit ? "--fit" : "--schedule");
    else if (o->fit && o->schedule)
        cmd_error("--fit prints what was chosen and no schedule; leave out --schedule");
    else if (o->largest_layer && !o->deepspeed_estimate)
        cmd_error("--largest_layer is for --deepspeed_estimate, which is not given");
    else if (o->fit && o->device_memory)
        cmd_error("--fit=%s and --device_memory=%s both say what a rank may take; give one", o->fit,
                  o->device_memory);
    else
        return 0;
    return ZT_EXIT_USAGE;
}

static int show(struct planning *pl, const struct cmd_options *o)
{
    for (int i = 0; i < pl->r->n_notes; i++)
        fprintf(stderr, "note: %s\n", pl->r->notes[i].text);
    if (o->print_recipe)
        print_recipe(pl->r);
    else if (o->deepspeed_estimate)
        return plan_deepspeed_estimate(o, pl->r, &pl->dev);
    else if (pl->r->model.params > 0)
        return print_state(pl->r->model.params, o);
    else if (o->fit)
        plan_print_chosen(o);
    else
        return print_plan(pl, o);
    return 0;
}

/* The subcommand, once its options are known. */
static int plan(struct cmd_options *o)
{
    const int n = o->num_gpus ? o->num_gpus : 1;
    const int on_a_host =
        o->nodes.most ? o->nodes.most : n; /* hosts are taken to be like this one */
    struct planning pl = {.dev = {.kind = strcmp(o->device, "cpu") ? ZT_DEV_CUDA : ZT_DEV_CPU,
                                  .n_workers = n,
                                  .on_a_host = on_a_host,
                                  .n_here = on_a_host}};
    int code = check_options(o, pl.dev.n_workers);
    if (!code && o->largest)
        return plan_largest(o);
    if (!code)
        code = load(&pl, o);
    if (!code)
        code = show(&pl, o);
    for (int s = 0; s < N_STAGES; s++)
        if (pl.stages[s])
            zt_plan_free(pl.stages[s]);
    zt_arena_release(&pl.arena);
    zt_recipe_free(pl.r);
    return code;
}

int cmd_plan(int argc, char **argv)
{
    struct cmd_options o;
    int code = cmd_parse(argc, argv, CMD_PLAN, &o);
    if (code < 0) {
        code = cmd_hosts_count(&o);
        code = code ? code : plan(&o);
    }
    cmd_options_release(&o);
    return code;
}
