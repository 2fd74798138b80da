#include "restart.h"

#include <inttypes.h>
#include <signal.h>
#include <sys/random.h>

#include "base/clock.h"
#include "gpus.h"
#include "hosts_in.h"
#include "launch/supervisor.h"

enum {
    LONGEST_WAIT_S = 30,
    RETURN_S = 300, /* within which hosts must be back */
};

/* ---- signals ---- */

void cmd_restart_begin(struct cmd_restart *r)
{
    uint64_t random[2] = {0, 0};
    sigset_t set;
    zt_ending_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, &r->before);
    if (r->max > 0 &&
        getrandom(random, sizeof random, 0) == sizeof random) /* else each host trusts us */
        snprintf(r->name, sizeof r->name, "zt-%016" PRIx64 "%016" PRIx64, random[0], random[1]);
}

void cmd_restart_end(const struct cmd_restart *r)
{
    zt_forget_ending_signals();
    pthread_sigmask(SIG_SETMASK, &r->before, NULL);
}

int cmd_restart_wait(double wait_s, const struct zt_launch_sink *sink)
{
    const double step_s = 0.25;
    const int64_t end_ns = zt_now_ns() + (int64_t)(wait_s * 1e9);
    double left_s = wait_s;
    int sig = 0;
    do {
        (void)sink->flush(sink->ctx);
        sig = zt_await_ending_signal(ZT_MIN(left_s, step_s));
        left_s = (double)(end_ns - zt_now_ns()) * 1e-9;
    } while (!sig && left_s > 0);
    return sig;
}

/* ---- whether ---- */

/* What the same program would do again in the same place. */
static bool fails_again(int code)
{
    return code >= ZT_EXIT_USAGE && code <= ZT_EXIT_NUMERIC;
}

/* 1, 2, 4, ... s. */
static double backoff(int n)
{
    return n > 5 ? LONGEST_WAIT_S : ZT_MIN(1 << (n - 1), LONGEST_WAIT_S);
}

/* For tests, which do not wait for minutes. */
static double return_s(void)
{
    double s;
    const char *given = getenv("ZT_TEST_RETURN_S");
    return given && zt_parse_f64(given, &s) ? s : RETURN_S;
}

/* A host was there and does not come back, yet. */
static bool try_again(struct cmd_restart *r, int rc, double *wait_s, struct zt_str *say)
{
    const int64_t now_ns = zt_now_ns();
    if (!r->started || rc == ZT_EINPUT)
        return false;
    if (r->n_tries++ == 0)
        r->gives_up_ns = now_ns + (int64_t)(return_s() * 1e9);
    const double left_s = (double)(r->gives_up_ns - now_ns) * 1e-9;
    *wait_s = backoff(r->n_tries);
    if (left_s < *wait_s) {
        zt_str_printf(say, "it was waited for, for %.0f s", return_s() - left_s);
        return false;
    }
    zt_str_printf(say, "trying again in %.0f s, and for another %.0f s at most", *wait_s, left_s);
    return true;
}

bool cmd_restart_again(struct cmd_restart *r, int rc, const struct zt_launch_result *res,
                       double *wait_s, struct zt_str *say)
{
    if (r->max == 0 || res->told || (rc == 0 && res->exit_code == 0))
        return false;
    if (rc == 0 && !r->any_code && res->term_signal == 0 && fails_again(res->exit_code))
        return false;
    if (rc)
        return try_again(r, rc, wait_s, say);
    r->started = r->started || res->started;
    r->n_tries = 0;
    if (r->used == r->max) {
        zt_str_printf(say, "its %d restart%s used up", r->max, r->max == 1 ? " is" : "s are");
        return false;
    }
    r->used++;
    *wait_s = backoff(r->used);
    zt_str_printf(say, "restart %d of %d in %.0f s", r->used, r->max, *wait_s);
    return true;
}

/* ---- with what ---- */

/* Was it `name` the last time too? Then it begins anew. */
static bool twice_in_a_row(struct cmd_restart *r, const char *name)
{
    const bool again = name[0] && strcmp(r->culprit, name) == 0;
    snprintf(r->culprit, sizeof r->culprit, "%s", again ? "" : name);
    return again;
}

/* `again`: the host whose ranks failed first is the one of the last time. */
static bool is_left_out(const struct zt_launch_result *res, int node, bool again)
{
    return res->node_end[node] == ZT_NODE_RANK ? again : res->node_end[node] != ZT_NODE_NOTHING;
}

static bool leave_out_hosts(struct cmd_restart *r, const struct zt_launch_result *res,
                            struct cmd_options *o, struct zt_str *say)
{
    static const char *const why[] = {[ZT_NODE_RANK] = "its ranks failed twice in a row",
                                      [ZT_NODE_MEMORY] = "it ran out of memory",
                                      [ZT_NODE_LOST] = "it was lost",
                                      [ZT_NODE_APART] =
                                          "other hosts and it do not reach each other",
                                      [ZT_NODE_NO_START] = "it does not come up again"};
    const struct cmd_nodes *nodes = &o->nodes;
    const char *failed = "";
    int n_out = 0;
    for (int i = 0; i < nodes->n; i++)
        if (res->node_end[i] == ZT_NODE_RANK)
            failed = cmd_hosts_name(nodes, i);
    const bool again = twice_in_a_row(r, failed);
    for (int i = 0; i < nodes->n; i++)
        n_out += is_left_out(res, i, again);
    if (n_out == nodes->n)
        return false;
    for (int i = 0; i < nodes->n; i++) {
        if (!is_left_out(res, i, again))
            continue;
        cmd_list_add(&o->arena, &o->lost.hosts, cmd_hosts_name(nodes, i));
        zt_str_printf(say, "%s%s is left out from now on: %s", say->len ? "\n" : "",
                      cmd_hosts_name(nodes, i), why[res->node_end[i]]);
    }
    return n_out > 0;
}

/* On one machine; there are n devices or CPU workers. */
static bool leave_out_rank(struct cmd_restart *r, const struct zt_launch_result *res,
                           const struct cmd_devices *dev, int n, struct cmd_options *o,
                           struct zt_str *say)
{
    char name[sizeof r->culprit] = "";
    const int rank = res->first_rank;
    const bool gpu = dev->kind == ZT_DEV_CUDA;
    const int at = gpu && rank >= 0 ? rank / dev->per_gpu : 0; /* as gpus_here() gave them */
    if (rank >= 0 && gpu) /* another rank is on it once one before it is left out */
        cmd_gpu_label(&o->gpus[at], name);
    else if (rank >= 0)
        snprintf(name, sizeof name, "rank %d", rank);
    if (!twice_in_a_row(r, name) || n == 1)
        return false;
    if (gpu) {
        o->n_gpus--;
        memmove(&o->gpus[at], &o->gpus[at + 1], (size_t)(o->n_gpus - at) * sizeof *o->gpus);
    }
    zt_str_printf(say, "%s is left out from now on: %s failed twice in a row",
                  gpu ? name : "one worker", gpu ? "its ranks" : name);
    return true;
}

int cmd_restart_divide(int64_t batch, int per_device, int left, struct zt_str *say)
{
    int n = left;
    while (n > 1 && batch % ((int64_t)n * per_device)) /* it was a multiple of per_device */
        n--;
    if (n < left && say)
        zt_str_printf(say,
                      "%s%d of the remaining %d workers take part: the batch of %" PRId64
                      " is a multiple of that",
                      say->len ? "\n" : "", n * per_device, left * per_device, batch);
    return n;
}

bool cmd_restart_leave_out(struct cmd_restart *r, const struct zt_launch_result *res,
                           const struct cmd_devices *dev, struct cmd_options *o, struct zt_str *say)
{
    const bool hosts = o->nodes.n > 0, gpus = !hosts && dev->kind == ZT_DEV_CUDA;
    int left = gpus ? o->n_gpus : dev->n_workers;
    if (hosts ? !leave_out_hosts(r, res, o, say) : !leave_out_rank(r, res, dev, left, o, say))
        return false;
    left = hosts ? cmd_hosts_left(o) : gpus ? o->n_gpus : left - 1;
    const int most = cmd_restart_divide(o->lost.batch, ZT_MAX(dev->per_gpu, 1), left, say);
    if (!gpus) /* they are counted when they are picked */
        o->lost.most = most;
    return true;
}

void cmd_restart_settings(struct cmd_restart *r, const char *resume,
                          const struct zt_recipe_batch *batch, int ranks, struct cmd_options *o)
{
    o->set = r->own_set;
    if (resume)
        cmd_list_add(&o->arena, &o->set,
                     zt_arena_printf(&o->arena, "checkpoint.resume=%s", resume));
    if (ranks == 0)
        return;
    const int64_t each = batch->train / ranks;
    int64_t micro = ZT_MIN(batch->micro, each);
    while (each % micro)
        micro--;
    const int64_t values[] = {batch->train, micro, each / micro};
    static const char *const keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(keys); i++)
        cmd_list_add(&o->arena, &o->set,
                     zt_arena_printf(&o->arena, "%s=%" PRId64, keys[i], values[i]));
}
