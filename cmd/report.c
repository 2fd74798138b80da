/*
 * report.c: `zerotrain report RUN...`: runs side by side, from the folders that they left.
 */
#include "cmd.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/io.h"
#include "exact.h"
#include "metrics/record.h"
#include "metrics/report.h"
#include "train/train.h"

static const char usage[] =
    "usage: zerotrain report [OPTIONS] RUN...\n"
    "\n"
    "Compare runs: what they were, how long a step took, how much memory it took, what came of "
    "it.\n"
    "RUN is the folder of a run, or a folder of such folders: runs, or what\n"
    "scripts/sweep-stages.sh made.\n"
    "\n"
    "  --format=text|markdown|csv   of the table (default text)\n"
    "  --output=FILE                write the table there\n"
    "  --svg=FILE                   draw memory and step time as bars as well\n"
    "  --warmup=N                   timed steps to leave out (default: the first fifth, at least "
    "2,\n"
    "                               at most 50)\n"
    "  --help                       print this help\n"
    "\n"
    "See zerotrain-report(1).\n";

struct report {
    enum zt_report_format format;
    const char *output, *svg;
    int64_t warmup; /* -1: not given */
    struct zt_arena arena;
    struct zt_report_row *rows;
    size_t n, cap;
    int code; /* of the first run that could not be read */
};

/* ---- one run ---- */

static const char *path_in(struct report *rep, const char *dir, const char *name)
{
    return zt_arena_printf(&rep->arena, "%s/%s", dir, name);
}

static bool is_there(struct report *rep, const char *dir, const char *name)
{
    struct stat st;
    return stat(path_in(rep, dir, name), &st) == 0;
}

/* What a run has written into a pipe or device is not there to be read again. */
static bool can_be_read(struct report *rep, const char *dir, const char *name)
{
    struct stat st;
    return stat(path_in(rep, dir, name), &st) == 0 && S_ISREG(st.st_mode);
}

static bool is_run(struct report *rep, const char *dir)
{
    return is_there(rep, dir, "metrics.jsonl") || is_there(rep, dir, "summary.json") ||
           is_there(rep, dir, "sweep.json");
}

static const char *offload_name(struct report *rep, const struct zt_recipe_zero *z)
{
    static const char *const names[] = {"none", "cpu", "nvme"};
    const char *of = names[z->offload_optimizer];
    if (z->offload_param == ZT_OFFLOAD_TO_NONE)
        return of;
    return zt_arena_printf(&rep->arena, "%s, parameters %s", of, names[z->offload_param]);
}

static void take_settings(struct report *rep, const struct zt_recipe *r, const struct zt_model *m,
                          struct zt_report_row *row)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    row->model = zt_arena_strdup(&rep->arena, r->model.model_type);
    row->n_params = m->n_elems;
    row->n_ranks = r->n_ranks;
    row->stage = r->zero.stage;
    row->offload = offload_name(rep, &r->zero);
    row->precision = precisions[r->precision];
    row->batch = r->batch.train;
    row->micro = r->batch.micro;
    row->accum = r->batch.accum;
    row->seq_len = r->data.seq_len;
}

/* The resolved recipe, which says itself for how many ranks; its weights may be gone meanwhile. */
static int load_recipe(const char *path, const char *text, struct zt_recipe **r, struct zt_err *err)
{
    static const char head[] = "# resolved for ";
    char count[16];
    int64_t n_ranks = 0;
    if (strncmp(text, head, sizeof head - 1) == 0) {
        const char *from = text + sizeof head - 1;
        snprintf(count, sizeof count, "%.*s", (int)strspn(from, "0123456789"), from);
        if (!zt_parse_i64(count, &n_ranks))
            n_ranks = 0;
    }
    if (n_ranks < 1 || n_ranks > 1 << 20)
        return zt_err_set(err, ZT_EINPUT,
                          "%s:1: \"%sN ranks\" is missing: not the recipe of a run folder", path,
                          head);
    struct zt_recipe_opts opts = {
        .path = path, .text = text, .resolved = true, .n_ranks = (int)n_ranks, .for_plan = true};
    return zt_recipe_load(&opts, r, err);
}

static int read_recipe(struct report *rep, const char *dir, struct zt_report_row *row,
                       struct zt_err *err)
{
    enum { MAX_BYTES = 1 << 20 };
    const char *path = path_in(rep, dir, "recipe.yaml");
    struct zt_str text = {0};
    struct zt_recipe *r = NULL;
    struct zt_arena arena = {0};
    struct zt_model *model;
    int rc = zt_read_file(path, MAX_BYTES, &text, err);
    if (!rc)
        rc = load_recipe(path, zt_str_get(&text), &r, err);
    if (!rc) {
        rc = zt_train_model(r, &arena, &model, err);
        if (rc)
            rc = zt_err_wrap(err, "%s", path);
    }
    if (!rc)
        take_settings(rep, r, model, row);
    zt_arena_release(&arena);
    if (r)
        zt_recipe_free(r);
    zt_str_release(&text);
    return rc;
}

static int read_steps(struct report *rep, const char *dir, struct zt_report_row *row,
                      struct zt_err *err)
{
    struct zt_record_steps s;
    int rc = zt_record_read_steps(path_in(rep, dir, "metrics.jsonl"), rep->warmup, &s, err);
    if (!rc) {
        row->steps = s.steps;
        row->n_timed = (int64_t)s.step_ms.n;
        row->step_ms = s.step_ms.median;
        row->step_ms_p10 = s.step_ms.p10;
        row->step_ms_p90 = s.step_ms.p90;
        row->tokens_per_s = s.tokens_per_step / (s.step_ms.median * 1e-3);
        row->mfu = s.mfu;
        row->device_peak_bytes = s.device_peak_bytes;
        row->host_peak_bytes = s.host_peak_bytes;
        row->last_loss = s.last_loss;
        row->best_loss = s.best_loss;
        row->best_val_loss = s.best_val_loss;
    }
    zt_record_steps_release(&s);
    return rc;
}

static const char *result_of(struct report *rep, int code)
{
    switch (code) {
    case -1:
        return "not ended";
    case ZT_EXIT_OK:
        return "ok";
    case ZT_EXIT_INPUT:
        return "wrong input";
    case ZT_EXIT_UNSUPPORTED:
        return "not supported";
    case ZT_EXIT_MEMORY:
        return "out of memory";
    case ZT_EXIT_NUMERIC:
        return "not finite";
    case 128 + SIGKILL:
        return "killed: out of memory?";
    default:
        return code > 128 ? zt_arena_printf(&rep->arena, "signal %d", code - 128)
                          : zt_arena_printf(&rep->arena, "failed: exit %d", code);
    }
}

static int read_summary(struct report *rep, const char *dir, struct zt_report_row *row,
                        struct zt_err *err)
{
    const char *path = path_in(rep, dir, "summary.json");
    struct zt_record_summary s;
    struct zt_str text = {0};
    int rc = zt_read_file(path, ZT_RECORD_MAX_FILE, &text, err);
    if (!rc)
        rc = zt_record_parse_summary(path, zt_str_get(&text), text.len, &s, err);
    zt_str_release(&text);
    if (rc)
        return rc;
    row->exit_code = s.exit_code;
    row->failed = s.exit_code > 0 && s.stopped == ZT_RECORD_NOT_STOPPED;
    row->result = result_of(rep, s.exit_code);
    if (s.exit_code == 0 && s.stopped == ZT_RECORD_STOP_LOSS)
        row->result = "ok, at its loss";
    else if (s.stopped == ZT_RECORD_STOP_ASKED)
        row->result = "stopped";
    row->best_val_loss = s.best_val_loss;
    row->predicted_bytes = s.predicted_bytes;
    row->touched_bytes = s.touched_bytes;
    if (s.device_touched_bytes >= 0)
        row->device_peak_bytes = s.device_touched_bytes;
    if (s.rss_peak_bytes >= 0)
        row->host_peak_bytes = s.rss_peak_bytes;
    return 0;
}

/* Of a combination that was refused there is nothing else. */
static int read_sweep(struct report *rep, const char *dir, struct zt_report_row *row,
                      struct zt_err *err)
{
    const char *path = path_in(rep, dir, "sweep.json");
    struct zt_record_sweep s = {0};
    struct zt_str text = {0};
    int rc = zt_read_file(path, ZT_RECORD_MAX_FILE, &text, err);
    if (!rc)
        rc = zt_record_parse_sweep(path, zt_str_get(&text), text.len, &s, err);
    zt_str_release(&text);
    if (rc)
        return rc;
    row->stage = s.stage;
    row->offload = s.offload;
    if (row->exit_code < 0) {
        row->exit_code = s.exit_code;
        row->failed = s.exit_code > 0;
        row->result = result_of(rep, s.exit_code);
    }
    if (s.message)
        row->message = zt_arena_strdup(&rep->arena, s.message);
    zt_record_sweep_release(&s);
    return 0;
}

static void add_run(struct report *rep, const char *dir, const char *name)
{
    struct zt_report_row row = {
        .name = zt_arena_strdup(&rep->arena, name),
        .n_params = -1,
        .n_ranks = -1,
        .stage = -1,
        .batch = -1,
        .micro = -1,
        .accum = -1,
        .seq_len = -1,
        .steps = -1,
        .n_timed = -1,
        .step_ms = NAN,
        .step_ms_p10 = NAN,
        .step_ms_p90 = NAN,
        .tokens_per_s = NAN,
        .mfu = NAN,
        .device_peak_bytes = -1,
        .host_peak_bytes = -1,
        .predicted_bytes = -1,
        .touched_bytes = -1,
        .last_loss = NAN,
        .best_loss = NAN,
        .best_val_loss = NAN,
        .exit_code = -1,
        .result = result_of(rep, -1),
    };
    const struct {
        const char *name;
        int (*read)(struct report *, const char *, struct zt_report_row *, struct zt_err *);
    } files[] = {{"recipe.yaml", read_recipe},
                 {"metrics.jsonl", read_steps},
                 {"summary.json", read_summary},
                 {"sweep.json", read_sweep}};
    struct zt_err err = {0};
    int rc = 0;
    for (size_t i = 0; i < ZT_ARRAY_LEN(files) && !rc; i++)
        if (can_be_read(rep, dir, files[i].name))
            rc = files[i].read(rep, dir, &row, &err);
    if (rc) {
        cmd_error("%s", err.msg);
        rep->code = rep->code ? rep->code : zt_exit_code(rc);
        return;
    }
    ZT_GROW(rep->rows, rep->n + 1, rep->cap);
    rep->rows[rep->n++] = row;
}

/* ---- folders ---- */

static int offload_order(const struct zt_report_row *r)
{
    return !r->offload || strcmp(r->offload, "none") == 0 ? 0 : r->offload[0];
}

/* Runs of one kind of offload stand together, those without any first; then by name, 2 before 10. */
static int compare_rows(const void *a, const void *b)
{
    const struct zt_report_row *x = a, *y = b;
    int by_offload = offload_order(x) - offload_order(y);
    return by_offload ? by_offload : strverscmp(x->name, y->name);
}

static void fail(struct report *rep, int code, const char *path, const char *why)
{
    cmd_error("%s: %s", path, why);
    rep->code = rep->code ? rep->code : code;
}

static void add_folder(struct report *rep, const char *dir)
{
    size_t first = rep->n;
    bool any = false;
    struct zt_dir d;
    struct zt_err err;
    if (zt_dir_open(&d, dir, &err)) {
        cmd_error("%s", err.msg);
        rep->code = rep->code ? rep->code : ZT_EXIT_INPUT;
        return;
    }
    for (const char *name; (name = zt_dir_next(&d));) {
        const char *sub = path_in(rep, dir, name);
        if (name[0] == '.' || !is_run(rep, sub))
            continue;
        any = true;
        add_run(rep, sub, name);
    }
    if (zt_dir_close(&d, 0, &err)) {
        cmd_error("%s", err.msg);
        rep->code = rep->code ? rep->code : zt_exit_code(err.code);
    }
    if (!any)
        fail(rep, ZT_EXIT_INPUT, dir,
             "no run is here: neither metrics.jsonl, summary.json nor a folder with one");
    if (rep->n > first)
        qsort(rep->rows + first, rep->n - first, sizeof *rep->rows, compare_rows);
}

static void add_path(struct report *rep, const char *path)
{
    char *whole = realpath(path, NULL);
    if (!whole) {
        fail(rep, ZT_EXIT_INPUT, path, strerror(errno));
    } else if (is_run(rep, path)) {
        const char *slash = strrchr(whole, '/');
        add_run(rep, path, slash[1] ? slash + 1 : whole);
    } else {
        add_folder(rep, path);
    }
    free(whole);
}

/* ---- the command ---- */

static int write_out(const char *path, const struct zt_str *s)
{
    struct zt_err err = {0};
    int rc = 0;
    if (path)
        rc = zt_write_file_atomic(path, s->buf, s->len, &err);
    else
        fwrite(s->buf, 1, s->len, stdout);
    if (rc)
        cmd_error("%s", err.msg);
    return zt_exit_code(rc);
}

static void say_rule(const struct report *rep, struct zt_str *out)
{
    if (rep->format == ZT_REPORT_CSV)
        return;
    zt_str_puts(out, "\nstep ms: median and p10-p90 of the steps that were timed");
    if (rep->warmup < 0)
        zt_str_puts(out, ", without the first fifth (at least 2, at most 50).");
    else if (rep->warmup > 0)
        zt_str_printf(out, ", without the first %lld.", (long long)rep->warmup);
    else
        zt_str_puts(out, ".");
    zt_str_puts(
        out, "\ndevice, host: the most that a rank held in its device's arenas, and had resident."
             "\npredicted, touched: of its arenas on device and host, by the plan and measured.\n");
}

static int print(const struct report *rep)
{
    struct zt_str table = {0}, svg = {0};
    zt_report_table(rep->rows, rep->n, rep->format, &table);
    say_rule(rep, &table);
    int code = write_out(rep->output, &table);
    if (!code && rep->svg) {
        zt_report_svg(rep->rows, rep->n, &svg);
        code = write_out(rep->svg, &svg);
    }
    zt_str_release(&table);
    zt_str_release(&svg);
    return code;
}

static int take_format(struct report *rep, const char *text)
{
    static const char *const names[] = {"text", "markdown", "csv"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(names); i++) {
        if (strcmp(text, names[i]) != 0)
            continue;
        rep->format = (enum zt_report_format)i;
        return -1;
    }
    cmd_error("--format: \"%s\" is not text, markdown or csv", text);
    return ZT_EXIT_USAGE;
}

/* -1: go on; else an exit code. */
static int parse(struct report *rep, int argc, char **argv)
{
    static const struct option longs[] = {
        {"format", required_argument, NULL, 'f'}, {"output", required_argument, NULL, 'o'},
        {"svg", required_argument, NULL, 's'},    {"warmup", required_argument, NULL, 'w'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    static const struct cmd_optset set = {.command = "report", .longs = longs};
    struct zt_err err;
    int option, code = -1;
    while (code < 0 && (option = cmd_getopt(&set, argc, argv, &err)) != -1) {
        if (option == 'f') {
            code = take_format(rep, optarg);
        } else if (option == 'o') {
            rep->output = optarg;
        } else if (option == 's') {
            rep->svg = optarg;
        } else if (option == 'w') {
            if (!zt_parse_i64(optarg, &rep->warmup) || rep->warmup < 0) {
                cmd_error("--warmup: \"%s\" is not a number of steps", optarg);
                code = ZT_EXIT_USAGE;
            }
        } else if (option == 'h') {
            fputs(usage, stdout);
            code = ZT_EXIT_OK;
        } else {
            cmd_error("%s", err.msg);
            code = ZT_EXIT_USAGE;
        }
    }
    if (code < 0 && optind == argc) {
        cmd_error("which runs? Give their folders, such as runs/NAME-TIME");
        code = ZT_EXIT_USAGE;
    }
    return code;
}

int cmd_report(int argc, char **argv)
{
    struct report rep = {.warmup = -1};
    int code = parse(&rep, argc, argv);
    for (int i = optind; code < 0 && i < argc; i++)
        add_path(&rep, argv[i]);
    if (code < 0 && rep.n > 0)
        code = print(&rep);
    if (code <= 0)
        code = rep.code;
    free(rep.rows);
    zt_arena_release(&rep.arena);
    return code;
}
