/* The agent alone, with frames of our own. */
#include "jobs.h"

struct talk {
    pid_t pid;
    struct zt_link link;
    struct zt_str seen; /* "TYPE " of each frame that came */
    int status;
};

static void start_talk(struct talk *t)
{
    int sock[2];
    struct zt_err err;
    memset(t, 0, sizeof *t);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) == 0);
    t->pid = fork();
    if (t->pid == 0) {
        static char name[] = "test_agent", cmd[] = "agent";
        char *const argv[] = {name, cmd, NULL};
        dup2(sock[1], 0);
        dup2(sock[1], 1);
        execv("/proc/self/exe", argv);
        _exit(1);
    }
    close(sock[1]);
    CHECK_OK(zt_link_open(&t->link, sock[0], sock[0], &err), err);
}

/* Read until frame `type` comes, or the end; send no heartbeat meanwhile. */
static void hear(struct talk *t, int type)
{
    struct zt_frame f;
    struct zt_err err;
    for (;;) {
        struct pollfd p = {.fd = t->link.rfd, .events = POLLIN};
        poll(&p, 1, -1);
        int rc = zt_link_read(&t->link);
        while (rc > 0 && (rc = zt_frame_next(&t->link.in, &f, &err)) > 0) {
            if (f.type != ZT_FRAME_BEAT) /* they come by the clock */
                zt_str_printf(&t->seen, "%d ", f.type);
            if (f.type == type)
                return;
        }
        if (rc < 0)
            return;
    }
}

static void end_talk(struct talk *t)
{
    waitpid(t->pid, &t->status, 0);
    zt_link_close(&t->link);
    zt_str_release(&t->seen);
}

static void put_job(struct zt_str *out, const char *program, int64_t silence_ns)
{
    static char arg[] = "600";
    char *argv[] = {(char *)program, arg, NULL};
    struct zt_job job = {
        .n_workers = 2, .world = 2, .argv = argv, .grace_ns = 1000000000, .silence_ns = silence_ns};
    size_t at = zt_frame_begin(out, ZT_FRAME_JOB);
    zt_job_put(&job, out);
    zt_frame_end(out, at);
}

TEST(agent_ends_its_workers_when_the_front_end_is_silent)
{
    struct talk t;
    start_talk(&t);
    RETURN_IF_FAILED();
    put_job(&t.link.out, "sleep", 300000000);
    zt_link_flush(&t.link);
    hear(&t, -1);
    end_talk(&t);
    CHECK(WIFEXITED(t.status) && WEXITSTATUS(t.status) == 1);
}

TEST(agent_takes_frames_byte_by_byte)
{
    struct talk t;
    start_talk(&t);
    RETURN_IF_FAILED();
    put_job(&t.link.out, "false", (int64_t)15000000000);
    for (size_t i = 0; i < t.link.out.len; i++)
        CHECK(send(t.link.wfd, t.link.out.buf + i, 1, MSG_NOSIGNAL) == 1);
    zt_str_reset(&t.link.out);
    hear(&t, ZT_FRAME_END);
    CHECK_STR(t.seen.buf, "1 19 19 21 ");
    end_talk(&t);
    CHECK(WIFEXITED(t.status) && WEXITSTATUS(t.status) == 0);
}

TEST(agent_refuses_another_version)
{
    struct talk t;
    start_talk(&t);
    RETURN_IF_FAILED();
    t.link.out.buf[sizeof ZT_PROTO_MARKER - 1 + 4] = 9;
    zt_link_flush(&t.link);
    hear(&t, -1);
    CHECK_STR(t.seen.buf, "1 "); /* its HELLO, for our own message */
    end_talk(&t);
    CHECK(WIFEXITED(t.status) && WEXITSTATUS(t.status) == 1);
}
