/* The agent of one node: how it starts, ends and is lost, and what comes on its stderr. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "launch/front.h"
#include "launch/rendezvous.h"
#include "launch/supervisor.h"

/* ---- its start ---- */

/* A new way to it: our ends are the node's, the agent's ends go to *sock and *err_fd. */
static int open_way(struct front_node *n, int *sock, int *err_fd, struct zt_err *err)
{
    int socks[2], errs[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks))
        return zt_err_errno(err, ZT_ESYS, "socketpair");
    if (pipe2(errs, O_CLOEXEC)) {
        close(socks[0]);
        close(socks[1]);
        return zt_err_errno(err, ZT_ESYS, "pipe");
    }
    zt_link_close(&n->link);
    if (n->err_fd >= 0)
        close(n->err_fd);
    n->err_fd = errs[0];
    fcntl(n->err_fd, F_SETFL, O_NONBLOCK);
    zt_lines_release(&n->err_lines);
    zt_str_reset(&n->said);
    *sock = socks[1];
    *err_fd = errs[1];
    int rc = zt_link_open(&n->link, socks[0], socks[0], err);
    if (rc) {
        close(*sock);
        close(*err_fd);
    }
    return rc;
}

static int start_process(struct front_node *n, struct zt_err *err)
{
    struct zt_arena arena = {0};
    const char *const *command = n->ssh ? zt_openssh_argv(n->ssh, &arena) : NULL;
    int sock, err_fd, rc = open_way(n, &sock, &err_fd, err);
    if (!rc) {
        errno = zt_spawn_agent(&n->agent, command, sock, err_fd, n->f->opts->joined && !n->ssh);
        if (errno) {
            n->agent = 0;
            rc = zt_err_errno(err, ZT_ESYS, "cannot start the agent%s (%s)",
                              n->ssh ? " of another host: the OpenSSH client" : "",
                              n->ssh ? "ssh" : "/proc/self/exe");
        }
        close(sock);
        close(err_fd);
    }
    zt_arena_release(&arena);
    return rc;
}

/* Start the ssh client, as soon as there is a place for it. */
static int start_client(struct front_node *n, int64_t now_ns, struct zt_err *err)
{
    n->by_client = true;
    n->waits = !zt_turn_take(&n->turn, now_ns);
    int rc = n->waits ? 0 : start_process(n, err);
    if (rc)
        zt_turn_leave(&n->turn);
    return rc;
}

int zt_node_start(struct front_node *n, struct zt_ssh2_host *carry, struct zt_err *err)
{
    if (n->party)
        return zt_party_take_agent(n->party, &n->link, err);
    if (!n->ssh)
        return start_process(n, err);
    if (n->ssh->by_client || !n->ssh->config)
        return start_client(n, zt_now_ns(), err);
    *carry = (struct zt_ssh2_host){.target = n->ssh, .turn = &n->turn};
    int rc = open_way(n, &carry->fd, &carry->err_fd, err);
    n->carried = rc == 0;
    return rc;
}

/* ---- its end ---- */

/* The process is there or will be, or the carrier has it. */
static bool has_agent(const struct front_node *n)
{
    return n->agent || n->waits || n->carried || (n->party && n->link.open && n->link.rfd >= 0);
}

static void end_agent(struct front_node *n)
{
    if (n->agent)
        kill(n->agent, SIGKILL);
    n->waits = false;
    if (n->carried)
        zt_ssh2_drop(n->f->ssh2, n->carried_at);
    if (n->party && n->link.open && n->link.wfd >= 0) /* it ends with its link */
        shutdown(n->link.wfd, SHUT_RDWR);
}

void zt_node_lose(struct front_node *n, const struct zt_err *why)
{
    if (!n->lost.code)
        n->lost = *why;
    end_agent(n);
}

void zt_node_give_up(struct front_node *n)
{
    if (n->greeted || !n->ssh || !has_agent(n))
        return;
    n->given_up = true;
    end_agent(n);
}

bool zt_node_alive(const struct front_node *n)
{
    return has_agent(n) || (n->link.open && n->link.rfd >= 0);
}

bool zt_node_is_awaited(const struct front_node *n)
{
    return n->ssh && !n->greeted && !n->given_up && has_agent(n);
}

bool zt_node_was_lost(const struct front_node *n)
{
    return !n->ended && !n->given_up;
}

void zt_node_release(struct front_node *n)
{
    zt_link_close(&n->link);
    if (n->err_fd >= 0)
        close(n->err_fd);
    zt_lines_release(&n->err_lines);
    zt_str_release(&n->said);
}

/* ---- what becomes of the way to it ---- */

void zt_node_reaped(struct front_node *n)
{
    n->agent = 0;
    if (n->by_client)
        zt_turn_leave(&n->turn);
}

/* What the client has said so far was kept back, as it may be tried again. */
static void tell_said(struct front_node *n)
{
    const char *text = zt_str_get(&n->said);
    if (!n->by_client || n->greeted || n->given_up)
        return;
    for (size_t len; *text; text += len + (text[len] == '\n')) {
        len = strcspn(text, "\n");
        zt_front_notice(n->f, "agent on %s: %.*s", n->host,
                        (int)(len - (len && text[len - 1] == '\r')), text);
    }
}

void zt_node_greeted(struct front_node *n)
{
    while (zt_node_read_stderr(n))
        ;
    tell_said(n);
    n->greeted = true;
    if (n->by_client)
        zt_turn_leave(&n->turn);
}

static void go_on_with_client(struct front_node *n)
{
    struct zt_err err;
    if (start_client(n, zt_now_ns(), &err))
        zt_node_lose(n, &err);
}

void zt_node_carried(struct front_node *n, const struct zt_ssh2_outcome *o)
{
    enum { FAILED = 255 << 8 }; /* what the client's wait status would be */
    n->carried = false;
    if (o->needs_client && !n->given_up && !n->lost.code) {
        zt_front_notice(n->f, "%s: going on with the OpenSSH client: %s", n->host, o->end.text);
        go_on_with_client(n);
        return;
    }
    n->way_end = o->end;
    n->agent_status = o->end.cause == ZT_SSH_EXITED ? o->end.code << 8 : FAILED;
}

/* ---- where nodes are each for themselves ---- */

void zt_node_tell(struct front_node *n, const struct zt_node_news *news)
{
    const struct zt_launch_sink *sink = &n->f->opts->sink;
    if (sink->node && !n->given_up)
        sink->node(sink->ctx, n->index, news);
}

bool zt_node_fail_alone(struct front_node *n, const char *why)
{
    if (!n->f->opts->sink.node)
        return false;
    zt_node_tell(n, &(struct zt_node_news){.event = ZT_NODE_FAILED, .text = why});
    n->given_up = true;
    n->fail.code = 0;
    end_agent(n); /* what it has started on its host ends with the link */
    return true;
}

/* ---- how it ended ---- */

/* By the sshd, before it had asked who we are. */
static bool was_dropped(const struct front_node *n)
{
    struct zt_ssh_end end;
    if (!n->by_client || n->greeted || n->lost.code)
        return false;
    zt_openssh_end(n->agent_status, zt_str_get(&n->said), false, &end);
    return end.cause == ZT_SSH_DROPPED;
}

/* How the way to a node's agent ended. */
static void explain_way(const struct front_node *n, struct zt_str *s)
{
    struct zt_ssh_end end = n->way_end;
    if (n->by_client)
        zt_openssh_end(n->agent_status, zt_str_get(&n->said), n->greeted, &end);
    zt_ssh_explain(n->ssh, &end, zt_str_get(&n->said), n->greeted, s);
}

void zt_node_explain_end(const struct front_node *n, struct zt_str *s)
{
    struct zt_str noise = {0};
    if (n->lost.code)
        zt_str_puts(s, n->lost.msg);
    else if (n->ssh)
        explain_way(n, s);
    else if (n->party)
        zt_str_printf(s, "the connection broke, or it was killed%s", zt_link_end(&n->link));
    else if (WIFSIGNALED(n->agent_status))
        zt_str_printf(s, "signal %d (%s)", WTERMSIG(n->agent_status),
                      strsignal(WTERMSIG(n->agent_status)));
    else
        zt_str_printf(s, "exit code %d", WEXITSTATUS(n->agent_status));
    if (!n->greeted)
        zt_frame_noise(&n->link.in, &noise);
    if (noise.len)
        zt_str_printf(s, "; it said: %s", noise.buf);
    zt_str_release(&noise);
}

/* ---- its stderr ---- */

static void agent_said(void *ctx, const char *line, size_t len)
{
    enum { SHOWN_BYTES = 1000, KEPT_BYTES = 4096 };
    struct front_node *n = ctx;
    if (n->ssh && n->said.len < KEPT_BYTES) {
        zt_str_add(&n->said, line, ZT_MIN(len, SHOWN_BYTES));
        zt_str_puts(&n->said, "\n");
        if (n->by_client && !n->greeted)
            return; /* tell_said() */
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

/* ---- time ---- */

/* Nothing was heard of it for so long. */
static void lose_silent(struct front_node *n, double silent_s)
{
    struct zt_err err;
    struct zt_str reach = {0};
    if (n->ssh)
        zt_ssh_put_reach(n->ssh, &reach);
    if (n->greeted || !n->ssh)
        zt_err_set(&err, ZT_EPEER, "it has been silent for %.0f s", silent_s);
    else
        zt_err_set(&err, ZT_EPEER,
                   "no word of zerotrain has come within %.0f s: either ssh hangs, or the login "
                   "shell there, or %s; `ssh %s true` tries it without zerotrain",
                   silent_s, n->ssh->program, reach.buf);
    zt_str_release(&reach);
    zt_node_lose(n, &err);
}

static void watch_silence(struct front_node *n, int64_t now_ns)
{
    const double told_s = n->f->opts->silence_s;
    double limit_s = told_s > 0 ? told_s : ZT_SILENCE_MS * 1e-3;
    zt_link_tick(&n->link, now_ns);
    const bool asks = zt_node_is_awaited(n) && n->carried && zt_ssh2_asks(n->f->ssh2);
    if (asks || (n->ssh && !n->greeted && zt_turn_is_wanted(&n->turn))) /* it cannot speak */
        n->link.silent_ns = 0;
    if (n->ssh && !n->greeted)
        limit_s = ZT_MAX(limit_s, zt_front_start_s(n->f));
    const double silent_s = (double)n->link.silent_ns * 1e-9;
    if (has_agent(n) && silent_s > limit_s)
        lose_silent(n, silent_s);
}

/* It did not start, or is lost; the others go on. */
static void fail_by_end(struct front_node *n)
{
    struct zt_str why = {0};
    zt_node_explain_end(n, &why);
    zt_node_fail_alone(n, zt_str_get(&why));
    zt_str_release(&why);
}

void zt_node_watch(struct front_node *n, int64_t now_ns)
{
    struct front *f = n->f;
    watch_silence(n, now_ns);
    if (n->waits)
        go_on_with_client(n);
    if (zt_node_alive(n) || !zt_node_was_lost(n) || f->stop >= ZT_STOP_TERM)
        return;
    while (zt_node_read_stderr(n))
        ;
    if (was_dropped(n) && zt_turn_come_again(&n->turn, now_ns)) {
        n->waits = true;
        return;
    }
    tell_said(n);
    if (f->opts->sink.node) {
        fail_by_end(n);
        return;
    }
    if (f->n_nodes > 1)
        zt_front_notice(f, "the agent on %s (node %d) %s; stopping the others", n->host, n->index,
                        n->greeted ? "is lost" : "did not start");
    zt_front_stop(f, ZT_STOP_TERM);
}
