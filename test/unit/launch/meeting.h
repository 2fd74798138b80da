/*
 * meeting.h: a job that meets, with processes that join it. Who joins starts this program again, as an agent: main()
 * is meeting_main().
 */
#ifndef ZT_TEST_MEETING_H
#define ZT_TEST_MEETING_H

#include "harness.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/launch.h"
#include "launch/rendezvous.h"

/* A job that no other test or process of this host has. */
static inline struct zt_meeting job(int world, double limit_s)
{
    static int count;
    struct zt_meeting m = {.by = "a test", .world = world, .limit_s = limit_s, .local_rank = 0};
    int ids[] = {(int)getpid(), count++};
    memcpy(m.id, ids, sizeof ids);
    memset(m.secret, 7, sizeof m.secret);
    return m;
}

/* With a TCP port, that the system picks. */
static inline struct zt_meeting job_of_hosts(int world, double limit_s)
{
    struct zt_meeting m = job(world, limit_s);
    snprintf(m.host, sizeof m.host, "127.0.0.1");
    return m;
}

/* As if the others were on other hosts: where is the port. */
static inline int open_for_hosts(struct zt_meeting *m, struct zt_rendezvous *r, struct zt_err *err)
{
    int rc = zt_rendezvous_open(m, NULL, r, err);
    if (rc)
        return rc;
    close(r->unix_fd);
    r->unix_fd = -1;
    m->port = r->port;
    return 0;
}

enum { SAYS_BYTES = 1000, RANKS_MAX = 8 };

/* What a process that joins knows of the meeting, as its parent sees it too. By rank. */
static inline struct zt_meeting *known_to(int rank)
{
    static struct zt_meeting *v;
    if (!v)
        v = mmap(NULL, RANKS_MAX * sizeof *v, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    ZT_ASSERT(v != MAP_FAILED && rank < RANKS_MAX);
    return &v[rank];
}

/* A process that joins; what it says in the end goes to *says. It leaves with the job's code, or 200. */
static inline pid_t join(const struct zt_meeting *m, int rank, int local_rank, int *says)
{
    int pipes[2];
    struct zt_meeting *mine = known_to(rank);
    ZT_ASSERT(pipe2(pipes, O_CLOEXEC) == 0);
    *mine = *m;
    mine->rank = rank;
    mine->local_rank = local_rank;
    pid_t pid = fork();
    if (pid == 0) {
        struct zt_err err = {0};
        int code = 0;
        close(pipes[0]);
        int rc = zt_member_run(mine, NULL, &code, &err);
        ssize_t n = write(pipes[1], err.msg, strlen(err.msg));
        _exit(rc || n < 0 ? 200 : code);
    }
    close(pipes[1]);
    *says = pipes[0];
    return pid;
}

static inline int end_of(pid_t pid, int says, char text[SAYS_BYTES])
{
    int status;
    size_t got = 0;
    ssize_t n;
    while ((n = read(says, text + got, SAYS_BYTES - 1 - got)) > 0)
        got += (size_t)n;
    text[got] = '\0';
    close(says);
    ZT_ASSERT(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline void check_all_leave(const struct zt_meeting *m, struct zt_rendezvous *r,
                                   const pid_t *pids, const int *says)
{
    struct zt_err err;
    char text[SAYS_BYTES];
    static const uint8_t none[ZT_TLS_SECRET_BYTES];
    CHECK_OK(zt_rendezvous_wait(r, &err), err);
    CHECK(r->unix_fd == -1 && r->tcp_fd == -1);
    CHECK(memcmp(r->m.secret, none, sizeof none) == 0);
    for (int i = 1; i < m->world; i++) {
        const int64_t end_ns =
            zt_now_ns() + 60 * (int64_t)1000000000; /* for who has just sent an agent */
        while (memcmp(known_to(i)->secret, none, sizeof none) != 0 && zt_now_ns() < end_ns)
            poll(NULL, 0, 1);
        CHECK(memcmp(known_to(i)->secret, none, sizeof none) == 0);
        CHECK(r->v[i].told && r->v[i].cpus.len > 0);
        CHECK_STR(r->v[i].host_id, r->v[0].host_id);
    }
    zt_rendezvous_leave(r, 42);
    for (int i = 1; i < m->world; i++)
        if (end_of(pids[i], says[i], text) != 42)
            FAIL("rank %d: %s", i, text);
}

static inline int meeting_main(int argc, char **argv)
{
    struct zt_err err = {0};
    if (argc != 3 || strcmp(argv[1], "agent") != 0)
        return zt_run_tests(argc, argv);
    int rc = zt_agent_main(true, &err);
    if (err.msg[0])
        fprintf(stderr, "%s\n", err.msg);
    return rc;
}

#endif
