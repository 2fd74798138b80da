/*
 * train.c: `zerotrain [OPTIONS] RECIPE.yaml`. Everything that can be wrong is found here, before any
 * process is started: recipe, plan of every rank, data, weights. Then the launcher takes over.
 */
#include "cmd.h"

#include <errno.h>
#include <time.h>

#include "base/io.h"
#include "devices.h"
#include "display.h"
#include "launch/env.h"
#include "launch/launch.h"
#include "train/train.h"

struct job {
    struct cmd_options o;
    struct cmd_devices dev;
    struct zt_recipe *r;
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_plan *plan; /* rank 0's */
    struct zt_str log_dir;
    int threads;
};

/* Plans of all ranks must agree before a rank starts. */
static int plan_all_ranks(struct job *j, struct zt_err *err)
{
    int n = j->dev.n_workers;
    struct zt_plan_config cfg;
    struct zt_plan **plans = zt_xcalloc((size_t)n, sizeof *plans);
    int rc = zt_train_model(j->r, &j->arena, &j->model, err);
    if (!rc)
        rc = zt_train_plan_config(j->r, j->model, n, j->threads, j->dev.kind, -1, &cfg, err);
    for (int i = 0; i < n && !rc; i++)
        rc = zt_plan_build(j->model, &cfg, i, &plans[i], err);
    if (!rc)
        rc = zt_verify_ranks((const struct zt_plan *const *)plans, n, err);
    if (!rc) {
        j->plan = plans[0];
        plans[0] = NULL;
    }
    for (int i = 0; i < n; i++)
        if (plans[i])
            zt_plan_free(plans[i]);
    free(plans);
    return rc;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* runs/NAME-TIME, or what --log_dir and log.dir say. */
static int make_log_dir(struct job *j, struct zt_err *err)
{
    const char *given = j->o.log_dir ? j->o.log_dir : j->r->log.dir;
    if (given) {
        zt_str_puts(&j->log_dir, given);
    } else {
        const char *file = base_name(j->o.recipe_path);
        const char *dot = strrchr(file, '.');
        int name_len = (int)(dot && dot != file ? (size_t)(dot - file) : strlen(file));
        char when[32];
        time_t now = time(NULL);
        struct tm tm;
        localtime_r(&now, &tm);
        strftime(when, sizeof when, "%Y%m%d-%H%M%S", &tm);
        if (j->r->log.name)
            zt_str_printf(&j->log_dir, "runs/%s-%s", j->r->log.name, when);
        else
            zt_str_printf(&j->log_dir, "runs/%.*s-%s", name_len, file, when);
    }
    return zt_make_dirs(j->log_dir.buf, err);
}

static void print_start(const struct job *j)
{
    const struct zt_recipe *r = j->r;
    const struct zt_plan *p = j->plan;
    const struct zt_program *train = &p->programs[ZT_PROG_TRAIN];
    size_t bytes = 0;
    char gb[32], gib[32];
    for (int a = 0; a < ZT_N_ARENAS; a++)
        bytes += p->ledger.peak[a];
    for (int i = 0; i < r->n_notes; i++)
        fprintf(stderr, "note: %s\n", r->notes[i].text);
    printf("%d %s worker%s x %d thread%s, ZeRO stage %d, %s\n", j->dev.n_workers,
           j->dev.kind == ZT_DEV_CPU ? "CPU" : "GPU", j->dev.n_workers == 1 ? "" : "s", j->threads,
           j->threads == 1 ? "" : "s", p->cfg.stage, zt_dtype_name(p->cfg.dtype));
    printf("model: %.2f M parameters; batch %lld = micro-batch %lld x accumulation %lld x %d "
           "ranks, %lld tokens a step\n",
           (double)j->model->n_elems * 1e-6, (long long)r->batch.train, (long long)r->batch.micro,
           (long long)r->batch.accum, r->n_ranks, (long long)(r->batch.train * p->cfg.seq_len));
    printf("plan: %d ops, %d waits, verified on all ranks; %s (%s) per rank\n", train->n_ops,
           train->n_waits, zt_fmt_gb(gb, sizeof gb, (double)bytes),
           zt_fmt_gib(gib, sizeof gib, (double)bytes));
    printf("run folder: %s\n", j->log_dir.buf);
    fflush(stdout);
}

static int start_and_wait(struct job *j)
{
    struct zt_err err = {0};
    struct zt_str recipe = {0}, path = {0};
    struct display display;
    struct zt_env env = {0};
    zt_recipe_print(j->r, &recipe);
    int rc = j->o.env_file ? zt_env_read_file(j->o.env_file, &env, &err) : 0;
    if (!rc)
        rc = make_log_dir(j, &err);
    zt_str_printf(&path, "%s/recipe.yaml", zt_str_get(&j->log_dir));
    if (!rc)
        rc = zt_write_file_atomic(path.buf, recipe.buf, recipe.len, &err);
    zt_str_release(&path);
    if (!rc)
        rc = display_init(&display, j->log_dir.buf, j->dev.n_workers, j->r->train.steps,
                          j->r->log.steps_per_print, j->plan, &err);
    if (rc) {
        zt_str_release(&recipe);
        zt_env_release(&env);
        cmd_error("%s", err.msg);
        return zt_exit_code(rc);
    }
    print_start(j);
    struct zt_launch_opts opts = {
        .n_workers = j->dev.n_workers,
        .env = (const char *const *)env.v,
        .n_env = (int)env.n,
        .recipe = recipe.buf,
        .recipe_len = recipe.len,
        .threads = j->threads,
        .rank_log_dir = j->o.rank_log_dir,
        .sink = {.ctx = &display,
                 .line = display_line,
                 .report = display_report,
                 .notice = display_notice,
                 .flush = display_flush},
    };
    struct zt_launch_result result;
    rc = zt_launch_run(&opts, &result, &err);
    display_summary(&display, rc ? zt_exit_code(rc) : result.exit_code);
    display_release(&display);
    zt_str_release(&recipe);
    zt_env_release(&env);
    if (rc) {
        cmd_error("%s", err.msg);
        return zt_exit_code(rc);
    }
    if (result.exit_code)
        cmd_error("%s", result.summary);
    return result.exit_code;
}

int cmd_train(int argc, char **argv)
{
    struct job j = {0};
    struct zt_err err = {0};
    int code = cmd_parse(argc, argv, false, &j.o);
    if (code >= 0)
        return code;
    code = cmd_pick_devices(&j.o, &j.dev);
    if (code)
        return code;
    code = cmd_load_recipe(&j.o, j.dev.n_workers, false, &j.r);
    if (code)
        return code;
    j.threads = cmd_threads(j.r, j.dev.n_workers);
    int rc = plan_all_ranks(&j, &err);
    if (!rc)
        rc = zt_train_check(j.r, j.model, &err);
    if (rc) {
        cmd_error("%s: %s", j.o.recipe_path, err.msg);
        code = zt_exit_code(rc);
    } else {
        code = start_and_wait(&j);
    }
    if (j.plan)
        zt_plan_free(j.plan);
    zt_str_release(&j.log_dir);
    zt_arena_release(&j.arena);
    zt_recipe_free(j.r);
    return code;
}
