/* What came out of the job: an error when it did not start, else an exit code, who is to blame, and words. */
#include <signal.h>
#include <sys/wait.h>

#include "launch/front.h"
#include "launch/rendezvous.h"

static void describe_failure(const struct front *f, struct zt_launch_result *res, struct zt_str *s)
{
    const struct zt_death *d = &f->first;
    res->exit_code = zt_death_exit_code(d);
    res->term_signal = d->signal;
    res->first_rank = d->rank;
    snprintf(res->host, sizeof res->host, "%s", f->first_on->host);
    zt_str_printf(s, "rank %d on %s failed first: ", d->rank, f->first_on->host);
    zt_death_describe(d, s);
    if (f->logs.v[d->rank].n_lines) {
        zt_str_puts(s, "\nits last lines on stderr:\n");
        zt_ranklogs_tail(&f->logs, d->rank, "  | ", s);
    }
}

void zt_front_describe_apart(const struct front *f, struct zt_str *out)
{
    enum { SHOWN = 8 };
    int n = 0;
    for (int i = 0; i < f->n_nodes; i++)
        for (int k = i + 1; k < f->n_nodes; k++)
            if (zt_apart_between(&f->apart, i, k) && n++ < SHOWN)
                zt_str_printf(out, "%s%s and %s", n > 1 ? ", " : "", f->nodes[i].host,
                              f->nodes[k].host);
    if (n > SHOWN)
        zt_str_printf(out, ", and %d more pairs of hosts", n - SHOWN);
    zt_str_puts(out, " cannot reach each other");
}

static void describe_apart(const struct front *f, struct zt_launch_result *res, struct zt_str *s)
{
    int node = 0;
    while (f->nodes[node].first_rank + f->nodes[node].n_workers <= f->apart_rank)
        node++;
    res->exit_code = zt_death_exit_code(&f->first);
    snprintf(res->host, sizeof res->host, "%s", f->nodes[node].host);
    zt_front_describe_apart(f, s);
    zt_str_puts(s, ", though we reach all hosts; no rank reported a failure of its own");
    if (f->logs.v[f->apart_rank].n_lines) {
        zt_str_printf(s, "\nthe last lines of rank %d on %s on stderr:\n", f->apart_rank,
                      res->host);
        zt_ranklogs_tail(&f->logs, f->apart_rank, "  | ", s);
    }
}

static void describe_lost_agent(const struct front_node *n, struct zt_launch_result *res,
                                struct zt_str *s)
{
    int sig = WIFSIGNALED(n->agent_status) && !n->ssh ? WTERMSIG(n->agent_status) : 0;
    res->exit_code = sig && !n->lost.code ? 128 + sig : 1;
    snprintf(res->host, sizeof res->host, "%s", n->host);
    zt_str_printf(s, "the agent on %s was lost: ", n->host);
    zt_node_explain_end(n, s);
    zt_str_puts(s, "; its ranks were ended");
}

static bool was_signalled(const struct front_node *n)
{
    return n->end_signal != 0;
}

static bool left_something(const struct front_node *n)
{
    return n->agent_status != 0 && !n->given_up;
}

/* Hosts that are to blame for something else explain with that whom they do not reach. */
static void blame_apart(const struct front *f, struct zt_launch_result *res)
{
    bool gone[ZT_LAUNCH_MAX_NODES], out[ZT_LAUNCH_MAX_NODES];
    for (int i = 0; i < f->n_nodes; i++)
        gone[i] = res->node_end[i] != ZT_NODE_NOTHING;
    zt_apart_mend(&f->apart, gone, out);
    for (int i = 0; i < f->n_nodes; i++)
        if (out[i])
            res->node_end[i] = ZT_NODE_APART;
}

static void blame_nodes(const struct front *f, struct zt_launch_result *res)
{
    res->told = f->user_signal;
    res->started = true;
    for (int i = 0; i < f->n_nodes; i++) {
        const struct front_node *n = &f->nodes[i];
        enum zt_node_end end = ZT_NODE_NOTHING;
        if (n->fail.code || (!n->greeted && !n->given_up))
            end = ZT_NODE_NO_START;
        else if (zt_node_was_lost(n) || was_signalled(n))
            end = ZT_NODE_LOST;
        else if (f->failed && f->first_on == n && zt_death_kind(&f->first) == ZT_DEATH_OWN)
            end = f->first.oom ? ZT_NODE_MEMORY : ZT_NODE_RANK;
        res->node_end[i] = (unsigned char)end;
        res->started = res->started && n->greeted && !n->fail.code;
    }
    blame_apart(f, res);
}

static void describe_parted(const struct front *f, struct zt_launch_result *res, struct zt_str *s)
{
    const struct zt_rendezvous *joined = f->opts->joined;
    char name[ZT_HOST_TEXT + 64];
    res->exit_code = 1;
    snprintf(res->host, sizeof res->host, "%s", f->parted->host);
    zt_str_printf(s, "%s, which %s had started, has ended before the job; all ranks were ended",
                  zt_party_name(joined, f->parted, name, sizeof name), joined->m.by);
}

/* What explains the end comes first: a rank's own failure, then what was lost, then what we were told. */
static void describe_end(const struct front *f, struct zt_launch_result *res, struct zt_str *s)
{
    const struct front_node *lost = zt_front_find(f, zt_node_was_lost);
    const struct front_node *told = zt_front_find(f, was_signalled);
    const struct front_node *left = zt_front_find(f, left_something);
    const int by_signal = f->user_signal ? f->user_signal : told ? told->end_signal : 0;
    const enum zt_death_kind kind = f->failed ? zt_death_kind(&f->first) : ZT_DEATH_WELL;
    const bool by_peer = kind == ZT_DEATH_PEER && !lost && !told && !f->parted;
    if (by_peer && f->apart.cut) {
        describe_apart(f, res, s);
    } else if (kind == ZT_DEATH_OWN || by_peer) {
        describe_failure(f, res, s);
    } else if (lost) {
        describe_lost_agent(lost, res, s);
    } else if (f->preempted && f->stop == ZT_STOP_SOFT) {
        res->exit_code = f->opts->preempted_code;
        zt_str_printf(s, "the job ended early and well, as signal %d (%s) asked", by_signal,
                      strsignal(by_signal));
    } else if (f->parted) {
        describe_parted(f, res, s);
    } else if (by_signal) {
        res->exit_code = 128 + by_signal;
        zt_str_printf(s, "%s stopped by signal %d (%s)",
                      f->user_signal ? "the job was" : "the agent was", by_signal,
                      strsignal(by_signal));
    } else if (f->failed) {
        describe_failure(f, res, s);
    } else if (left) {
        res->exit_code = 1;
        zt_str_printf(s, "the agent on %s could not end every process", left->host);
    }
}

/* The job never started on a node: say why. 0 when it did on all. */
static int start_failure(const struct front *f, struct zt_err *err)
{
    const struct front_node *silent = NULL;
    for (int i = 0; i < f->n_nodes; i++) {
        const struct front_node *n = &f->nodes[i];
        if (n->fail.code) {
            *err = n->fail;
            return err->code;
        }
        if (!n->greeted && !n->given_up && !silent)
            silent = n;
    }
    if (!silent || f->user_signal || (f->failed && zt_death_kind(&f->first) == ZT_DEATH_OWN))
        return 0;
    struct zt_str why = {0};
    zt_node_explain_end(silent, &why);
    zt_err_set(err,
               silent->lost.code ? (enum zt_code)silent->lost.code
               : silent->ssh     ? ZT_ESYS
                                 : ZT_EPEER,
               "the agent on %s did not answer: %s", silent->host, why.buf);
    zt_str_release(&why);
    return err->code;
}

int zt_front_conclude(const struct front *f, struct zt_launch_result *res, struct zt_err *err)
{
    struct zt_str s = {0};
    blame_nodes(f, res);
    int rc = start_failure(f, err);
    if (rc)
        return rc;
    snprintf(res->host, sizeof res->host, "%s", f->nodes[0].host);
    describe_end(f, res, &s);
    while (s.len && s.buf[s.len - 1] == '\n')
        s.buf[--s.len] = '\0';
    snprintf(res->summary, sizeof res->summary, "%s", zt_str_get(&s));
    zt_str_release(&s);
    return 0;
}
