#include "meeting.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* ---- coming and going ---- */

TEST(all_meet_and_leave_with_one_code)
{
    struct zt_meeting m = job(4, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    pid_t pids[4];
    int says[4];
    pids[3] = join(&m, 3, 3, &says[3]); /* some come before rank 0 does */
    CHECK_OK(zt_rendezvous_open(&m, NULL, &r, &err), err);
    CHECK(r.tcp_fd == -1);
    for (int i = 1; i < 3; i++)
        pids[i] = join(&m, i, i, &says[i]);
    check_all_leave(&m, &r, pids, says);
}

static int user_timeout_ms(const struct zt_link *l)
{
    int ms = -1;
    socklen_t len = sizeof ms;
    ZT_ASSERT(getsockopt(l->rfd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &len) == 0);
    return ms;
}

TEST(by_tcp_too)
{
    struct zt_link agent;
    struct zt_meeting m = job_of_hosts(3, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    pid_t pids[3];
    int says[3];
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    CHECK_STR(r.address, "127.0.0.1");
    pids[1] = join(&m, 1, 0, &says[1]);
    pids[2] = join(&m, 2, -1, &says[2]);
    CHECK_OK(zt_rendezvous_wait(&r, &err), err);
    CHECK_STR(r.v[1].address, "127.0.0.1");
    CHECK(r.v[1].n_agents == ZT_PARTY_AGENTS && r.v[2].n_agents == ZT_PARTY_AGENTS);
    /* An agent has beats, and may be sent more than it reads for a while; a process has not. */
    CHECK_OK(zt_party_take_agent(&r.v[1], &agent, &err), err);
    CHECK_INT(user_timeout_ms(&agent), 0);
    CHECK_INT(user_timeout_ms(&r.v[1].link), 12000);
    zt_link_close(&agent);
    check_all_leave(&m, &r, pids, says);
}

/* What strangers might need is no part of what is waited for. */
TEST(all_meet_where_few_files_may_be_open)
{
    enum { FEW = 64 };
    struct zt_meeting m = job(2, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    struct rlimit before, few;
    pid_t pids[2];
    int says[2];
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    few.rlim_cur = FEW;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    CHECK_OK(zt_rendezvous_open(&m, NULL, &r, &err), err);
    pids[1] = join(&m, 1, 1, &says[1]);
    check_all_leave(&m, &r, pids, says);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST(who_is_missing_is_named)
{
    struct zt_meeting m = job(4, 0.5);
    struct zt_rendezvous r;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says;
    CHECK_OK(zt_rendezvous_open(&m, NULL, &r, &err), err);
    m.limit_s = 60;
    pid_t pid = join(&m, 2, 2, &says);
    while (!r.v[2].told)
        ZT_ASSERT(zt_rendezvous_step(&r, 100, &err) == 0);
    CHECK_INT(zt_rendezvous_wait(&r, &err), ZT_EPEER);
    if (!strstr(err.msg, "of the 4 processes that a test starts, ranks 1, 3 did not come"))
        FAIL("%s", err.msg);
    zt_rendezvous_leave(&r, 9);
    CHECK_INT(end_of(pid, says, text), 9);
}

TEST(one_that_goes_while_others_come)
{
    struct zt_meeting m = job(3, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says;
    CHECK_OK(zt_rendezvous_open(&m, NULL, &r, &err), err);
    pid_t pid = join(&m, 1, 1, &says);
    while (!r.v[1].told)
        ZT_ASSERT(zt_rendezvous_step(&r, 100, &err) == 0);
    kill(pid, SIGKILL);
    CHECK_INT(end_of(pid, says, text), 128 + SIGKILL);
    CHECK_INT(zt_rendezvous_wait(&r, &err), ZT_EPEER);
    if (!strstr(err.msg, "the process of rank 1 on ") || !strstr(err.msg, ": it has ended"))
        FAIL("%s", err.msg);
    zt_rendezvous_leave(&r, 1);
}

TEST(rank_0_that_never_comes)
{
    struct zt_meeting m = job(2, 0.3);
    char text[SAYS_BYTES];
    int says;
    pid_t pid = join(&m, 1, 1, &says);
    CHECK_INT(end_of(pid, says, text), 200);
    if (!strstr(text, "as rank 1 of 2: rank 0 did not answer within 0.3 s"))
        FAIL("%s", text);
}

TEST(rank_0_that_dies)
{
    struct zt_meeting m = job(2, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says;
    CHECK_OK(zt_rendezvous_open(&m, NULL, &r, &err), err);
    pid_t pid = join(&m, 1, 1, &says);
    CHECK_OK(zt_rendezvous_wait(&r, &err), err);
    zt_link_close(&r.v[1].link); /* as the kernel does then */
    CHECK_INT(end_of(pid, says, text), 200);
    if (!strstr(text, "the process of rank 0 is gone"))
        FAIL("%s", text);
    zt_rendezvous_leave(&r, 0);
}

TEST(another_secret_is_refused)
{
    struct zt_meeting m = job_of_hosts(2, 60), other;
    struct zt_rendezvous r;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says, rc = 0;
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    other = m;
    other.secret[0] ^= 1;
    pid_t pid = join(&other, 1, 1, &says);
    while (r.n_refused < 3 && rc == 0) /* then it gives up */
        rc = zt_rendezvous_step(&r, 100, &err);
    CHECK_INT(rc, 0);
    CHECK(!r.v[1].link.open);
    CHECK_INT(end_of(pid, says, text), 200);
    if (!strstr(text, "has another secret than we have: is ZT_JOB_SECRET_FILE the same"))
        FAIL("%s", text);
    r.m.limit_s = 0;
    CHECK_INT(zt_rendezvous_wait(&r, &err), ZT_EPEER);
    if (!strstr(err.msg, "who said to be rank 1, from 127.0.0.1, with another secret"))
        FAIL("%s", err.msg);
    zt_rendezvous_leave(&r, 1);
}

/* ---- one place, and who else is there ---- */

/* Until a process that joins has said its last. */
static void step_until_it_ends(struct zt_rendezvous *r, int says)
{
    struct pollfd p = {.fd = says, .events = POLLIN};
    struct zt_err err;
    do {
        CHECK_INT(zt_rendezvous_step(r, 10, &err), 0);
    } while (poll(&p, 1, 0) == 0);
}

/* Another user has taken the name of the Unix socket: all come by TCP. */
TEST(a_name_that_another_user_has_taken)
{
    enum { NOBODY = 65534 };
    struct zt_meeting m = job_of_hosts(2, 60), alone = job(2, 60);
    struct sockaddr_storage at;
    struct zt_rendezvous r;
    struct zt_err err;
    pid_t pids[2];
    int says[2];
    if (geteuid() != 0)
        SKIP("needs root, to be another user");
    int fds[2];
    struct zt_meeting *jobs[] = {&m, &alone};
    for (int i = 0; i < 2; i++) {
        socklen_t len = zt_meeting_unix(jobs[i], &at);
        fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK_INT(bind(fds[i], (struct sockaddr *)&at, len), 0);
        CHECK_INT(seteuid(NOBODY), 0);
        CHECK_INT(listen(fds[i], 8), 0); /* by whom is what the kernel tells */
        CHECK_INT(seteuid(0), 0);
    }
    CHECK_OK(zt_rendezvous_open(&m, NULL, &r, &err), err);
    CHECK(r.unix_fd == -1 && r.tcp_fd >= 0);
    m.port = r.port;
    pids[1] = join(&m, 1, 1, &says[1]);
    check_all_leave(&m, &r, pids, says);
    CHECK_INT(zt_rendezvous_open(&alone, NULL, &r, &err), ZT_EINPUT);
    close(fds[0]);
    close(fds[1]);
}

/* The same port and secret, but another job: as if nobody were there. */
TEST(another_job_is_not_let_in)
{
    struct zt_meeting m = job_of_hosts(2, 60), other;
    struct zt_rendezvous r;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says;
    CHECK_OK(zt_rendezvous_open(&m, NULL, &r, &err), err);
    other = m;
    other.id[19] ^= 1;
    other.port = r.port;
    other.limit_s = 0.5;
    pid_t pid = join(&other, 1, 1, &says);
    step_until_it_ends(&r, says);
    RETURN_IF_FAILED();
    CHECK_INT(end_of(pid, says, text), 200);
    if (!strstr(text, "does not take us: another job, or another program?"))
        FAIL("%s", text);
    CHECK(!r.v[1].link.open && r.n_refused == 0);
    zt_rendezvous_leave(&r, 1);
}

TEST(a_second_of_the_same_rank_is_told)
{
    struct zt_meeting m = job(3, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says, second;
    CHECK_OK(zt_rendezvous_open(&m, NULL, &r, &err), err);
    pid_t pid = join(&m, 1, 1, &says);
    while (!r.v[1].told)
        ZT_ASSERT(zt_rendezvous_step(&r, 100, &err) == 0);
    pid_t pid2 = join(&m, 1, 1, &second);
    step_until_it_ends(&r, second);
    RETURN_IF_FAILED();
    CHECK_INT(end_of(pid2, second, text), 200);
    if (!strstr(text, "there is a rank 1 already: two jobs with the same MASTER_PORT?"))
        FAIL("%s", text);
    zt_rendezvous_leave(&r, 5);
    CHECK_INT(end_of(pid, says, text), 5);
}

TEST(two_jobs_at_one_place)
{
    struct zt_meeting m = job_of_hosts(2, 60), other;
    struct zt_rendezvous r, second;
    struct zt_err err;
    CHECK_OK(zt_rendezvous_open(&m, NULL, &r, &err), err);
    CHECK_INT(zt_rendezvous_open(&m, NULL, &second, &err), ZT_EINPUT);
    if (!strstr(err.msg, "another job that a test has started on this host"))
        FAIL("%s", err.msg);
    other = job_of_hosts(2, 60);
    other.port = r.port;
    CHECK_INT(zt_rendezvous_open(&other, NULL, &second, &err), ZT_EINPUT);
    if (!strstr(err.msg, "is taken on this host, by another job or another program"))
        FAIL("%s", err.msg);
    zt_rendezvous_leave(&r, 0);
}

TEST(an_address_of_another_host)
{
    static const struct {
        const char *host, *say;
    } cases[] = {
        {"203.0.113.7", "203.0.113.7: no address of this host"},
        {"localhost", "localhost: a loopback address here, which other hosts do not reach; it must "
                      "be this host"},
        {"no such host", "no such host: "},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_meeting m = job(2, 60);
        struct zt_rendezvous r;
        struct zt_err err;
        snprintf(m.host, sizeof m.host, "%s", cases[i].host);
        CHECK_INT(zt_rendezvous_open(&m, NULL, &r, &err), ZT_EINPUT);
        if (!strstr(err.msg, cases[i].say))
            FAIL("%s", err.msg);
    }
}

/* ---- agents that are not in yet ---- */

/* Both dial, and nobody takes them up. */
static pid_t join_until_agents_dial(struct zt_meeting *m, struct zt_rendezvous *r, int *says,
                                    int agents[ZT_PARTY_AGENTS])
{
    struct zt_err err;
    ZT_ASSERT(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0); /* they become ours when it goes */
    ZT_ASSERT(zt_rendezvous_open(m, NULL, r, &err) == 0);
    pid_t pid = join(m, 1, 0, says);
    while (!r->v[1].told)
        ZT_ASSERT(zt_rendezvous_step(r, 100, &err) == 0);
    for (int i = 0; i < ZT_PARTY_AGENTS; i++) {
        struct pollfd p = {.fd = r->unix_fd, .events = POLLIN};
        ZT_ASSERT(poll(&p, 1, -1) == 1);
        agents[i] = accept4(r->unix_fd, NULL, NULL, SOCK_CLOEXEC);
        ZT_ASSERT(agents[i] >= 0);
    }
    return pid;
}

static void end_dialing(struct zt_rendezvous *r, const int agents[ZT_PARTY_AGENTS])
{
    zt_rendezvous_leave(r, 1);
    for (int i = 0; i < ZT_PARTY_AGENTS; i++)
        close(agents[i]);
}

/* They would join whoever listens there next. */
TEST(agents_that_still_dial_end_when_the_job_does)
{
    struct zt_meeting m = job(2, 60);
    struct zt_rendezvous r;
    char text[SAYS_BYTES];
    int says, agents[ZT_PARTY_AGENTS];
    pid_t pid = join_until_agents_dial(&m, &r, &says, agents);
    zt_link_close(&r.v[1].link); /* as when rank 0 dies */
    CHECK_INT(end_of(pid, says, text), 200);
    if (!strstr(text, "the process of rank 0 is gone"))
        FAIL("%s", text);
    CHECK_INT(waitpid(-1, NULL, WNOHANG), -1); /* none is left */
    end_dialing(&r, agents);
}

TEST(agents_that_still_dial_end_with_their_process)
{
    struct zt_meeting m = job(2, 20);
    struct zt_rendezvous r;
    char text[SAYS_BYTES];
    int says, agents[ZT_PARTY_AGENTS], status, n = 0;
    pid_t pid = join_until_agents_dial(&m, &r, &says, agents);
    kill(pid, SIGKILL);
    CHECK_INT(end_of(pid, says, text), 128 + SIGKILL);
    for (; waitpid(-1, &status, 0) > 0; n++)
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK_INT(n, ZT_PARTY_AGENTS);
    end_dialing(&r, agents);
}

/* Another rank 0 listens there, which the process does not know: its link was cut. The jobs are the same in all else. */
TEST(agents_of_the_job_before_stay_out)
{
    enum { ROUNDS = 20, ROUND_MS = 50 };
    struct zt_meeting m = job(2, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says, agents[ZT_PARTY_AGENTS];
    pid_t pid = join_until_agents_dial(&m, &r, &says, agents);
    r.m.nonce[0] ^= 1;
    for (int i = 0; i < ZT_PARTY_AGENTS; i++)
        close(agents[i]);
    for (int i = 0; i < ROUNDS; i++)
        CHECK_INT(zt_rendezvous_step(&r, ROUND_MS, &err), 0);
    CHECK_INT(r.v[1].n_agents, 0);
    r.m.nonce[0] ^= 1; /* it is theirs after all */
    CHECK_OK(zt_rendezvous_wait(&r, &err), err);
    CHECK_INT(r.v[1].n_agents, ZT_PARTY_AGENTS);
    zt_rendezvous_leave(&r, 42);
    CHECK_INT(end_of(pid, says, text), 42);
    while (waitpid(-1, NULL, 0) > 0)
        ;
}

/* The front end decides what it means. */
TEST(a_signal_is_passed_on)
{
    struct zt_meeting m = job(2, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says, sig;
    CHECK_OK(zt_rendezvous_open(&m, NULL, &r, &err), err);
    pid_t pid = join(&m, 1, 1, &says);
    CHECK_OK(zt_rendezvous_wait(&r, &err), err);
    for (int i = 1; i <= 2; i++) {
        kill(pid, SIGTERM);
        while ((sig = zt_party_read(&r.v[1])) == 0) {
            struct pollfd p = {.fd = r.v[1].link.rfd, .events = POLLIN};
            poll(&p, 1, 1000);
        }
        CHECK_INT(sig, SIGTERM);
        CHECK_INT(r.v[1].n_signals, i);
    }
    zt_rendezvous_leave(&r, 143);
    CHECK_INT(end_of(pid, says, text), 143);
}

int main(int argc, char **argv)
{
    return meeting_main(argc, argv);
}
