/*
 * train.c: `zerotrain [OPTIONS] RECIPE.yaml`. Everything that can be wrong is found here, before
 * any process is started: recipe, plan of every rank, data, weights. Then the launcher takes
 * over.
 */
#include "cmd.h"

#include <errno.h>
#include <limits.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "devices.h"
#include "display.h"
#include "fit.h"
#include "hosts_in.h"
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
    struct zt_str notes; /* lines "note: ..." */
    struct zt_env env;   /* for all workers */
    struct zt_fit_limits limits;
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
        rc = cmd_plan_config(j->r, j->model, &j->dev, -1, &cfg, err);
    for (int i = 0; i < n && !rc; i++)
        rc = zt_plan_build(j->model, &cfg, i, &plans[i], err);
    if (!rc)
        rc = zt_verify_ranks((const struct zt_plan *const *)plans, n, err);
    if (rc)
        rc = zt_err_wrap(err, "%s", j->o.recipe_path);
    else
        rc = zt_train_check_disk(j->r, (const struct zt_plan *const *)plans + j->o.nodes.first_here,
                                 j->dev.n_here, err);
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

/* How many bytes of a name go into a folder's: not half a UTF-8 character. */
static int cut_name(const char *name, size_t len)
{
    enum { MAX_BYTES = 100 };
    if (len <= MAX_BYTES)
        return (int)len;
    for (len = MAX_BYTES; len > 0 && ((unsigned char)name[len] & 0xc0) == 0x80;)
        len--;
    return (int)len;
}

/* runs/NAME-TIME, and -2, -3 ... for runs that start in the same second. */
static int make_new_dir(struct job *j, struct zt_err *err)
{
    enum { MAX_TRIES = 1000 };
    const char *slash = strrchr(j->o.recipe_path, '/');
    const char *name = slash ? slash + 1 : j->o.recipe_path;
    const char *dot = strrchr(name, '.');
    size_t len = dot && dot != name ? (size_t)(dot - name) : strlen(name);
    if (j->r->log.name) {
        name = j->r->log.name;
        len = strlen(name);
    }
    char when[32];
    time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", &tm);
    int rc = zt_make_dirs("runs", err);
    for (int i = 1; !rc && i <= MAX_TRIES; i++) {
        zt_str_reset(&j->log_dir);
        zt_str_printf(&j->log_dir, "runs/%.*s-%s", cut_name(name, len), name, when);
        if (i > 1)
            zt_str_printf(&j->log_dir, "-%d", i);
        if (mkdir(j->log_dir.buf, 0777) == 0)
            return 0;
        if (errno != EEXIST || i == MAX_TRIES)
            rc = zt_err_errno(err, ZT_EIO, "%s: mkdir", j->log_dir.buf);
    }
    return rc;
}

/*
 * What --log_dir or log.dir says; the record of an earlier run in it is not written over, but a run that goes
 * on from a checkpoint goes on with its record too.
 */
static int make_given_dir(struct job *j, const char *given, struct zt_err *err)
{
    struct zt_str path = {0};
    struct stat st;
    zt_str_puts(&j->log_dir, given);
    int rc = zt_make_dirs(given, err);
    zt_str_printf(&path, "%s/metrics.jsonl", given);
    const bool goes_on = strcmp(j->r->checkpoint.resume, "never") != 0;
    if (!rc && !goes_on && stat(path.buf, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        rc = zt_err_set(err, ZT_EINPUT,
                        "%s: holds the record of an earlier run; name another folder with "
                        "--log_dir, or remove it",
                        path.buf);
    zt_str_release(&path);
    return rc;
}

static int make_log_dir(struct job *j, struct zt_err *err)
{
    const char *given = j->o.log_dir ? j->o.log_dir : j->r->log.dir;
    return given ? make_given_dir(j, given, err) : make_new_dir(j, err);
}

static void print_start(const struct job *j)
{
    const struct zt_recipe *r = j->r;
    const struct zt_plan *p = j->plan;
    const struct zt_program *train = &p->programs[ZT_PROG_TRAIN];
    long long n_params = j->model->n_elems, n_frozen = 0;
    for (int i = 0; i < j->model->n_params; i++)
        n_frozen += j->model->params[i].trainable ? 0 : j->model->params[i].n_elems;
    for (int i = 0; i < r->n_notes; i++)
        fprintf(stderr, "note: %s\n", r->notes[i].text);
    fputs(zt_str_get(&j->notes), stderr);
    const char *s = j->dev.n_workers == 1 ? "" : "s";
    if (j->dev.kind == ZT_DEV_CPU)
        printf("%d CPU worker%s x %d thread%s", j->dev.n_workers, s, j->threads,
               j->threads == 1 ? "" : "s");
    else
        printf("%d GPU worker%s", j->dev.n_workers, s);
    if (j->o.nodes.n)
        printf(" on %d host%s", j->o.nodes.n, j->o.nodes.n == 1 ? "" : "s");
    if (j->dev.per_gpu > 1)
        printf(" (%d on each GPU)", j->dev.per_gpu);
    printf(", ZeRO stage %d, %s\n", p->cfg.stage, zt_dtype_name(p->cfg.dtype));
    char frozen[48] = "";
    if (n_frozen > 0)
        snprintf(frozen, sizeof frozen, ", %lld of them frozen", n_frozen);
    printf("model: %s, %lld parameters%s; batch %lld = micro-batch %lld x accumulation %lld x %d "
           "rank%s, %lld tokens a step\n",
           r->model.model_type, n_params, frozen, (long long)r->batch.train,
           (long long)r->batch.micro, (long long)r->batch.accum, r->n_ranks,
           r->n_ranks == 1 ? "" : "s", (long long)(r->batch.train * p->cfg.seq_len));
    printf("plan: %d ops, %d waits, verified on all ranks\n", train->n_ops, train->n_waits);
    display_ledger(p);
    printf("run folder: %s\n", j->log_dir.buf);
    fflush(stdout);
}

/* What of our environment other hosts need; what the user names comes after it and wins. */
static void add_for_others(struct zt_env *env)
{
    struct zt_env ours = {0};
    zt_env_add_all(&ours, environ);
    zt_env_add_for_remote(env, &ours);
    zt_env_release(&ours);
}

/* Where workers run, what on, and with which environment. 0, or an exit code after a message. */
static int find_place(struct job *j)
{
    struct zt_err err = {0};
    int code = cmd_hosts_train(&j->o);
    if (code)
        return code;
    if (j->o.nodes.n)
        add_for_others(&j->env);
    int rc = j->o.hostfile ? zt_env_read_deepspeed(&j->env, &j->notes, &err) : 0;
    if (!rc && j->o.env_file)
        rc = zt_env_read_file(j->o.env_file, &j->env, &err);
    if (!rc)
        return cmd_pick_devices(&j->o, &j->env, &j->dev);
    cmd_error("%s", err.msg);
    return zt_exit_code(rc);
}

/* Folder, resolved recipe and display: what a run needs before workers start. */
static int prepare(struct job *j, const struct zt_str *recipe, struct display *display,
                   struct zt_err *err)
{
    struct zt_str path = {0};
    int rc = make_log_dir(j, err);
    if (rc)
        return rc;
    zt_str_printf(&path, "%s/recipe.yaml", j->log_dir.buf);
    rc = zt_write_file_atomic(path.buf, recipe->buf, recipe->len, err);
    zt_str_release(&path);
    if (!rc)
        rc = display_init(display, j->log_dir.buf, j->dev.n_workers, j->r->train.steps,
                          j->r->log.steps_per_print, err);
    if (rc)
        return rc;
    display->profile_path = j->r->profile.output_file;
    display->out.host_of = display->err.host_of = j->o.nodes.host_of;
    return 0;
}

/*
 * For tests: ZT_TEST_LOCAL_NODES=2,1 makes two nodes of this host, of 2 and 1 ranks, each with an agent of
 * its own, that talk over the loopback interface. How many; 0: the variable is not set.
 */
static int local_nodes(struct zt_launch_node *nodes, int max)
{
    const char *at = getenv("ZT_TEST_LOCAL_NODES");
    int n = 0;
    for (char *end; at && *at && n < max; at = *end ? end + 1 : end, n++)
        nodes[n] =
            (struct zt_launch_node){.n_workers = (int)strtol(at, &end, 10), .address = "127.0.0.1"};
    return n;
}

static int launch(const struct job *j, const struct zt_str *recipe, struct display *display)
{
    struct zt_err err = {0};
    struct zt_launch_node local[16];
    const bool elsewhere = j->o.nodes.n > 0;
    char dir[PATH_MAX];
    struct zt_launch_opts opts = {
        .n_workers = j->dev.n_workers,
        .n_nodes = elsewhere ? j->o.nodes.n : local_nodes(local, ZT_ARRAY_LEN(local)),
        .nodes = elsewhere ? j->o.nodes.v : local,
        .dir = getcwd(dir, sizeof dir),
        .env = (const char *const *)j->env.v,
        .n_env = (int)j->env.n,
        .recipe = recipe->buf,
        .recipe_len = recipe->len,
        .devices = j->dev.workers,
        .device = {.gpu = j->dev.kind == ZT_DEV_CUDA,
                   .ranks_per_gpu = j->dev.per_gpu,
                   .transport = j->o.transport},
        .threads = j->threads,
        .preempted_code = j->r->checkpoint.dir ? ZT_EXIT_PREEMPTED : 0,
        .rank_log_dir = j->o.rank_log_dir,
        .sink = {.ctx = display,
                 .line = display_line,
                 .report = display_report,
                 .notice = display_notice,
                 .tick = display_tick,
                 .flush = display_flush},
    };
    struct zt_launch_result result = {0};
    int rc = zt_launch_run(&opts, &result, &err);
    int code = rc ? zt_exit_code(rc) : result.exit_code;
    bool told_to_end = !rc && result.first_rank < 0 && code > 128;
    int lost = display_summary(display, code, told_to_end);
    if (code)
        cmd_error("%s", rc ? err.msg : result.summary);
    if (!lost || told_to_end)
        return code;
    cmd_error("standard output: %s", strerror(lost));
    return code ? code : ZT_EXIT_FAILURE;
}

static int start_and_wait(struct job *j)
{
    struct zt_err err = {0};
    struct zt_str recipe = {0};
    struct display display;
    int code;
    zt_recipe_print(j->r, &recipe);
    int rc = prepare(j, &recipe, &display, &err);
    if (rc) {
        cmd_error("%s", err.msg);
        code = zt_exit_code(rc);
    } else {
        print_start(j);
        code = launch(j, &recipe, &display);
        display_release(&display);
    }
    zt_str_release(&recipe);
    return code;
}

static int reload_recipe(struct job *j, int64_t epoch_steps)
{
    zt_recipe_free(j->r);
    j->r = NULL;
    return cmd_load_recipe(&j->o, j->dev.n_workers, false, epoch_steps, &j->r);
}

/*
 * The recipe; again when the data has told how many steps its epochs are, or once the stage is chosen.
 */
static int load_recipe(struct job *j)
{
    struct zt_err err = {0};
    int64_t steps = 0;
    int code = cmd_load_recipe(&j->o, j->dev.n_workers, false, 0, &j->r);
    if (code)
        return code;
    int rc = j->r->train.epochs > 0 ? zt_train_epoch_steps(j->r, &steps, &err) : 0;
    if (!rc)
        rc = cmd_fit_limits(j->r, &j->dev, true, &j->limits, &err);
    if (rc) {
        cmd_error("%s", err.msg);
        return zt_exit_code(rc);
    }
    const bool choose = j->r->zero.stage == ZT_STAGE_AUTO;
    if (choose)
        code = cmd_fit_choose(&j->o, j->r, &j->dev, &j->limits, CMD_FIT_TABLE);
    return code || !(choose || steps > 0) ? code : reload_recipe(j, steps);
}

/* The subcommand, once its options are known. */
static int train(struct job *j)
{
    struct zt_err err = {0};
    int code = cmd_hosts_alone();
    if (!code)
        code = find_place(j);
    if (!code)
        code = load_recipe(j);
    if (code)
        return code;
    j->threads = cmd_threads(j->r, &j->dev);
    int rc = plan_all_ranks(j, &err);
    if (!rc)
        rc = zt_train_check(j->r, j->model, &j->notes, &err);
    if (!rc && !zt_fit_fits(j->plan, &j->limits)) {
        display_ledger(j->plan);
        fflush(stdout);
        return cmd_fit_check(j->o.recipe_path, j->plan, &j->limits);
    }
    if (!rc)
        rc = zt_train_check_checkpoints(j->r, j->model, j->o.fresh, &j->notes, &err);
    if (!rc)
        return start_and_wait(j);
    cmd_error("%s", err.msg);
    return zt_exit_code(rc);
}

int cmd_train(int argc, char **argv)
{
    struct job j = {0};
    int code = cmd_parse(argc, argv, CMD_TRAIN, &j.o);
    if (code < 0)
        code = train(&j);
    if (j.plan)
        zt_plan_free(j.plan);
    zt_str_release(&j.log_dir);
    zt_str_release(&j.notes);
    zt_env_release(&j.env);
    zt_arena_release(&j.arena);
    zt_recipe_free(j.r);
    cmd_devices_release(&j.dev);
    cmd_options_release(&j.o);
    return code;
}
