/*
 * train.c: `zerotrain [OPTIONS] RECIPE.yaml`. Everything that can be wrong is found here, before
 * any process is started: recipe, plan of every rank, data, weights. Then the launcher takes
 * over.
 */
#include "cmd.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "ckpt/folder.h"
#include "devices.h"
#include "display.h"
#include "fit.h"
#include "hosts_in.h"
#include "join.h"
#include "launch/env.h"
#include "launch/launch.h"
#include "launch/supervisor.h"
#include "restart.h"
#include "run_folder.h"
#include "slurm.h"
#include "train/train.h"

struct job {
    struct cmd_options o;
    struct zt_str log_dir;
    struct zt_env env;
    struct display display;
    struct cmd_restart restart;
    struct zt_recipe_batch batch; /* of the first attempt, and its ranks; 0: it is this one */
    int first_ranks;
    int n_ranks; /* of the last attempt */
    bool begun;  /* an attempt has saved: what its folder has is this run's */

    /* Of this attempt: */
    struct cmd_devices dev;
    struct zt_recipe *r;
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_plan *plan; /* rank 0's */
    struct zt_str notes;  /* lines "note: ..." */
    struct zt_str from;   /* the checkpoint that it goes on from, or "" */
    struct zt_fit_limits limits;
    int threads;
    int64_t waits_since_ns; /* for the checkpoints' lock; 0: not yet, INT64_MAX: that is said */
    int told;               /* signal that has ended the wait */
};

static void release_attempt(struct job *j)
{
    if (j->plan)
        zt_plan_free(j->plan);
    j->plan = NULL;
    zt_str_release(&j->notes);
    zt_str_release(&j->from);
    zt_arena_release(&j->arena);
    zt_recipe_free(j->r);
    j->r = NULL;
    cmd_devices_release(&j->dev);
    j->waits_since_ns = 0;
}

/*
 * Plans of all ranks must agree before a rank starts. Of them rank 0's is kept: of long accumulations those of
 * many ranks take gigabytes.
 */
static int plan_all_ranks(struct job *j, struct zt_err *err)
{
    struct zt_plan_config cfg;
    int rc = zt_train_model(j->r, &j->arena, &j->model, err);
    if (!rc)
        rc = cmd_plan_config(j->r, j->model, &j->dev, -1, &cfg, err);
    if (!rc)
        rc = zt_plan_build(j->model, &cfg, 0, &j->plan, err);
    if (!rc)
        rc = zt_verify_ranks((const struct zt_plan *const *)&j->plan, 1, err);
    for (int i = 1; i < j->dev.n_workers && !rc; i++) {
        struct zt_plan *p;
        rc = zt_plan_build(j->model, &cfg, i, &p, err);
        if (!rc)
            rc = zt_verify_like(j->plan, p, err);
        zt_plan_free(p);
    }
    if (rc)
        return zt_err_wrap(err, "%s", j->o.recipe_path);
    return zt_train_check_disk(j->r, j->plan, j->dev.n_here, err);
}

static void describe_start(const struct job *j, struct zt_str *notes, struct zt_str *out)
{
    const struct zt_recipe *r = j->r;
    const struct zt_plan *p = j->plan;
    const struct zt_program *train = &p->programs[ZT_PROG_TRAIN];
    long long n_params = j->model->n_elems, n_frozen = 0;
    for (int i = 0; i < j->model->n_params; i++)
        n_frozen += j->model->params[i].trainable ? 0 : j->model->params[i].n_elems;
    if (j->dev.no_gpu)
        zt_str_printf(notes,
                      "Training with 1 CPU worker: %s. (--device=cpu --num_gpus=N starts N.)\n",
                      j->dev.no_gpu);
    for (int i = 0; i < r->n_notes; i++)
        zt_str_printf(notes, "note: %s\n", r->notes[i].text);
    zt_str_puts(notes, zt_str_get(&j->notes));
    const char *s = j->dev.n_workers == 1 ? "" : "s";
    if (j->dev.kind == ZT_DEV_CPU)
        zt_str_printf(out, "%d CPU worker%s x %d thread%s", j->dev.n_workers, s, j->threads,
                      j->threads == 1 ? "" : "s");
    else
        zt_str_printf(out, "%d GPU worker%s", j->dev.n_workers, s);
    if (j->o.nodes.n)
        zt_str_printf(out, " on %d host%s", j->o.nodes.n, j->o.nodes.n == 1 ? "" : "s");
    if (j->dev.per_gpu > 1)
        zt_str_printf(out, " (%d on each GPU)", j->dev.per_gpu);
    zt_str_printf(out, ", ZeRO stage %d, %s\n", p->cfg.stage, zt_dtype_name(p->cfg.dtype));
    char frozen[48] = "";
    if (n_frozen > 0)
        snprintf(frozen, sizeof frozen, ", %lld of them frozen", n_frozen);
    zt_str_printf(out,
                  "model: %s, %lld parameters%s; batch %lld = micro-batch %lld x accumulation %lld "
                  "x %d rank%s, %lld tokens a step\n",
                  r->model.model_type, n_params, frozen, (long long)r->batch.train,
                  (long long)r->batch.micro, (long long)r->batch.accum, r->n_ranks,
                  r->n_ranks == 1 ? "" : "s", (long long)(r->batch.train * p->cfg.seq_len));
    zt_str_printf(out, "plan: %d ops, %d waits, verified on all ranks\n", train->n_ops,
                  train->n_waits);
    display_ledger(p, out);
    zt_str_printf(out, "run folder: %s\n", j->log_dir.buf);
}

/* Signals still end us by themselves. */
static void print_start(const struct job *j)
{
    struct zt_str notes = {0}, out = {0};
    describe_start(j, &notes, &out);
    fputs(zt_str_get(&notes), stderr);
    fputs(out.buf, stdout);
    fflush(stdout);
    zt_str_release(&notes);
    zt_str_release(&out);
}

/* What of our environment other hosts need; what the user names comes after it and wins. */
static void add_for_others(struct zt_env *env)
{
    struct zt_env ours = {0};
    zt_env_add_all(&ours, environ);
    zt_env_add_for_remote(env, &ours);
    zt_env_release(&ours);
}

/* What the display takes from the recipe and the hosts of this attempt. */
static void set_display(struct job *j)
{
    struct display *d = &j->display;
    d->profile_path = j->r->profile.output_file;
    d->out.host_of = d->err.host_of = j->o.nodes.host_of;
}

/* The environment of all workers, in all attempts. 0, or an exit code after a message. */
static int find_env(struct job *j)
{
    struct zt_err err = {0};
    if (j->o.nodes.n)
        add_for_others(&j->env);
    int rc = j->o.hostfile ? zt_env_read_deepspeed(&j->env, &j->notes, &err) : 0;
    if (!rc && j->o.env_file)
        rc = zt_env_read_file(j->o.env_file, &j->env, &err);
    if (rc)
        cmd_error("%s", err.msg);
    return rc ? zt_exit_code(rc) : 0;
}

/* The run's folder with the resolved recipe, and the display: what all attempts share. */
static int prepare(struct job *j, struct zt_err *err)
{
    struct zt_str path = {0}, recipe = {0};
    FILE *metrics;
    int rc = cmd_run_folder(&j->o, j->r, &j->log_dir, &metrics, err);
    if (rc)
        return rc;
    display_init(&j->display, j->log_dir.buf, metrics, j->dev.n_workers, j->r->train.steps,
                 j->r->log.steps_per_print);
    if (j->from.len && !zt_ckpt_named_step(j->from.buf, &j->display.begun_step))
        j->display.begun_step = 0;
    set_display(j);
    zt_recipe_print(j->r, &recipe);
    zt_str_printf(&path, "%s/recipe.yaml", j->log_dir.buf);
    rc = zt_write_file_atomic(path.buf, recipe.buf, recipe.len, err);
    zt_str_release(&path);
    zt_str_release(&recipe);
    if (rc)
        display_release(&j->display);
    return rc;
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

/* How an attempt ended. */
struct outcome {
    int rc, code;
    bool told;          /* to end, between two attempts */
    bool said;          /* why, to a person */
    struct zt_str next; /* what follows from it, for a person */
    struct zt_err err;
    struct zt_launch_result result;
};

static const char *why(const struct outcome *end)
{
    return end->rc ? end->err.msg : end->result.summary;
}

static void srun_said(void *ctx, const char *text)
{
    struct job *j = ctx;
    if (j->first_ranks) /* the display is there */
        display_notice(&j->display, text);
    else
        cmd_error("%s", text);
}

/* With --launcher=slurm. 0, or an exit code after a message. */
static int start_srun(struct job *j)
{
    struct zt_launch_result result;
    struct zt_err err = {0};
    int rc = cmd_slurm_start(&j->o, srun_said, j, &result, &err);
    if (!rc)
        return 0;
    cmd_error("%s", err.msg);
    return cmd_slurm_exit_code(rc, &result);
}

/* Pre-empted while nothing runs: the newest checkpoint is what there is. */
static int code_between(int code)
{
    const bool asked = code == 128 + SIGTERM || code == 128 + SIGUSR1 || code == 128 + SIGHUP;
    return asked ? ZT_EXIT_PREEMPTED : code;
}

/* An exit code that says so: whoever told us to end knows. */
static bool is_told(int code)
{
    return code == ZT_EXIT_PREEMPTED || code > 128;
}

static void launch(struct job *j, struct outcome *end)
{
    struct zt_launch_node local[16];
    const bool elsewhere = j->o.nodes.n > 0;
    char dir[PATH_MAX];
    struct zt_str recipe = {0};
    zt_recipe_print(j->r, &recipe);
    struct zt_launch_opts opts = {
        .n_workers = j->dev.n_workers,
        .n_nodes = elsewhere ? j->o.nodes.n : local_nodes(local, ZT_ARRAY_LEN(local)),
        .nodes = elsewhere ? j->o.nodes.v : local,
        .name = j->restart.name[0] ? j->restart.name : NULL,
        .dir = getcwd(dir, sizeof dir),
        .env = (const char *const *)j->env.v,
        .n_env = (int)j->env.n,
        .recipe = recipe.buf,
        .recipe_len = recipe.len,
        .devices = j->dev.workers,
        .device = {.gpu = j->dev.kind == ZT_DEV_CUDA,
                   .ranks_per_gpu = j->dev.per_gpu,
                   .transport = j->o.transport},
        .cpus = j->o.cpus,
        .threads = j->threads,
        .preempted_code = j->r->checkpoint.dir ? ZT_EXIT_PREEMPTED : 0,
        .rank_log_dir = j->o.rank_log_dir,
        .rank_log_append = j->restart.used > 0,
        .sink = {.ctx = &j->display,
                 .line = display_line,
                 .report = display_report,
                 .notice = display_notice,
                 .tick = display_tick,
                 .flush = display_flush},
    };
    end->rc = cmd_slurm_start(&j->o, srun_said, j, &end->result, &end->err);
    if (end->rc) {
        end->code = cmd_slurm_exit_code(end->rc, &end->result);
    } else {
        opts.joined = j->o.joined;
        opts.srun = j->o.srun;
        end->rc = zt_launch_run(&opts, &end->result, &end->err);
        end->code = end->rc ? zt_exit_code(end->rc) : end->result.exit_code;
    }
    if (j->restart.started && end->result.told && !end->result.started)
        end->code = code_between(end->code);
    zt_str_release(&recipe);
}

static int reload_recipe(struct job *j, int64_t epoch_steps)
{
    zt_recipe_free(j->r);
    j->r = NULL;
    return cmd_load_recipe(&j->o, j->dev.n_workers, false, epoch_steps, &j->r);
}

/* Text for stdout, while an attempt is set up: the first one's at once. */
static void print_or_keep(struct job *j, const struct zt_str *text)
{
    if (j->first_ranks) {
        zt_str_puts(&j->display.out.buf, zt_str_get(text));
        return;
    }
    fputs(zt_str_get(text), stdout);
    fflush(stdout);
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
    struct zt_str shown = {0};
    const bool choose = j->r->zero.stage == ZT_STAGE_AUTO;
    int rc = j->r->train.epochs > 0 ? zt_train_epoch_steps(j->r, &steps, &err) : 0;
    if (!rc)
        rc = cmd_fit_limits(j->r, &j->dev, true, &j->limits, &err);
    if (!rc && choose)
        rc = cmd_fit_choose(&j->o, j->r, &j->dev, &j->limits, CMD_FIT_TABLE, &shown, &err);
    print_or_keep(j, &shown);
    zt_str_release(&shown);
    if (rc) {
        cmd_error("%s", err.msg);
        return zt_exit_code(rc);
    }
    return choose || steps > 0 ? reload_recipe(j, steps) : 0;
}

/* The recipe of another attempt goes on from what the ones before have saved, with their batch. */
static void change_settings(struct job *j)
{
    const int n = j->dev.n_workers;
    cmd_restart_settings(&j->restart, j->begun ? "newest" : NULL, &j->batch,
                         n != j->first_ranks ? n : 0, &j->o);
    j->o.fresh = j->o.fresh && !j->begun;
    if (n != j->n_ranks)
        j->o.chosen.n = 0; /* zero_optimization.stage: auto, for these ranks */
}

/* Options that say nothing without others. */
static int check_restarts(const struct job *j)
{
    if (j->o.elastic && !j->o.max_restarts)
        cmd_error("--elastic says with what to begin again: give --max_restarts=N too");
    else if (j->o.max_restarts && !j->r->checkpoint.dir)
        cmd_error(
            "--max_restarts=%d: the recipe has no checkpoint.dir, so there is nothing to go on "
            "from: give a folder for checkpoints, and checkpoint.every_steps or every_minutes",
            j->o.max_restarts);
    else if (j->o.max_restarts && j->o.nodes.n && j->o.joined && !j->o.srun)
        cmd_error("--max_restarts=%d: %s", j->o.max_restarts, cmd_join_again(&j->o));
    else
        return 0;
    return ZT_EXIT_USAGE;
}

/* While another run has the lock of the checkpoints: what is waited for is said once, and a signal ends it. */
static bool goes_on_waiting(void *ctx, const char *who, double left_s)
{
    enum { WITHOUT_A_WORD_S = 1 };
    struct job *j = ctx;
    const int64_t now_ns = zt_now_ns();
    if (j->waits_since_ns == 0)
        j->waits_since_ns = now_ns;
    if (now_ns - j->waits_since_ns >= (int64_t)WITHOUT_A_WORD_S * 1000000000) {
        cmd_error("%s is locked by %s: waiting for another %.0f s at most", j->r->checkpoint.dir,
                  who[0] ? who : "another run", left_s);
        j->waits_since_ns = INT64_MAX;
    }
    if (j->first_ranks)
        (void)display_flush(&j->display);
    j->told = zt_await_ending_signal(0);
    return j->told == 0;
}

static int told_between(struct job *j, int sig)
{
    char text[128];
    snprintf(text, sizeof text, "ended by signal %d (%s) before it began again", sig,
             strsignal(sig));
    if (j->first_ranks)
        display_say(&j->display, text);
    else
        cmd_error("%s", text);
    return code_between(128 + sig);
}

/* Hours of training must not end in a profile that cannot be written. */
static int check_profile(const struct zt_recipe *r, struct zt_err *err)
{
    static const char key[] = "flops_profiler.output_file";
    struct zt_err why;
    if (!r->profile.enabled || !r->profile.output_file ||
        !zt_write_file_check(r->profile.output_file, &why))
        return 0;
    return zt_err_set(err, ZT_EINPUT, "%s: %s: %s", zt_recipe_origin(r, key), key, why.msg);
}

/* Everything that can be wrong before workers are started, for this attempt. 0, or an exit code after a message. */
static int set_up(struct job *j)
{
    struct zt_err err = {0};
    int code = cmd_hosts_train(&j->o);
    if (!code && !j->first_ranks)
        code = find_env(j);
    if (!code && strcmp(j->o.device, "cpu") != 0 && !j->o.n_asked) /* hosts, for their GPUs */
        code = start_srun(j);
    if (!code)
        code = cmd_pick_devices(&j->o, &j->env, &j->dev);
    if (!code && j->first_ranks)
        change_settings(j);
    if (!code)
        code = load_recipe(j);
    if (code)
        return code;
    ZT_ASSERT(j->r);
    code = check_restarts(j);
    if (code)
        return code;
    j->threads = cmd_threads(j->r, &j->dev);
    const struct zt_ckpt_wait wait = {
        .most_s = j->first_ranks ? 60 : 5, .go_on = goes_on_waiting, .ctx = j};
    int rc = j->first_ranks ? 0 : check_profile(j->r, &err);
    if (!rc)
        rc = plan_all_ranks(j, &err);
    if (!rc)
        rc = zt_train_check(j->r, j->model, &j->notes, &err);
    if (!rc && !zt_fit_fits(j->plan, &j->limits)) {
        struct zt_str ledger = {0};
        display_ledger(j->plan, &ledger);
        print_or_keep(j, &ledger);
        zt_str_release(&ledger);
        return cmd_fit_check(j->o.recipe_path, j->plan, &j->limits);
    }
    if (!rc)
        rc = zt_train_check_checkpoints(j->r, j->model, j->o.fresh, &wait, &j->from, &j->notes,
                                        &err);
    if (j->told)
        return told_between(j, j->told);
    if (rc)
        cmd_error("%s", err.msg);
    return rc ? zt_exit_code(rc) : 0;
}

/*
 * Another attempt is set up, with less when `changed` or where GPUs are lost meanwhile; a person is told what it
 * goes on with. 0, or an exit code after a message.
 */
static int set_up_again(struct job *j, bool changed)
{
    release_attempt(j);
    cmd_say_through(&j->display.err);
    int code = set_up(j);
    cmd_say_through(NULL);
    if (code)
        return code;
    if (changed || j->dev.n_workers != j->n_ranks)
        describe_start(j, &j->display.err.buf, &j->display.out.buf);
    j->n_ranks = j->dev.n_workers;
    if (j->from.len)
        zt_str_printf(&j->display.err.buf, "zerotrain: going on from %s\n", j->from.buf);
    else
        display_say(&j->display,
                    "no checkpoint was saved yet: beginning with the first step again");
    display_again(&j->display, j->dev.n_workers, j->restart.used);
    set_display(j);
    return 0;
}

/*
 * Else another attempt begins as this one did, perhaps from a checkpoint of another run. Ranks save whether we hear of
 * their start or not; where the run did not go on from the folder itself, what is in it can only be theirs.
 */
static bool has_saved(const struct job *j)
{
    struct zt_err ignored;
    int64_t *steps;
    int n;
    if (!j->display.started && zt_train_goes_on_here(j->r))
        return false;
    if (!j->r->checkpoint.dir || zt_ckpt_steps(j->r->checkpoint.dir, &steps, &n, &ignored))
        return false;
    free(steps);
    return n > 0;
}

/* After an attempt: is there another one? Else end->code is the run's. It waits for no reader. */
static bool begin_again(struct job *j, struct outcome *end)
{
    const struct zt_launch_sink sink = {.ctx = &j->display, .flush = display_flush};
    struct zt_str left_out = {0};
    double wait_s;
    j->begun = j->begun || has_saved(j);
    if (!cmd_restart_again(&j->restart, end->rc, &end->result, &wait_s, &end->next))
        return false;
    cmd_slurm_end(&j->o, end->code);
    display_settle(&j->display);
    display_say(&j->display, why(end));
    const bool changed =
        j->o.elastic && cmd_restart_leave_out(&j->restart, &end->result, &j->dev, &j->o, &left_out);
    if (changed)
        display_say(&j->display, left_out.buf);
    display_say(&j->display, end->next.buf);
    zt_str_release(&left_out);
    zt_str_reset(&end->next);
    end->said = true;
    int sig = cmd_restart_wait(wait_s, &sink);
    if (!sig) {
        end->code = code_between(set_up_again(j, changed));
        sig = is_told(end->code) ? 0 : zt_await_ending_signal(0); /* it came meanwhile */
    }
    if (sig)
        end->code = told_between(j, sig);
    end->told = is_told(end->code);
    return end->code == 0;
}

static int finish(struct job *j, struct outcome *end)
{
    const bool told = end->told || end->result.told ||
                      (!end->rc && end->result.first_rank < 0 && end->code > 128);
    display_summary(&j->display, end->code);
    if (end->code && !end->said)
        display_say(&j->display, why(end));
    if (end->next.len)
        display_say(&j->display, end->next.buf);
    zt_str_release(&end->next);
    if (j->display.incomplete && !end->code) {
        display_say(&j->display,
                    "trained to the end, but not all of its record could be written: see above");
        end->code = ZT_EXIT_FAILURE;
    }
    cmd_join_leave(&j->o, end->code); /* who has joined waits for no reader of ours */
    const int lost = display_finish(&j->display, told);
    if (!lost || told)
        return end->code;
    if (lost == EAGAIN) /* told to end while a reader was waited for, and that is said */
        return end->code ? end->code : 128 + zt_await_ending_signal(0);
    cmd_error("standard output: %s", strerror(lost));
    return end->code ? end->code : ZT_EXIT_FAILURE;
}

static int start_and_wait(struct job *j)
{
    struct outcome end = {0};
    int rc = prepare(j, &end.err);
    if (rc) {
        cmd_error("%s", end.err.msg);
        return zt_exit_code(rc);
    }
    print_start(j);
    j->restart.max = j->o.max_restarts;
    j->restart.own_set = j->o.set;
    j->batch = j->r->batch;
    j->first_ranks = j->n_ranks = j->dev.n_workers;
    j->o.lost.batch = j->batch.train;
    j->o.device = j->dev.kind == ZT_DEV_CPU ? "cpu" : "cuda"; /* never the other */
    cmd_restart_begin(&j->restart);
    do {
        end.said = false;
        launch(j, &end);
    } while (begin_again(j, &end));
    const int code = finish(j, &end);
    cmd_restart_end(&j->restart);
    display_release(&j->display);
    return code;
}

/* The subcommand, once its options are known. */
static int train(struct job *j)
{
    bool done = false;
    int code = cmd_join(&j->o, &done);
    if (done)
        return code;
    if (!code) {
        cmd_slurm_note(&j->o);
        code = set_up(j);
    }
    return code ? code : start_and_wait(j);
}

int cmd_train(int argc, char **argv)
{
    struct job j = {0};
    int code = cmd_parse(argc, argv, CMD_TRAIN, &j.o);
    if (code < 0)
        code = train(&j);
    fflush(stdout);
    cmd_join_leave(&j.o, code);
    release_attempt(&j);
    zt_str_release(&j.log_dir);
    zt_env_release(&j.env);
    cmd_options_release(&j.o);
    return code;
}
