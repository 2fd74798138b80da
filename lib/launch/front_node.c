#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/build.h"
#include "base/clock.h"
#include "launch/front.h"
#include "launch/rendezvous.h"
#include "launch/spawn.h"
#include "launch/supervisor.h"

/* ---- the agent process ---- */

/* By a process that has joined; nothing of it is below us. */
static int start_joined(struct front_node *n, struct zt_err *err)
{
    int fd = zt_party_start_agent(n->party);
    if (fd < 0)
        return zt_err_set(err, ZT_EUNSUPPORTED, "%s cannot start another agent", n->host);
    int rc = zt_link_open(&n->link, fd, fd, err);
    if (rc)
        close(fd);
    return rc;
}

/* Takes the descriptors. 0, or an errno value. */
static int spawn(struct front_node *n, int sock, int err_fd)
{
    struct zt_arena arena = {0};
    const char *const *command = n->ssh ? zt_openssh_argv(n->ssh, &arena) : NULL;
    int rc = zt_spawn_agent(&n->agent, command, sock, err_fd, n->f->opts->joined && !n->ssh);
    if (rc)
        n->agent = 0;
    n->by_client = n->ssh != NULL;
    zt_arena_release(&arena);
    close(sock);
    close(err_fd);
    return rc;
}

static int set_spawn_error(const struct front_node *n, struct zt_err *err)
{
    return zt_err_errno(err, ZT_ESYS, "cannot start the agent%s (%s)",
                        n->ssh ? " of another host: the OpenSSH client" : "",
                        n->ssh ? "ssh" : "/proc/self/exe");
}

int zt_node_start(struct front_node *n, struct zt_ssh2_host *carry, struct zt_err *err)
{
    if (n->party)
        return start_joined(n, err);
    int sock[2], errs[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock))
        return zt_err_errno(err, ZT_ESYS, "socketpair");
    if (pipe2(errs, O_CLOEXEC)) {
        close(sock[0]);
        close(sock[1]);
        return zt_err_errno(err, ZT_ESYS, "pipe");
    }
    n->err_fd = errs[0];
    fcntl(n->err_fd, F_SETFL, O_NONBLOCK);
    int rc = zt_link_open(&n->link, sock[0], sock[0], err);
    if (!rc && n->ssh && n->ssh->config) {
        *carry = (struct zt_ssh2_host){n->ssh, sock[1], errs[1]};
        n->carried = true;
        return 0;
    }
    if (!rc) {
        errno = spawn(n, sock[1], errs[1]);
        return errno ? set_spawn_error(n, err) : 0;
    }
    close(sock[1]);
    close(errs[1]);
    return rc;
}

bool zt_node_has_agent(const struct front_node *n)
{
    return n->agent || n->carried || (n->party && n->link.open && n->link.rfd >= 0);
}

void zt_node_kill(struct front_node *n)
{
    if (n->agent)
        kill(n->agent, SIGKILL);
    if (n->carried)
        zt_ssh2_drop(n->f->ssh2, n->carried_at);
    if (n->party && n->link.open && n->link.wfd >= 0) /* it ends with its link */
        shutdown(n->link.wfd, SHUT_RDWR);
}

/* The ssh client takes the place of libssh2; nothing has been sent yet. */
static void go_on_with_client(struct front_node *n, const struct zt_ssh2_outcome *o)
{
    struct zt_err err;
    zt_front_notice(n->f, "%s: going on with the OpenSSH client: %s", n->host, o->end.text);
    errno = spawn(n, o->fd, o->err_fd);
    if (!errno)
        return;
    set_spawn_error(n, &err);
    zt_node_lose(n, &err);
}

void zt_node_carried(struct front_node *n, const struct zt_ssh2_outcome *o)
{
    enum { FAILED = 255 << 8 }; /* what the client's wait status would be */
    n->carried = false;
    if (o->needs_client && !n->given_up && !n->lost.code) {
        go_on_with_client(n, o);
        return;
    }
    if (o->needs_client) {
        close(o->fd);
        close(o->err_fd);
    }
    n->way_end = o->end;
    n->agent_status = o->end.cause == ZT_SSH_EXITED ? o->end.code << 8 : FAILED;
}

/* The agent has said HELLO: tell it what to do. */
static void send_job(struct front_node *n)
{
    const struct zt_launch_opts *o = n->f->opts;
    const struct front *f = n->f;
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
        .nodes = {.node = n->index, .n = f->n_nodes},
    };
    struct zt_str claim = {0};
    if (o->name && n->ssh)
        zt_str_printf(&claim, "%s %s", o->name, n->ssh->host);
    else if (o->name)
        zt_str_printf(&claim, "%s %d", o->name, n->index);
    job.claim = claim.buf;
    memcpy(job.secret, f->secret, sizeof job.secret);
    job.nodes.first = zt_xcalloc((size_t)f->n_nodes + 1, sizeof *job.nodes.first);
    for (int i = 0; i < f->n_nodes; i++)
        job.nodes.first[i] = f->nodes[i].first_rank;
    if (f->n_nodes > 1)
        job.nodes.towards = (char *)o->nodes[n->index ? 0 : 1].address;
    for (int i = 0; i < o->n_env; i++)
        zt_frame_put(&n->link.out, ZT_FRAME_ENV, o->env[i], strlen(o->env[i]));
    size_t at = zt_frame_begin(&n->link.out, ZT_FRAME_JOB);
    zt_job_put(&job, &n->link.out);
    zt_frame_end(&n->link.out, at);
    explicit_bzero(job.secret, sizeof job.secret);
    free(job.nodes.first);
    zt_str_release(&claim);
}

/* ---- nodes that are each for themselves ---- */

static void tell(struct front_node *n, const struct zt_node_news *news)
{
    const struct zt_launch_sink *sink = &n->f->opts->sink;
    if (sink->node && !n->given_up)
        sink->node(sink->ctx, n->index, news);
}

bool zt_node_fail_alone(struct front_node *n, const char *why)
{
    if (!n->f->opts->sink.node)
        return false;
    tell(n, &(struct zt_node_news){.event = ZT_NODE_FAILED, .text = why});
    n->given_up = true;
    n->fail.code = 0;
    zt_node_kill(n); /* what it has started on its host ends with the link */
    return true;
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
        tell(n, &(struct zt_node_news){.event = ZT_NODE_CLOCK,
                                       .text = "",
                                       .ahead_ns = theirs_ns - n->asked_wall_ns - round_trip_ns / 2,
                                       .round_trip_ns = round_trip_ns});
    }
    ask_clock(n);
    return 0;
}

/* ---- what the agent says ---- */

static int on_hello(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    size_t len, build_len;
    char said[100];
    const unsigned char *host = zt_get_blob(&c, &len), *build = zt_get_blob(&c, &build_len);
    if (n->greeted || !zt_cursor_done(&c))
        return zt_err_set(err, ZT_EPROTO, "malformed HELLO");
    if (!n->ssh && !n->party)
        snprintf(n->host, sizeof n->host, "%.*s", (int)len, (const char *)host);
    n->greeted = true;
    snprintf(said, sizeof said, "%.*s", (int)build_len, (const char *)build);
    tell(n, &(struct zt_node_news){.event = ZT_NODE_ANSWERED, .text = said});
    if (build_len != strlen(zt_build_name()) || memcmp(build, zt_build_name(), build_len) != 0) {
        zt_err_set(&n->fail, ZT_EINPUT,
                   "%s runs zerotrain %.*s, but here is zerotrain %s; install the same program on "
                   "every host%s",
                   n->host, (int)sizeof said, said, zt_build_name(),
                   n->ssh ? ", or name it with --remote_path" : "");
        if (zt_node_fail_alone(n, n->fail.msg))
            return 0;
        zt_front_stop(n->f, ZT_STOP_TERM);
    }
    if (n->f->stop == ZT_STOP_NONE)
        send_job(n);
    if (n->f->opts->sink.node)
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
    sink->line(sink->ctx, (int)rank, (enum zt_log_stream)stream, line, c.left);
    return 0;
}

static int on_report(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    const struct zt_launch_sink *sink = &n->f->opts->sink;
    uint32_t rank = zt_get_u32(&c);
    if (c.bad || !is_ours(n, rank))
        return zt_err_set(err, ZT_EPROTO, "malformed REPORT frame");
    sink->report(sink->ctx, (int)rank, (const char *)c.p, c.left);
    return 0;
}

/* A worker of a node that is for itself has ended, and not well. */
static int fail_by_death(struct front_node *n, const struct zt_death *d)
{
    struct zt_str how = {0};
    zt_death_describe(d, &how);
    if (n->f->logs.v[d->rank].n_lines) {
        zt_str_puts(&how, "\n");
        zt_ranklogs_tail(&n->f->logs, d->rank, "", &how);
    }
    zt_node_fail_alone(n, zt_str_get(&how));
    zt_str_release(&how);
    return 0;
}

static int on_exit_frame(struct front_node *n, const struct zt_frame *frame, struct zt_err *err)
{
    struct zt_death d;
    if (!zt_death_get(&d, frame) || !is_ours(n, (uint32_t)d.rank))
        return zt_err_set(err, ZT_EPROTO, "malformed EXIT frame");
    struct front *f = n->f;
    enum zt_death_kind kind = zt_death_kind(&d);
    if (kind == ZT_DEATH_WELL || n->given_up)
        return 0;
    if (f->opts->sink.node)
        return fail_by_death(n, &d);
    if (!f->failed || zt_death_before(&d, &f->first)) {
        f->first = d;
        f->first_on = n;
    }
    f->failed = true;
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

/* When all ranks have given: to all of them. */
static int on_gather(struct front_node *n, struct zt_cursor c, struct zt_err *err)
{
    struct front *f = n->f;
    uint32_t rank = zt_get_u32(&c);
    if (c.bad || !is_ours(n, rank) || c.left > ZT_SHARE_MAX_BYTES || f->has_given[rank])
        return zt_err_set(err, ZT_EPROTO, "malformed or second GATHER frame");
    zt_str_add(&f->given[rank], c.p, c.left);
    f->has_given[rank] = true;
    if (++f->n_given < f->opts->n_workers)
        return 0;
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
    return 0;
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
    case ZT_FRAME_NOTICE:
        zt_front_notice(n->f, "%s: %.*s", n->host, (int)c.left, (const char *)c.p);
        return 0;
    case ZT_FRAME_FAIL: {
        int code = (int)zt_get_u32(&c);
        zt_err_set(&n->fail, code < 0 ? (enum zt_code)code : ZT_EPROTO, "%s: %.*s", n->host,
                   (int)c.left, (const char *)c.p);
        if (!zt_node_fail_alone(n, n->fail.msg))
            zt_front_stop(n->f, ZT_STOP_TERM); /* the other nodes */
        return 0;
    }
    case ZT_FRAME_CLOCK:
        return on_clock(n, c, err);
    case ZT_FRAME_SIGNAL: {
        int sig = (int)zt_get_u32(&c) & 127;
        zt_front_agent_signalled(n->f, n, sig);
        return zt_cursor_done(&c) ? 0 : zt_err_set(err, ZT_EPROTO, "malformed SIGNAL frame");
    }
    case ZT_FRAME_END: {
        int sig = (int)zt_get_u32(&c) & 127;
        n->end_signal = sig ? sig : n->end_signal;
        n->ended = true;
        return zt_cursor_done(&c) ? 0 : zt_err_set(err, ZT_EPROTO, "malformed END frame");
    }
    default:
        return zt_err_set(err, ZT_EPROTO, "frame of unknown type %u", frame->type);
    }
}

void zt_node_lose(struct front_node *n, const struct zt_err *why)
{
    if (!n->lost.code)
        n->lost = *why;
    zt_node_kill(n);
}

void zt_node_give_up(struct front_node *n)
{
    if (n->greeted || !n->ssh || !zt_node_has_agent(n))
        return;
    n->given_up = true;
    zt_node_kill(n);
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

static void agent_said(void *ctx, const char *line, size_t len)
{
    enum { SHOWN_BYTES = 1000, KEPT_BYTES = 4096 };
    struct front_node *n = ctx;
    if (n->ssh && n->said.len < KEPT_BYTES) {
        zt_str_add(&n->said, line, ZT_MIN(len, SHOWN_BYTES));
        zt_str_puts(&n->said, "\n");
    }
    len -= len && line[len - 1] == '\r'; /* ssh ends lines as a terminal would */
    if (!n->given_up)
        zt_front_notice(n->f, "agent on %s: %.*s", n->host, (int)ZT_MIN(len, SHOWN_BYTES), line);
}

bool zt_node_read_stderr(struct front_node *n)
{
    char chunk[4096];
    if (n->err_fd < 0)
        return false;
    ssize_t got = read(n->err_fd, chunk, sizeof chunk);
    if (got > 0) {
        zt_lines_feed(&n->err_lines, chunk, (size_t)got, agent_said, n);
        return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    zt_lines_end(&n->err_lines, agent_said, n);
    close(n->err_fd);
    n->err_fd = -1;
    return false;
}

bool zt_node_alive(const struct front_node *n)
{
    return zt_node_has_agent(n) || (n->link.open && n->link.rfd >= 0);
}

void zt_node_release(struct front_node *n)
{
    zt_link_close(&n->link);
    if (n->err_fd >= 0)
        close(n->err_fd);
    zt_lines_release(&n->err_lines);
    zt_str_release(&n->said);
}
