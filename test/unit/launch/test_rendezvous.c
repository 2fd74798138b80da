#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/launch.h"
#include "launch/rendezvous.h"

/* ---- where, from the environment ---- */

static char secret_path[64];

static void make_secret(const char *text, mode_t mode)
{
    snprintf(secret_path, sizeof secret_path, "/tmp/zt-secret-%d", (int)getpid());
    unlink(secret_path);
    int fd = open(secret_path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ZT_ASSERT(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    ZT_ASSERT(fchmod(fd, mode) == 0 && close(fd) == 0);
}

/* "NAME=value NAME=value"; "SECRET" stands for the file's. */
static int meet(const char *vars, struct zt_meeting *m, struct zt_err *err)
{
    struct zt_env env = {0};
    struct zt_place p;
    for (const char *s = vars; *s; s += strspn(s, " ")) {
        size_t n = strcspn(s, " ");
        if (strncmp(s, "SECRET", n) == 0)
            zt_env_setf(&env, "ZT_JOB_SECRET_FILE=%s", secret_path);
        else
            zt_env_set(&env, s, n);
        s += n;
    }
    int rc = zt_detect_place(&env, &p, err);
    if (!rc)
        rc = zt_meeting_of_env(&env, &p, m, err);
    zt_env_release(&env);
    return rc;
}

#define TORCH(rank, local) "RANK=" #rank " WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=" #local " "
#define OMPI(local)                                                                                \
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "                  \
    "OMPI_COMM_WORLD_LOCAL_SIZE=" #local " "
#define SRUN(nodes)                                                                                \
    "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=" #nodes           \
    " SLURM_JOB_ID=7001 SLURM_STEP_ID=2 "

TEST(meeting_places)
{
    static const struct {
        const char *vars, *host, *towards;
        int port;
    } cases[] = {
        /* one host: no address and no secret are needed */
        {TORCH(1, 4), "", "", 0},
        {TORCH(1, 4) "MASTER_ADDR=a MASTER_PORT=4000", "", "", 0},
        {OMPI(4), "", "", 0},
        {"PMI_RANK=1 PMI_SIZE=4", "", "", 0},
        {SRUN(1) "SLURM_STEP_NODELIST=n1", "", "", 0},
        /* several */
        {TORCH(1, 2) "SECRET MASTER_ADDR=a", "a", "", 29500},
        {TORCH(1, 2) "SECRET MASTER_ADDR=a MASTER_PORT=4000", "a", "", 4000},
        {TORCH(1, 2) "SECRET MASTER_ADDR=a MASTER_PORT=4000 TORCHELASTIC_USE_AGENT_STORE=True", "a",
         "", 4001},
        {TORCH(1, 2) "SECRET MASTER_ADDR=a MASTER_PORT=4000 TORCHELASTIC_USE_AGENT_STORE=False",
         "a", "", 4000},
        {OMPI(2) "SECRET MASTER_ADDR=fd00::1", "fd00::1", "", 29500},
        {"PMI_RANK=1 PMI_SIZE=4 SECRET MASTER_ADDR=a", "a", "", 29500},
        {SRUN(2) "SECRET SLURM_STEP_NODELIST=n[08-09] SLURM_JOB_NODELIST=n[07-09]", "n08", "n09",
         20000 + (7001 * 16 + 2) % 10000},
        {SRUN(2) "SECRET SLURM_JOB_NODELIST=n[07-09] MASTER_PORT=4000", "n07", "n08", 4000},
        {SRUN(2) "SECRET SLURM_JOB_NODELIST=n[07-09] MASTER_ADDR=ib7", "ib7", "",
         20000 + (7001 * 16 + 2) % 10000},
    };
    make_secret("0123456789abcdef", 0600);
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_meeting m;
        struct zt_err err;
        if (meet(cases[i].vars, &m, &err))
            FAIL("case %zu: %s", i, err.msg);
        CHECK_STR(m.host, cases[i].host);
        CHECK_STR(m.towards, cases[i].towards);
        CHECK_INT(m.port, cases[i].port);
        CHECK_INT(m.rank, 1);
        CHECK_INT(m.world, 4);
    }
    unlink(secret_path);
}

TEST(what_is_missing_is_said)
{
    static const struct {
        const char *vars, *secret;
        mode_t mode;
        const char *say;
    } cases[] = {
        {TORCH(1, 2) "MASTER_ADDR=a", "", 0600,
         "torchrun has started us on several hosts, which must know"},
        {TORCH(1, 2) "SECRET", "0123456789abcdef", 0600, "set MASTER_ADDR to its host"},
        {TORCH(1, 2) "SECRET MASTER_ADDR=a MASTER_PORT=http", "0123456789abcdef", 0600,
         "MASTER_PORT=http: a number from 1"},
        {TORCH(1, 4) "SECRET", "0123456789abcdef", 0640,
         "others may read or write it; `chmod 600`"},
        {TORCH(1, 4) "SECRET", "0123456789abcde", 0600, "15 bytes; a secret has from 16"},
        {TORCH(1, 4) "ZT_JOB_SECRET_FILE=/tmp", "", 0600, "not a file"},
        {TORCH(1, 4) "ZT_JOB_SECRET_FILE=/no/such", "", 0600, "/no/such: No such file"},
        {SRUN(2) "SECRET", "0123456789abcdef", 0600, "srun has not set SLURM_STEP_NODELIST"},
        {SRUN(2) "SECRET SLURM_STEP_NODELIST=n[1", "0123456789abcdef", 0600, "not closed"},
        {TORCH(1, 4) "ZT_JOIN_SECONDS=0", "", 0600, "ZT_JOIN_SECONDS=0: a number from 1"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_meeting m;
        struct zt_err err;
        make_secret(cases[i].secret, cases[i].mode);
        CHECK_INT(meet(cases[i].vars, &m, &err), ZT_EINPUT);
        if (!strstr(err.msg, cases[i].say))
            FAIL("case %zu: \"%s\" does not say \"%s\"", i, err.msg, cases[i].say);
    }
    unlink(secret_path);
}

TEST(a_job_has_an_id_of_its_own)
{
    static const char *const others[] = {
        TORCH(1, 4) "MASTER_PORT=4001 TORCHELASTIC_RUN_ID=a",
        TORCH(1, 4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=b",
        TORCH(1, 4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a TORCHELASTIC_RESTART_COUNT=1",
        OMPI(4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a",
        TORCH(1, 4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a MASTER_ADDR=b",
    };
    struct zt_meeting a, b;
    struct zt_err err;
    CHECK_OK(meet(TORCH(1, 4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a", &a, &err), err);
    CHECK_OK(meet(TORCH(2, 4) "MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a SLURM_JOB_ID=3", &b, &err),
             err);
    CHECK(memcmp(a.id, b.id, sizeof a.id) == 0);
    for (size_t i = 0; i < ZT_ARRAY_LEN(others); i++) {
        CHECK_OK(meet(others[i], &b, &err), err);
        CHECK(memcmp(a.id, b.id, sizeof a.id) != 0);
    }
}

/* ---- processes that join ---- */

/* A job that no other test or process of this host has. */
static struct zt_meeting job(int world, double limit_s)
{
    static int count;
    struct zt_meeting m = {.by = "a test", .world = world, .limit_s = limit_s, .local_rank = 0};
    int ids[] = {(int)getpid(), count++};
    memcpy(m.id, ids, sizeof ids);
    memset(m.secret, 7, sizeof m.secret);
    return m;
}

/* With a TCP port, that the system picks. */
static struct zt_meeting job_of_hosts(int world, double limit_s)
{
    struct zt_meeting m = job(world, limit_s);
    snprintf(m.host, sizeof m.host, "127.0.0.1");
    return m;
}

/* As if the others were on other hosts: where is the port. */
static int open_for_hosts(struct zt_meeting *m, struct zt_rendezvous *r, struct zt_err *err)
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
static struct zt_meeting *known_to(int rank)
{
    static struct zt_meeting *v;
    if (!v)
        v = mmap(NULL, RANKS_MAX * sizeof *v, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    ZT_ASSERT(v != MAP_FAILED && rank < RANKS_MAX);
    return &v[rank];
}

/* A process that joins; what it says in the end goes to *says. It leaves with the job's code, or 200. */
static pid_t join(const struct zt_meeting *m, int rank, int local_rank, int *says)
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

static int end_of(pid_t pid, int says, char text[SAYS_BYTES])
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

static void check_all_leave(const struct zt_meeting *m, struct zt_rendezvous *r, const pid_t *pids,
                            const int *says)
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

/* ---- who is in between ---- */

enum { RELAYED_MAX = 8 };

struct relay {
    int listen_fd, to_port;
    int ends[RELAYED_MAX][2]; /* who dialled us, and whom we dialled for him; -1: cut */
    bool answered[RELAYED_MAX];
    int n;
    unsigned cuts; /* bits: of these connections what follows on the first answer comes to nobody */
};

static int dial_port(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ZT_ASSERT(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

static int relay_open(struct relay *y, int to_port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    *y = (struct relay){.to_port = to_port};
    y->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ZT_ASSERT(bind(y->listen_fd, (struct sockaddr *)&at, sizeof at) == 0);
    ZT_ASSERT(listen(y->listen_fd, 8) == 0);
    ZT_ASSERT(getsockname(y->listen_fd, (struct sockaddr *)&at, &len) == 0);
    return ntohs(at.sin_port);
}

static void relay_cut(int ends[2])
{
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        ends[i] = -1;
    }
}

/* Whatever one end says, the other gets. */
static void relay_step(struct relay *y)
{
    int fd = y->n < RELAYED_MAX ? accept(y->listen_fd, NULL, NULL) : -1;
    if (fd >= 0) {
        y->ends[y->n][0] = fd;
        y->ends[y->n++][1] = dial_port(y->to_port);
    }
    for (int i = 0; i < 2 * y->n; i++) {
        char bytes[512];
        int *ends = y->ends[i / 2];
        ssize_t got = recv(ends[i % 2], bytes, sizeof bytes, MSG_DONTWAIT);
        y->answered[i / 2] |= got > 0 && i % 2 == 1;
        if (got > 0 && i % 2 == 0 && y->answered[i / 2] && y->cuts & 1U << i / 2)
            relay_cut(ends);
        else if (got > 0)
            (void)!send(ends[1 - i % 2], bytes, (size_t)got, MSG_NOSIGNAL);
        else if (got == 0)
            shutdown(ends[1 - i % 2], SHUT_WR);
    }
}

/* Until a process that joins has said its last, or something at all. */
static void relay_until(struct relay *y, int says)
{
    struct pollfd p = {.fd = says, .events = POLLIN};
    do
        relay_step(y);
    while (poll(&p, 1, 1) == 0);
}

static void relay_close(struct relay *y)
{
    for (int i = 0; i < 2 * y->n; i++)
        close(y->ends[i / 2][i % 2]);
    close(y->listen_fd);
}

/* Until a process that joins has said its last. */
static void step_until_it_ends(struct zt_rendezvous *r, int says)
{
    struct pollfd p = {.fd = says, .events = POLLIN};
    struct zt_err err;
    do {
        CHECK_INT(zt_rendezvous_step(r, 10, &err), 0);
    } while (poll(&p, 1, 0) == 0);
}

/*
 * Who has said its last of the handshake does not know whether that was heard: rank 0 may have made room for others. A
 * process and an agent that are cut off then come again.
 */
TEST(who_was_cut_off_before_it_was_in_comes_again)
{
    struct zt_meeting m = job_of_hosts(2, 60);
    struct zt_rendezvous r;
    struct relay relay;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says, rc;
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    m.port = relay_open(&relay, r.port);
    const int64_t end_ns = zt_now_ns() + (int64_t)(m.limit_s * 1e9);
    relay.cuts = 1U << 0 | 1U << 2; /* the process, and once it is in, the first of its agents */
    pid_t pid = join(&m, 1, 0, &says);
    do
        relay_step(&relay);
    while ((rc = zt_rendezvous_step(&r, 1, &err)) == 0 && zt_now_ns() < end_ns);
    CHECK_OK(rc < 0 ? rc : 0, err);
    CHECK_INT(r.v[1].n_agents, ZT_PARTY_AGENTS);
    CHECK_INT(relay.n, 2 + 1 + ZT_PARTY_AGENTS);
    zt_rendezvous_leave(&r, 42);
    relay_until(&relay, says);
    CHECK_INT(end_of(pid, says, text), 42);
    relay_close(&relay);
}

/* Addresses may be translated on the way: nothing depends on them. */
TEST(who_passes_on_what_others_say_is_the_network)
{
    struct zt_meeting m = job_of_hosts(2, 60);
    struct zt_rendezvous r;
    struct relay relay;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says, rc;
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    m.port = relay_open(&relay, r.port);
    pid_t pid = join(&m, 1, 0, &says);
    do
        relay_step(&relay);
    while ((rc = zt_rendezvous_step(&r, 1, &err)) == 0);
    CHECK_OK(rc < 0 ? rc : 0, err);
    CHECK(r.v[1].n_agents == ZT_PARTY_AGENTS);
    zt_rendezvous_leave(&r, 42);
    relay_until(&relay, says);
    CHECK_INT(end_of(pid, says, text), 42);
    relay_close(&relay);
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

/* ---- strangers ---- */

/*
 * Silent ones, garbage, a HELLO in the clear, or half of it, and a handshake that stops half-way: the job comes together
 * regardless.
 */
TEST(strangers_change_nothing)
{
    enum { SILENT = 80 };
    struct zt_meeting m = job_of_hosts(3, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    struct zt_hello hello;
    struct zt_tls_ctx *ctx;
    struct zt_tls *stops;
    static const char garbage[4096] = "GET / HTTP/1.1\r\n\r\n";
    int silent[SILENT], fds[4];
    pid_t pids[3];
    int says[3];
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    for (int i = 0; i < SILENT; i++) /* more than there are places */
        silent[i] = dial_port(r.port);
    for (int i = 0; i < 4; i++)
        fds[i] = dial_port(r.port);
    zt_meeting_hello(&m, 1, ZT_PARTY_PROCESS, &hello);
    CHECK(send(fds[0], garbage, sizeof garbage, MSG_NOSIGNAL) > 0);
    CHECK(send(fds[1], &hello, 20, MSG_NOSIGNAL) == 20);
    CHECK(send(fds[2], &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello);
    fcntl(fds[3], F_SETFL, O_NONBLOCK);
    CHECK_OK(zt_tls_ctx_create(m.secret, NULL, NULL, &ctx, &err), err);
    CHECK_OK(zt_tls_dial(ctx, fds[3], &hello, sizeof hello, &stops, &err), err);
    CHECK_INT(zt_tls_handshake(stops), ZT_TLS_GOING_ON);
    pids[1] = join(&m, 1, 1, &says[1]);
    pids[2] = join(&m, 2, 0, &says[2]);
    check_all_leave(&m, &r, pids, says);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    zt_tls_free(stops);
    zt_tls_ctx_free(ctx);
}

/* From 127.0.0.`host`. It says the first byte of a handshake, for who says nothing may not be seen at all. */
static int stranger_from(int host, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + (unsigned)host)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ZT_ASSERT(bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    at.sin_port = htons((uint16_t)port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ZT_ASSERT(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    ZT_ASSERT(send(fd, "\x16", 1, MSG_NOSIGNAL) == 1);
    return fd;
}

static bool is_closed(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

/* A crowd from one address, the oldest first; and one of another address before it. Nobody has to go for nobody. */
TEST(places_are_taken_from_a_crowd)
{
    enum { CROWD = ZT_STRANGERS_MAX - 1, MORE = 4, WAIT_MS = 700, TOO_SLOW_MS = 4500 };
    struct zt_meeting m = job_of_hosts(2, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    int crowd[CROWD + MORE];
    const int64_t begin_ns = zt_now_ns();
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    int alone = stranger_from(1, r.port);
    while (r.n_shakes < 1)
        CHECK_INT(zt_rendezvous_step(&r, 10, &err), 0);
    for (int i = 0; i < CROWD; i++)
        crowd[i] = stranger_from(2, r.port);
    while (r.n_shakes < ZT_STRANGERS_MAX)
        CHECK_INT(zt_rendezvous_step(&r, 10, &err), 0);
    poll(NULL, 0, WAIT_MS);
    CHECK_INT(zt_rendezvous_step(&r, 10, &err), 0);
    const int n_before = r.n_shakes;
    for (int i = CROWD; i < CROWD + MORE; i++)
        crowd[i] = stranger_from(2, r.port);
    while (!is_closed(crowd[MORE - 1]))
        CHECK_INT(zt_rendezvous_step(&r, 10, &err), 0);
    if (zt_now_ns() - begin_ns > TOO_SLOW_MS * (int64_t)1000000)
        SKIP("this machine is too slow for it now");
    CHECK_INT(n_before, ZT_STRANGERS_MAX);
    CHECK(!is_closed(alone));
    CHECK(!is_closed(crowd[CROWD + MORE - 1]));
    CHECK_INT(r.n_shakes, ZT_STRANGERS_MAX);
    zt_rendezvous_leave(&r, 1);
    close(alone);
    for (int i = 0; i < CROWD + MORE; i++)
        close(crowd[i]);
}

/* A byte at a time, he would have his place for ever. */
TEST(a_stranger_who_never_comes_to_an_end)
{
    enum { BYTE_MS = 20, TOO_LONG_S = 60 };
    static const char hello[] = "\x16\x03\x01\x10\x00\x01\x00\x0f\xfc\x03\x03"; /* of 4 KB */
    struct zt_meeting m = job_of_hosts(2, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    int fd = stranger_from(1, r.port);
    int64_t end_ns = zt_now_ns() + TOO_LONG_S * (int64_t)1000000000;
    for (size_t i = 1; !is_closed(fd) && zt_now_ns() < end_ns; i++) {
        (void)!send(fd, i < sizeof hello ? &hello[i] : hello, 1, MSG_NOSIGNAL);
        CHECK_INT(zt_rendezvous_step(&r, BYTE_MS, &err), 0);
        poll(NULL, 0, BYTE_MS);
    }
    CHECK(is_closed(fd));
    zt_rendezvous_leave(&r, 1);
    close(fd);
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

/* Who joins starts this program again, as an agent. */
int main(int argc, char **argv)
{
    struct zt_err err = {0};
    if (argc != 3 || strcmp(argv[1], "agent") != 0)
        return zt_run_tests(argc, argv);
    int rc = zt_agent_main(true, &err);
    if (err.msg[0])
        fprintf(stderr, "%s\n", err.msg);
    return rc;
}
