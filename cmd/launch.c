#include "cmd.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "exact.h"
#include "launch/env.h"
#include "launch/launch.h"
#include "launch/supervisor.h"
#include "rank_out.h"
#include "restart.h"

static const char usage[] =
    "usage: zerotrain launch [options] [--] PROGRAM [ARG...]\n"
    "\n"
    "Run PROGRAM once per rank, with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR\n"
    "and MASTER_PORT in its environment, and its output prefixed with the rank. When one fails, "
    "the\n"
    "others are ended, and its exit code (or 128 + signal) is ours. Nothing is left running.\n"
    "\n"
    "  --num_gpus N                number of ranks (default: one per visible GPU, else 1)\n"
    "  --env NAME=VALUE            for every rank; repeatable. Split at the first '='\n"
    "  --env_file FILE             lines NAME=VALUE; blank lines and lines that start with # are\n"
    "                              skipped. No other file (such as .deepspeed_env) is read\n"
    "  --grace SECONDS             between SIGTERM and SIGKILL when ranks are ended (default: 3)\n"
    "  --max_restarts N            when a rank fails, end all and begin again, N times at most;\n"
    "                              ranks see in TORCHELASTIC_RESTART_COUNT how often it was\n"
    "  --enable_each_rank_log DIR  also write each rank's output to DIR/rank-N.log\n"
    "  --help                      this text\n";

struct options {
    struct zt_launch_opts launch;
    struct zt_env env;
    struct cmd_restart restart;
};

/* ---- output ---- */

struct printer {
    struct rank_out out, err;
};

static void print_line(void *ctx, int rank, enum zt_log_stream s, const char *line, size_t len)
{
    struct printer *p = ctx;
    rank_out_line(s == ZT_LOG_STDOUT ? &p->out : &p->err, rank, line, len);
}

static void print_report(void *ctx, int rank, const char *json, size_t len)
{
    print_line(ctx, rank, ZT_LOG_STDERR, json, len);
}

static void print_notice(void *ctx, const char *text)
{
    struct printer *p = ctx;
    zt_str_printf(&p->err.buf, "zerotrain: %s\n", text);
}

static int flush(void *ctx)
{
    struct printer *p = ctx;
    return rank_out_flush_both(&p->out, &p->err);
}

/* ---- options ---- */

static int take_option(struct options *o, int option, const char *value, struct zt_err *err)
{
    int64_t n;
    switch (option) {
    case 'n':
        if (!zt_parse_i64(value, &n) || n < 1 || n > ZT_LAUNCH_MAX_WORKERS)
            return zt_err_set(err, ZT_EINPUT, "--num_gpus=%s: a number from 1 to %d is needed",
                              value, ZT_LAUNCH_MAX_WORKERS);
        o->launch.n_workers = (int)n;
        return 0;
    case 'e':
        if (zt_env_check(value, strlen(value), err))
            return zt_err_wrap(err, "--env");
        zt_env_set(&o->env, value, strlen(value));
        return 0;
    case 'f':
        return zt_env_read_file(value, &o->env, err);
    case 'r':
        if (!zt_parse_i64(value, &n) || n < 0 || n > CMD_MAX_RESTARTS)
            return zt_err_set(err, ZT_EINPUT, "--max_restarts=%s: a number from 0 to %d is needed",
                              value, CMD_MAX_RESTARTS);
        o->restart.max = (int)n;
        return 0;
    case 'g':
        if (!zt_parse_f64(value, &o->launch.grace_s) || o->launch.grace_s <= 0)
            return zt_err_set(err, ZT_EINPUT, "--grace=%s: seconds above 0 are needed", value);
        return 0;
    default:
        o->launch.rank_log_dir = value;
        return 0;
    }
}

/* One rank per visible GPU. */
static int default_workers(struct options *o, struct zt_err *err)
{
    struct zt_str buf = {0};
    const char *entries[ZT_LAUNCH_MAX_WORKERS];
    int n = 0;
    int rc = zt_pick_devices(getenv("CUDA_VISIBLE_DEVICES"), zt_count_devices(), 0, &buf, entries,
                             ZT_LAUNCH_MAX_WORKERS, &n, err);
    zt_str_release(&buf);
    if (rc)
        return rc;
    o->launch.n_workers = ZT_MAX(n, 1);
    if (n == 0)
        fprintf(stderr,
                "zerotrain: no GPU is visible: starting 1 rank; --num_gpus N starts more\n");
    return 0;
}

/* 1: --help was asked for. */
static int parse(struct options *o, int argc, char **argv, struct zt_err *err)
{
    static const struct option longs[] = {
        {"num_gpus", required_argument, NULL, 'n'},
        {"env", required_argument, NULL, 'e'},
        {"env_file", required_argument, NULL, 'f'},
        {"grace", required_argument, NULL, 'g'},
        {"max_restarts", required_argument, NULL, 'r'},
        {"enable_each_rank_log", required_argument, NULL, 'l'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    static const struct cmd_optset set = {.command = "launch", .longs = longs, .in_order = true};
    int option, rc = 0;
    while (!rc && (option = cmd_getopt(&set, argc, argv, err)) != -1) {
        if (option == 'h')
            return 1;
        if (option == '?')
            return err->code;
        rc = take_option(o, option, optarg, err);
    }
    if (rc)
        return rc;
    if (optind == argc)
        return zt_err_set(err, ZT_EINPUT, "no program to run; see --help");
    o->launch.program = (const char *const *)argv + optind;
    return o->launch.n_workers ? 0 : default_workers(o, err);
}

/* Nothing of an attempt is left when the next one begins. Its error is in *err, its end in *result. */
static int run(struct options *o, struct zt_launch_result *result, struct zt_err *err)
{
    struct zt_str say = {0};
    double wait_s;
    int sig = 0, rc;
    o->restart.any_code = true;
    do {
        if (o->restart.max > 0)
            zt_env_setf(&o->env, "TORCHELASTIC_RESTART_COUNT=%d", o->restart.used);
        o->launch.env = (const char *const *)o->env.v;
        o->launch.n_env = (int)o->env.n;
        o->launch.rank_log_append = o->restart.used > 0;
        rc = zt_launch_run(&o->launch, result, err);
        zt_str_reset(&say);
        if (!cmd_restart_again(&o->restart, rc, result, &wait_s, &say))
            break;
        print_notice(o->launch.sink.ctx, result->summary);
        print_notice(o->launch.sink.ctx, say.buf);
        sig = cmd_restart_wait(wait_s, &o->launch.sink);
    } while (!sig);
    if (sig) {
        result->told = sig;
        result->exit_code = 128 + sig;
        snprintf(result->summary, sizeof result->summary,
                 "ended by signal %d (%s) before it began again", sig, strsignal(sig));
    } else if (say.len) {
        const size_t used = strlen(result->summary);
        snprintf(result->summary + used, sizeof result->summary - used, "\nzerotrain: %s", say.buf);
    }
    zt_str_release(&say);
    return rc;
}

/* What is left to say, to whoever reads. Returns the exit code. */
static int finish(struct printer *p, const struct zt_launch_result *result, int rc,
                  const struct zt_err *err)
{
    const bool told = result->told || (result->first_rank < 0 && result->exit_code > 128);
    const int code = rc == ZT_EINPUT || rc == ZT_EUSAGE ? 2 : rc < 0 ? 1 : result->exit_code;
    if (rc < 0)
        zt_str_printf(&p->err.buf, "zerotrain launch: %s\n", err->msg);
    if (result->summary[0])
        print_notice(p, result->summary);
    const int lost = rank_out_finish_both(&p->out, &p->err, told);
    if (!lost || told)
        return code;
    if (lost == EAGAIN) /* told to end while a reader was waited for, and that is said */
        return code ? code : 128 + zt_await_ending_signal(0);
    cmd_error("output was lost: %s", strerror(lost));
    return code ? code : 1;
}

int cmd_launch(int argc, char **argv)
{
    struct printer p = {.out = {.fd = STDOUT_FILENO}, .err = {.fd = STDERR_FILENO}};
    struct options o = {.launch.sink = {.ctx = &p,
                                        .line = print_line,
                                        .report = print_report,
                                        .notice = print_notice,
                                        .flush = flush}};
    struct zt_launch_result result = {0};
    struct zt_err err;
    int rc = parse(&o, argc, argv, &err);
    cmd_restart_begin(&o.restart);
    if (rc == 0) {
        rc = run(&o, &result, &err);
    } else if (rc == 1) {
        fputs(usage, stdout);
    }
    const int code = finish(&p, &result, rc, &err);
    cmd_restart_end(&o.restart);
    zt_env_release(&o.env);
    return code;
}
