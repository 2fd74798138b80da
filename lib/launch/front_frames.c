/* What is said with a node's agent, in frames: it is told the job, and says what becomes of it. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/build.h"
#include "base/clock.h"
#include "launch/front.h"
#include "launch/link.h"
#include "launch/spawn.h"

/* ---- what it is told ---- */

/* The name that one attempt at a time has on a host; NULL: there is only one. */
static char *claim_of(const struct front_node *n, struct zt_arena *arena)
{
    const char *name = n->f->opts->name;
    if (!name)
        return NULL;
    return n->ssh || n->party ? zt_arena_printf(arena, "%s %s", name, n->host)
                              : zt_arena_printf(arena, "%s %d", name, n->index);
}

static struct zt_nodes nodes_of(const struct front_node *n, struct zt_arena *arena)
{
    const struct front *f = n->f;
    struct zt_nodes nodes = {.node = n->index, .n = f->n_nodes};
    nodes.first = zt_arena_alloc(arena, (size_t)f->n_nodes + 1, sizeof *nodes.first);
    for (int i = 0; i < f->n_nodes; i++)
        nodes.first[i] = f->nodes[i].first_rank;
    nodes.first[f->n_nodes] = f->opts->n_workers;
    if (f->n_nodes > 1)
        nodes.towards = (char *)f->opts->nodes[n->index ? 0 : 1].address;
    return nodes;
}

static void put_env(struct front_node *n, const char *text)
{
    zt_frame_put(&n->link.out, ZT_FRAME_ENV, text, strlen(text));
}

/* What the user has set stays. */
static void put_default(struct front_node *n, const char *name, const char *value)
{
    struct zt_str text = {0};
    const char *set = getenv(name);
    zt_str_printf(&text, "%s=%s", name, set ? set : value);
    put_env(n, text.buf);
    zt_str_release(&text);
}

/* Where ranks that use PyTorch find each other: rank 0's host, and the port of torchrun and deepspeed. */
static void put_master(struct front_node *n)
{
    const struct zt_launch_opts *o = n->f->opts;
    put_default(n, "MASTER_ADDR", o->n_nodes > 1 ? o->nodes[0].address : "127.0.0.1");
    put_default(n, "MASTER_PORT", "29500");
}

static void send_job(struct front_node *n)
{
    const struct zt_launch_opts *o = n->f->opts;
    struct zt_arena arena = {0};
    struct zt_job job = {
        .n_workers = n->n_workers,
        .first_rank = n->first_rank,
        .world = o->n_workers,
        .threads = o->threads,
        .own = !o->program,
        .command = (char *)o->own_command,
        .device = o->device,
        .grace_ns = (int64_t)((o->grace_s > 0 ? o->grace_s : 3) * 1e9),
        .silence_ns = (int64_t)((o->silence_s > 0 ? o->silence_s : ZT_SILENCE_MS * 1e-3) * 1e9),
        .recipe = (char *)o->recipe,
        .recipe_len = o->recipe_len,
        .dir = n->ssh || n->party ? (char *)o->dir : NULL,
        .argv = (char **)o->program,
        .cpus = o->cpus ? o->cpus + n->first_rank : NULL,
        .devices = o->devices ? (char **)o->devices + n->first_rank : NULL,
        .nodes = nodes_of(n, &arena),
        .claim = claim_of(n, &arena),
    };
    memcpy(job.secret, n->f->secret, sizeof job.secret);
    put_master(n);
    for (int i = 0; i < o->n_env; i++)
        put_env(n, o->env[i]);
    size_t at = zt_frame_begin(&n->link.out, ZT_FRAME_JOB);
    zt_job_put(&job, &n->link.out);
    zt_frame_end(&n->link.out, at);
    explicit_bzero(job.secret, sizeof job.secret);
    zt_arena_release(&arena);
}

static void ask_clock(struct front_node *n)
{
    enum { TIMES = 8 }; /* the shortest round trip says most */
    if (n->n_asked++ >= TIMES)
        return;
    n->asked_ns = zt_now_ns();
    n->asked_wall_ns = zt_wall_ns();
    zt_frame_put(&n->link.out, ZT_FRAME_CLOCK, NULL, 0);
    zt_link_flush(&n->link);
}

/* ---- what it says ---- */

enum { LINE_BYTES = 64 }; /* what a sink may add to each, or more */

/* It cannot do the job, n->fail says why: if the nodes hang together, none of them does it. */
static void stop_for(struct front_node *n)
{
    if (!zt_node_fail_alone(n, n->fail.msg))
        zt_front_stop(n->f, ZT_STOP_TERM);
}

static void refuse_build(struct front_node *n, const char *build)
{
    zt_err_set(&n->fail, ZT_EINPUT,
               "%s runs zerotrain %s, but here is zerotrain %s; install the same program on every "
               "host%s",
               n->host, build, zt_build_name(), n->ssh ? ", or name it with --remote_path" : "");
    stop_for(n);
}

static int on_hello(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    size_t host_len, build_len;
    char said[100];
    const char *host = (const char *)zt_get_blob(&c, &host_len);
    const char *build = (const char *)zt_get_blob(&c, &build_len);
    if (n->greeted || !zt_cursor_done(&c))
        return zt_err_set(err, ZT_EPROTO, "malformed HELLO");
    if (!n->ssh && !n->party)
        snprintf(n->host, sizeof n->host, "%.*s", (int)host_len, host);
    zt_node_greeted(n);
    snprintf(said, sizeof said, "%.*s", (int)build_len, build);
    zt_node_tell(n, &(struct zt_node_news){.event = ZT_NODE_ANSWERED, .text = said});
    if (build_len != strlen(zt_build_name()) || memcmp(build, zt_build_name(), build_len) != 0) {
        refuse_build(n, said);
        return 0;
    }
    if (n->f->stop == ZT_STOP_NONE)
        send_job(n);
    if (n->f->opts->sink.node)
        ask_clock(n);
    return 0;
}

/* It was read there when the question was half the round trip old, as far as we can know. */
static int on_clock(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    const int64_t round_trip_ns = ZT_MAX(zt_now_ns() - n->asked_ns, (int64_t)1);
    int64_t theirs_ns = (int64_t)zt_get_u32(&c) * 1000000000;
    theirs_ns += zt_get_u32(&c);
    if (!zt_cursor_done(&c) || !n->n_asked)
        return zt_err_set(err, ZT_EPROTO, "malformed CLOCK frame");
    if (!n->round_trip_ns || round_trip_ns < n->round_trip_ns) {
        n->round_trip_ns = round_trip_ns;
        zt_node_tell(
            n, &(struct zt_node_news){.event = ZT_NODE_CLOCK,
                                      .text = "",
                                      .ahead_ns = theirs_ns - n->asked_wall_ns - round_trip_ns / 2,
                                      .round_trip_ns = round_trip_ns});
    }
    ask_clock(n);
    return 0;
}

static bool is_ours(const struct front_node *n, uint32_t rank)
{
    return rank >= (uint32_t)n->first_rank && rank < (uint32_t)(n->first_rank + n->n_workers);
}

static int on_line(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    const struct zt_launch_sink *sink = &n->f->opts->sink;
    uint32_t rank = zt_get_u32(&c), stream = zt_get_u32(&c);
    if (c.bad || !is_ours(n, rank) || stream > ZT_LOG_STDERR)
        return zt_err_set(err, ZT_EPROTO, "malformed LOG frame");
    const char *line = (const char *)c.p;
    if (zt_ranklogs_add(&n->f->logs, (int)rank, (enum zt_log_stream)stream, line, c.left, err))
        zt_front_notice(n->f, "%s", err->msg);
    n->f->unread_bytes += c.left + LINE_BYTES;
    sink->line(sink->ctx, (int)rank, (enum zt_log_stream)stream, line, c.left);
    return 0;
}

static int on_report(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    const struct zt_launch_sink *sink = &n->f->opts->sink;
    uint32_t rank = zt_get_u32(&c);
    if (c.bad || !is_ours(n, rank))
        return zt_err_set(err, ZT_EPROTO, "malformed REPORT frame");
    n->f->unread_bytes += c.left + LINE_BYTES;
    sink->report(sink->ctx, (int)rank, (const char *)c.p, c.left);
    return 0;
}

/* A worker of a node that is for itself has ended, and not well. */
static void fail_by_death(struct front_node *n, const struct zt_death *d)
{
    struct zt_str how = {0};
    zt_death_describe(d, &how);
    if (n->f->logs.v[d->rank].n_lines) {
        zt_str_puts(&how, "\n");
        zt_ranklogs_tail(&n->f->logs, d->rank, "", &how);
    }
    zt_node_fail_alone(n, zt_str_get(&how));
    zt_str_release(&how);
}

/* It explains more than what we know of so far. */
static void keep_death(struct front_node *n, const struct zt_death *d)
{
    struct front *f = n->f;
    if (f->failed && !zt_death_before(d, &f->first))
        return;
    f->failed = true;
    f->first = *d;
    f->first_on = n;
}

/* A worker has ended. When it was not by itself, the death that explains it is awaited for a while. */
static int on_exit_frame(struct front_node *n, const struct zt_frame *frame, struct zt_err *err)
{
    struct zt_death d;
    if (!zt_death_get(&d, frame) || !is_ours(n, (uint32_t)d.rank))
        return zt_err_set(err, ZT_EPROTO, "malformed EXIT frame");
    struct front *f = n->f;
    const enum zt_death_kind kind = zt_death_kind(&d);
    if (kind == ZT_DEATH_WELL || n->given_up)
        return 0;
    if (kind == ZT_DEATH_PEER && f->stop >= ZT_STOP_TERM)
        return 0; /* of one whose host heard of it before this one's did */
    if (f->opts->sink.node) {
        fail_by_death(n, &d);
        return 0;
    }
    keep_death(n, &d);
    if (kind == ZT_DEATH_PEER && !f->peer_lost_ns)
        f->peer_lost_ns = zt_now_ns();
    if (kind == ZT_DEATH_OWN && f->stop < ZT_STOP_TERM) {
        struct zt_str how = {0};
        zt_death_describe(&d, &how);
        zt_front_notice(f, "rank %d on %s ended with %s%s", d.rank, n->host, how.buf,
                        f->opts->n_workers > 1 ? "; stopping the others" : "");
        zt_str_release(&how);
        zt_front_stop(f, ZT_STOP_TERM);
    }
    return 0;
}

/* What all ranks have given, to all of them. */
static void give_to_all(struct front *f)
{
    for (int i = 0; i < f->n_nodes; i++) {
        struct zt_str *out = &f->nodes[i].link.out;
        size_t at = zt_frame_begin(out, ZT_FRAME_GATHER);
        for (int r = 0; r < f->n_given; r++)
            zt_put_blob(out, zt_str_get(&f->given[r]), f->given[r].len);
        zt_frame_end(out, at);
    }
    for (int r = 0; r < f->n_given; r++) {
        if (f->given[r].buf)
            explicit_bzero(f->given[r].buf, f->given[r].len);
        zt_str_reset(&f->given[r]);
        f->has_given[r] = false;
    }
    f->n_given = 0;
}

static int on_gather(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    struct front *f = n->f;
    uint32_t rank = zt_get_u32(&c);
    if (c.bad || !is_ours(n, rank) || c.left > ZT_SHARE_MAX_BYTES || f->has_given[rank])
        return zt_err_set(err, ZT_EPROTO, "malformed or second GATHER frame");
    zt_str_add(&f->given[rank], c.p, c.left);
    f->has_given[rank] = true;
    if (++f->n_given == f->opts->n_workers)
        give_to_all(f);
    return 0;
}

static int on_apart(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    struct front *f = n->f;
    const uint32_t rank = zt_get_u32(&c), node = zt_get_u32(&c);
    if (!zt_cursor_done(&c) || !is_ours(n, rank) || node >= (uint32_t)f->n_nodes ||
        (int)node == n->index)
        return zt_err_set(err, ZT_EPROTO, "malformed APART frame");
    if (!f->apart.cut)
        f->apart_rank = (int)rank;
    zt_apart_add(&f->apart, n->index, (int)node);
    return 0;
}

static int on_notice(struct front_node *n, struct zt_cursor c)
{
    zt_front_notice(n->f, "%s: %.*s", n->host, (int)c.left, (const char *)c.p);
    return 0;
}

static int on_fail(struct front_node *n, struct zt_cursor c)
{
    const int code = (int)zt_get_u32(&c);
    zt_err_set(&n->fail, code < 0 ? (enum zt_code)code : ZT_EPROTO, "%s: %.*s", n->host,
               (int)c.left, (const char *)c.p);
    stop_for(n);
    return 0;
}

static int on_signal(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    const int sig = (int)zt_get_u32(&c) & 127;
    zt_front_agent_signalled(n, sig);
    return zt_cursor_done(&c) ? 0 : zt_err_set(err, ZT_EPROTO, "malformed SIGNAL frame");
}

static int on_end(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    const int sig = (int)zt_get_u32(&c) & 127;
    n->end_signal = sig ? sig : n->end_signal;
    n->ended = true;
    if (sig)
        zt_front_agent_ended(n, sig);
    return zt_cursor_done(&c) ? 0 : zt_err_set(err, ZT_EPROTO, "malformed END frame");
}

static int handle_frame(struct front_node *n, const struct zt_frame *frame, struct zt_err *err)
{
    struct zt_cursor c = zt_cursor_of(frame);
    if (!n->greeted && frame->type != ZT_FRAME_HELLO)
        return zt_err_set(err, ZT_EPROTO, "frame of type %u before HELLO", frame->type);
    switch (frame->type) {
    case ZT_FRAME_HELLO:
        return on_hello(n, c, err);
    case ZT_FRAME_BEAT:
        return 0;
    case ZT_FRAME_LOG:
        return on_line(n, c, err);
    case ZT_FRAME_REPORT:
        return on_report(n, c, err);
    case ZT_FRAME_GATHER:
        return on_gather(n, c, err);
    case ZT_FRAME_EXIT:
        return on_exit_frame(n, frame, err);
    case ZT_FRAME_APART:
        return on_apart(n, c, err);
    case ZT_FRAME_NOTICE:
        return on_notice(n, c);
    case ZT_FRAME_FAIL:
        return on_fail(n, c);
    case ZT_FRAME_CLOCK:
        return on_clock(n, c, err);
    case ZT_FRAME_SIGNAL:
        return on_signal(n, c, err);
    case ZT_FRAME_END:
        return on_end(n, c, err);
    default:
        return zt_err_set(err, ZT_EPROTO, "frame of unknown type %u", frame->type);
    }
}

void zt_node_read(struct front_node *n)
{
    struct zt_frame frame;
    struct zt_err err;
    int rc = zt_link_read(&n->link);
    if (rc <= 0)
        return;
    while ((rc = zt_frame_next(&n->link.in, &frame, &err)) > 0) {
        rc = handle_frame(n, &frame, &err);
        if (rc)
            break;
    }
    if (rc < 0) {
        zt_err_wrap(&err, "from the agent");
        zt_node_lose(n, &err);
        zt_link_close(&n->link);
    }
}
