/*
 * ask_gpus.c: which GPUs do the hosts have? A job of its own, of one process a host (gpus.c), on the very
 * way on which the workers will be started: the same hosts, logins, program and environment.
 */
#include "gpus.h"

#include <ctype.h>
#include <unistd.h>

#include "rank_out.h"

enum { MAX_FIELDS = 5 };

struct answers {
    struct cmd_host_gpus *hosts;
    struct zt_arena *arena;
    struct rank_out err; /* what is said, where nobody else writes it */
};

/* ---- what a host says ---- */

/* Cut at tabs, in place: how many fields; the last takes the rest. */
static int split(char *line, char **field)
{
    int n = 0;
    for (char *next = line; next && n < MAX_FIELDS; n++)
        field[n] = n < MAX_FIELDS - 1 ? strsep(&next, "\t") : next;
    return n;
}

static bool parse_count(const char *text, int64_t most, int64_t *out)
{
    return zt_parse_i64(text, out) && *out >= 0 && *out <= most;
}

static void add_gpu(struct answers *a, struct cmd_host_gpus *h, const struct cmd_gpu *gpu)
{
    if (!h->v)
        h->v = zt_arena_alloc(a->arena, ZT_LAUNCH_MAX_WORKERS, sizeof *h->v);
    if (h->n_asked < ZT_LAUNCH_MAX_WORKERS)
        h->v[h->n_asked++] = *gpu;
}

/* One line of gpus.c; false: it is none. */
static bool take_line(struct answers *a, struct cmd_host_gpus *h, char *line)
{
    char *f[MAX_FIELDS];
    int64_t number = 0, other = 0;
    const int n = split(line, f);
    if (n == 3 && strcmp(f[0], "host") == 0 && parse_count(f[1], INT64_MAX, &number) &&
        parse_count(f[2], INT32_MAX, &other)) {
        h->host_bytes = (size_t)number;
        h->cores = (int)other;
    } else if (n == 2 && strcmp(f[0], "mask") == 0) {
        h->mask = f[1];
    } else if (n == 5 && strcmp(f[0], "gpu") == 0 && parse_count(f[1], INT64_MAX, &number)) {
        add_gpu(a, h,
                &(struct cmd_gpu){
                    .entry = f[2], .id = f[3], .name = f[4], .free_bytes = (size_t)number});
    } else if (n == 4 && strcmp(f[0], "broken") == 0) {
        add_gpu(a, h, &(struct cmd_gpu){.entry = f[1], .id = f[2], .broken = f[3]});
    } else if (n == 3 && (strcmp(f[0], "none") == 0 || strcmp(f[0], "wrong") == 0) &&
               parse_count(f[1], ZT_EXIT_PEER_LOST, &number)) {
        *(f[0][0] == 'n' ? &h->none : &h->wrong) = f[2];
        h->code = (enum zt_exit)number;
    } else if (n == 3 && strcmp(f[0], "end") == 0 &&
               parse_count(f[1], ZT_LAUNCH_MAX_WORKERS, &number) && parse_count(f[2], 1, &other)) {
        h->n = (int)number;
        h->nccl = other;
    } else {
        return false;
    }
    return true;
}

static void on_line(void *ctx, int rank, enum zt_log_stream s, const char *line, size_t len)
{
    struct answers *a = ctx;
    struct cmd_host_gpus *h = &a->hosts[rank];
    char *copy = zt_arena_printf(a->arena, "%.*s", (int)len, line); /* its fields are kept */
    if (s == ZT_LOG_STDOUT && take_line(a, h, copy))
        return;
    cmd_error("%s%s%.*s", h->host ? h->host : "", h->host ? ": " : "", (int)len, line);
}

static void on_notice(void *ctx, const char *text)
{
    (void)ctx;
    cmd_error("%s", text);
}

static void on_report(void *ctx, int rank, const char *json, size_t len)
{
    (void)ctx, (void)rank, (void)json, (void)len; /* gpus.c sends none */
}

/* The job's loop waits for no reader. */
static int flush(void *ctx)
{
    struct answers *a = ctx;
    return rank_out_flush(&a->err);
}

/* ---- asking ---- */

/* The job ended: has everybody answered? */
static int check_answers(const struct answers *a, int n, const struct zt_launch_result *result)
{
    if (result->exit_code) {
        cmd_error("the GPUs cannot be asked for: %s", result->summary);
        return result->exit_code;
    }
    for (int i = 0; i < n; i++) {
        const struct cmd_host_gpus *h = &a->hosts[i];
        if (h->n || h->none || h->wrong)
            continue;
        cmd_error("the GPUs of %s cannot be asked for: it gave no answer",
                  h->host ? h->host : "this machine");
        return ZT_EXIT_FAILURE;
    }
    return 0;
}

/* A job of n processes, each of which tells of n_asked GPUs that it sees. 0, or an exit code after a message. */
static int run(struct answers *a, int n, int n_asked, const struct zt_env *env,
               const struct zt_launch_opts *where)
{
    const char *const program[] = {"/proc/self/exe", "gpus",
                                   zt_arena_printf(a->arena, "%d", n_asked), NULL};
    struct zt_launch_opts opts = *where;
    struct zt_launch_result result = {0};
    struct zt_err err = {0};
    opts.n_workers = n;
    opts.program = program;
    opts.env = (const char *const *)env->v;
    opts.n_env = (int)env->n;
    opts.sink = (struct zt_launch_sink){
        .ctx = a, .line = on_line, .report = on_report, .notice = on_notice, .flush = flush};
    a->err = (struct rank_out){.fd = STDERR_FILENO};
    const bool own = !cmd_says_through(); /* else who is said through writes it in its order */
    if (own)
        cmd_say_through(&a->err);
    int rc = zt_launch_run(&opts, &result, &err);
    if (own)
        cmd_say_through(NULL);
    (void)rank_out_finish(&a->err, false);
    if (!rc)
        return check_answers(a, n, &result);
    cmd_error("%s", err.msg);
    return zt_exit_code(err.code);
}

int cmd_gpus_ask(const struct cmd_options *o, const struct zt_env *env, int n_asked,
                 struct zt_arena *arena, struct cmd_host_gpus **out)
{
    const int n = ZT_MAX(o->nodes.n, 1);
    struct answers a = {.arena = arena, .hosts = zt_arena_alloc(arena, (size_t)n, sizeof *a.hosts)};
    struct zt_launch_node *nodes = zt_arena_alloc(arena, (size_t)n, sizeof *nodes);
    for (int i = 0, rank = 0; i < o->nodes.n; i++) {
        nodes[i] = o->nodes.v[i];
        nodes[i].n_workers = 1;
        a.hosts[i].host = o->nodes.host_of[rank];
        rank += o->nodes.v[i].n_workers;
    }
    *out = a.hosts;
    const struct zt_launch_opts where = {.n_nodes = o->nodes.n, .nodes = nodes};
    return run(&a, n, n_asked, env, &where);
}

/* What the process said that was to see this GPU alone: it sees that one or none. */
static struct cmd_gpu told_of(const struct cmd_gpu *asked, const struct cmd_host_gpus *answer,
                              bool others_found)
{
    struct cmd_gpu gpu = *asked;
    const struct cmd_gpu *seen = answer->n_asked ? &answer->v[0] : NULL;
    gpu.broken = answer->wrong;
    if (seen) {
        gpu.broken = seen->broken;
        gpu.free_bytes = seen->free_bytes;
    } else if (!gpu.broken) {
        gpu.broken = others_found ? "it is not found any more" : answer->none;
    }
    return gpu;
}

int cmd_gpus_ask_again(const struct cmd_options *o, const struct zt_env *env,
                       struct zt_arena *arena, struct cmd_host_gpus **out)
{
    const int n = o->n_gpus;
    struct answers a = {.arena = arena, .hosts = zt_arena_alloc(arena, (size_t)n, sizeof *a.hosts)};
    const char **ids = zt_arena_alloc(arena, (size_t)n, sizeof *ids);
    struct cmd_host_gpus *h = zt_arena_alloc(arena, 1, sizeof *h);
    for (int i = 0; i < n; i++)
        ids[i] = o->gpus[i].id;
    const struct zt_launch_opts where = {.devices = ids};
    int code = run(&a, n, 1, env, &where);
    if (code)
        return code;
    *h = a.hosts[0];
    h->n = 0;
    for (int i = 0; i < n; i++)
        h->n += a.hosts[i].n > 0;
    h->n_asked = n;
    h->v = zt_arena_alloc(arena, (size_t)n, sizeof *h->v);
    for (int i = 0; i < n; i++)
        h->v[i] = told_of(&o->gpus[i], &a.hosts[i], h->n > 0);
    *out = h;
    return 0;
}

const char *cmd_gpu_label(const struct cmd_gpu *gpu, char buf[CMD_GPU_LABEL_BYTES])
{
    const bool same = strcmp(gpu->entry, gpu->id) == 0;
    snprintf(buf, CMD_GPU_LABEL_BYTES, "%s%s%s%s%s",
             isdigit((unsigned char)gpu->entry[0]) ? "GPU " : "", gpu->entry, same ? "" : " (",
             same ? "" : gpu->id, same ? "" : ")");
    return buf;
}
