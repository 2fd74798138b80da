#include "harness.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/launch.h"
#include "launch/srun.h"
#include "launch/supervisor.h"

TEST(srun_gets_exactly_the_hosts)
{
    static const char *const hosts[] = {"n07", "n08", "login-1"};
    static const char *const want[] = {
        "srun",
        "--ntasks-per-node=1",
        "--overlap",
        "--cpu-bind=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
        "--input=all",
        "--export=PATH,HOME,USER,LOGNAME,LANG,LD_LIBRARY_PATH,ZT_JOB_SECRET_FILE",
        "--nodes=3",
        "--ntasks=3",
        "--nodelist=n07,n08,login-1",
        "/opt/zerotrain",
        "member",
    };
    struct zt_arena arena = {0};
    const char *const *argv = zt_srun_argv("/opt/zerotrain", hosts, 3, &arena);
    for (size_t i = 0; i < ZT_ARRAY_LEN(want); i++)
        CHECK_STR(argv[i], want[i]);
    CHECK(!argv[ZT_ARRAY_LEN(want)]);
    zt_arena_release(&arena);
}

/* ---- srun, played by a script that is found first ---- */

static char folder[64], said[4096];

static void on_line(void *ctx, const char *line, size_t len)
{
    size_t used = strlen(said);
    (void)ctx;
    snprintf(said + used, sizeof said - used, "%.*s\n", (int)len, line);
}

/* Its tasks are `body`, run with srun's variables for host n1, then n2, ... and the ticket in $TICKET. */
static void play_srun(const char *body)
{
    char path[128], text[4096], *before = getenv("PATH");
    snprintf(folder, sizeof folder, "/tmp/zt-srun-XXXXXX");
    ZT_ASSERT(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/srun", folder);
    int n = snprintf(text, sizeof text,
                     "#!/bin/sh\n"
                     "TICKET=%s/ticket\n"
                     "cat >$TICKET\n"
                     "%s\n",
                     folder, body);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
    ZT_ASSERT(fd >= 0 && write(fd, text, (size_t)n) == n && close(fd) == 0);
    if (strncmp(before, "/tmp/zt-srun-", 13) == 0)
        before = strchr(before, ':') + 1;
    snprintf(text, sizeof text, "%s:%s", folder, before);
    setenv("PATH", text, 1);
    said[0] = '\0';
}

static void stop_playing(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/ticket", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/srun", folder);
    unlink(path);
    rmdir(folder);
}

struct attempt {
    struct zt_srun srun;
    struct zt_rendezvous r;
    enum zt_srun_host state[2];
    struct zt_err err;
    int rc, sig;
};

static void start(struct attempt *a, double limit_s)
{
    static const char *const hosts[] = {"n1", "n2"};
    *a = (struct attempt){.srun = {.say = on_line}};
    setenv("ZT_TCP_INTERFACE", "lo", 1);
    a->rc = zt_srun_start(&a->srun, "/opt/zerotrain", hosts, 2, "n1", limit_s, &a->r, a->state,
                          &a->sig, &a->err);
}

static void check_fails(const char *body, double limit_s, const char *say)
{
    struct attempt a;
    play_srun(body);
    start(&a, limit_s);
    stop_playing();
    CHECK(a.rc != 0);
    if (!strstr(a.err.msg, say))
        FAIL("\"%s\" does not say \"%s\"", a.err.msg, say);
    CHECK(a.srun.pid == 0 && !a.r.v);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1);
}

TEST(srun_that_fails_is_quoted)
{
    check_fails(
        "echo 'srun: error: no such partition' >&2; exit 3", 60,
        "srun ended with exit code 3 before all hosts had joined: srun: error: no such partition");
    CHECK_STR(said, "srun: error: no such partition\n");
    check_fails("kill -9 $$", 60, "srun was ended by signal 9");
}

TEST(what_a_task_said_is_heard_behind_its_end)
{
    check_fails(
        "printf 'srun: error: n[1-2]: tasks 0-1: Exited with exit code 3\\n' >&2; sleep 0.2; "
        "echo 'no such recipe' >&2; exec sleep 60",
        60, "zerotrain has ended on n1, n2");
    CHECK(strstr(said, "no such recipe"));
}

/* Of hosts n1 and n2, by what srun says: whose fault is it? */
TEST(hosts_that_fail_are_known)
{
    static const struct {
        const char *says, *error;
        enum zt_srun_host n1, n2;
    } cases[] = {
        {"srun: error: n2: task 1: Exited with exit code 7", "exit code 7", ZT_SRUN_AWAITED,
         ZT_SRUN_FAILED},
        {"srun: error: n[1-2]: tasks 0-1: Exited with exit code 7",
         "joined: srun: error: n[1-2]: tasks 0-1", ZT_SRUN_FAILED, ZT_SRUN_FAILED},
        /* what ends after it was not to blame */
        {"srun: error: Task launch for StepId=5.1 failed on node n2: Communication connection "
         "failure\nsrun: Job step aborted: Waiting up to 12 seconds for job step to finish.\n"
         "srun: error: n1: task 0: Killed",
         "joined: srun: error: Task launch for StepId=5.1 failed on node n2: Communication",
         ZT_SRUN_AWAITED, ZT_SRUN_FAILED},
        {"srun: error: n9: task 0: Killed\nsrun: error: n[1: task 0: Killed\nsrun: error: : task",
         "exit code 1", ZT_SRUN_AWAITED, ZT_SRUN_AWAITED},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        char body[600];
        struct attempt a;
        snprintf(body, sizeof body, "printf '%%s\\n' '%s' >&2; exit 1", cases[i].says);
        play_srun(body);
        start(&a, 60);
        stop_playing();
        CHECK(a.rc != 0);
        if (!strstr(a.err.msg, cases[i].error))
            FAIL("case %zu: \"%s\" does not say \"%s\"", i, a.err.msg, cases[i].error);
        CHECK_INT(a.state[0], cases[i].n1);
        CHECK_INT(a.state[1], cases[i].n2);
    }
}

TEST(a_signal_ends_the_start)
{
    static const int signals[] = {SIGTERM, SIGUSR1, SIGINT};
    for (size_t i = 0; i < ZT_ARRAY_LEN(signals); i++) {
        struct attempt a;
        char body[100];
        snprintf(body, sizeof body, "kill -%d %d; exec sleep 600", signals[i], (int)getpid());
        play_srun(body);
        start(&a, 60);
        stop_playing();
        CHECK_INT(a.rc, ZT_EPEER);
        CHECK_INT(a.sig, signals[i]);
        CHECK(waitpid(-1, NULL, WNOHANG) == -1);
    }
}

/* They come while srun is ended: the first is the one that counts, and none ends us before all is put away. */
TEST(more_signals_end_the_start_once)
{
    static const struct {
        const char *at_once;
        double limit_s;
        const char *say;
    } cases[] = {{"kill -USR1 $FRONT", 60, "stopped by signal 10"},
                 {":", 0.3, "0 of 2 hosts have joined within 0.3 s"}};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        char body[300];
        sigset_t now;
        snprintf(body, sizeof body,
                 "FRONT=%d; trap 'kill -TERM $FRONT; kill -USR1 $FRONT; exit 0' TERM; %s\n"
                 "while :; do sleep 0.05; done",
                 (int)getpid(), cases[i].at_once);
        check_fails(body, cases[i].limit_s, cases[i].say);
        pthread_sigmask(SIG_BLOCK, NULL, &now);
        CHECK(!sigismember(&now, SIGTERM) && !sigismember(&now, SIGUSR1));
    }
}

/* Who had blocked them sees those that the start was not ended by. */
TEST(a_signal_after_the_failure_is_left_to_who_blocked_it)
{
    sigset_t set;
    char body[200];
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    snprintf(body, sizeof body,
             "trap 'kill -TERM %d; exit 0' TERM; kill -USR1 %d; while :; do sleep 0.05; done",
             (int)getpid(), (int)getpid());
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    check_fails(body, 60, "stopped by signal 10");
    CHECK_INT(zt_await_ending_signal(0), SIGTERM);
    CHECK_INT(zt_await_ending_signal(0), 0);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

TEST(srun_whose_tasks_never_come)
{
    check_fails(
        "echo 'srun: error: n[1-2]: tasks 0-1: Exited with exit code 7' >&2; exec sleep 600", 60,
        "0 of 2 hosts have joined, but zerotrain has ended on n1, n2: srun: error: n[1-2]");
    check_fails("exec sleep 600", 0.3, "0 of 2 hosts have joined within 0.3 s (ZT_JOIN_SECONDS)");
}

/* Takes the ticket as a task does, and joins. */
static void be_a_task(int rank, const char *ticket)
{
    struct zt_meeting m;
    struct zt_err err = {0};
    const char *host;
    char text[16];
    int code = 0, fd = open(ticket, O_RDONLY | O_CLOEXEC);
    snprintf(text, sizeof text, "%d", rank);
    setenv("SLURM_PROCID", text, 1);
    snprintf(text, sizeof text, "n%d", 2 - rank); /* Slurm need not keep our order */
    setenv("SLURMD_NODENAME", text, 1);
    if (fd < 0 || zt_srun_read_ticket(fd, &m, &host, &err) ||
        zt_member_run(&m, host, &code, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        _exit(200);
    }
    _exit(code);
}

/* The script waits until the ticket has been used: by children of ours, as it cannot run this program. */
TEST(tasks_join_by_the_ticket)
{
    struct attempt a;
    char ticket[128];
    int status;
    pid_t tasks[2];
    play_srun("touch $TICKET.whole; while [ -e $TICKET ]; do sleep 0.05; done; exit 42");
    snprintf(ticket, sizeof ticket, "%s/ticket", folder);
    for (int i = 0; i < 2; i++) {
        tasks[i] = fork();
        if (tasks[i] == 0) {
            char whole[160];
            snprintf(whole, sizeof whole, "%s.whole", ticket);
            while (access(whole, F_OK))
                usleep(10000);
            be_a_task(i, ticket);
        }
    }
    start(&a, 60);
    CHECK_OK(a.rc, a.err);
    CHECK_STR(a.r.v[0].host, "n2");
    CHECK_STR(a.r.v[1].host, "n1");
    CHECK_STR(a.r.v[0].address, "127.0.0.1");
    CHECK(a.r.v[0].n_agents == ZT_PARTY_AGENTS && a.r.v[1].n_agents == ZT_PARTY_AGENTS);
    CHECK(a.r.unix_fd == -1 && a.r.tcp_fd == -1);
    zt_rendezvous_leave(&a.r, 42);
    for (int i = 0; i < 2; i++) {
        CHECK(waitpid(tasks[i], &status, 0) == tasks[i]);
        CHECK_INT(WEXITSTATUS(status), 42);
    }
    CHECK(a.state[0] == ZT_SRUN_CAME && a.state[1] == ZT_SRUN_CAME && a.sig == 0);
    unlink(ticket);
    zt_srun_end(&a.srun, false);
    snprintf(ticket, sizeof ticket, "%s/ticket.whole", folder);
    unlink(ticket);
    stop_playing();
}

TEST(what_is_no_ticket)
{
    static const char *const texts[] = {"", "garbage", "zerotrain ticket 4\n",
                                        "zerotrain ticket 2\n...."};
    for (size_t i = 0; i < ZT_ARRAY_LEN(texts); i++) {
        struct zt_meeting m;
        struct zt_err err;
        const char *host;
        int pipes[2];
        ZT_ASSERT(pipe2(pipes, O_CLOEXEC) == 0);
        ZT_ASSERT(write(pipes[1], texts[i], strlen(texts[i])) == (ssize_t)strlen(texts[i]));
        close(pipes[1]);
        CHECK_INT(zt_srun_read_ticket(pipes[0], &m, &host, &err), ZT_EINPUT);
        close(pipes[0]);
        if (!strstr(err.msg, "is started by zerotrain --launcher=slurm"))
            FAIL("%s", err.msg);
    }
}

/* ---- a secret of two halves ---- */

/* In the folder of the played srun. */
static void put_secret(const char *name, const char *bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ZT_ASSERT(fd >= 0 && write(fd, bytes, strlen(bytes)) == (ssize_t)strlen(bytes));
    close(fd);
}

static void use_secret(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    setenv("ZT_JOB_SECRET_FILE", path, 1);
}

static void remove_secret(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
    unsetenv("ZT_JOB_SECRET_FILE");
}

/* As what the front end takes somebody with this secret, by TCP. */
static enum zt_tls_state knock(const struct zt_meeting *m)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)m->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct zt_conn c = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    struct pollfd p = {.fd = c.fd};
    struct zt_tls_ctx *ctx;
    struct zt_hello hello;
    struct zt_err err;
    enum zt_tls_state state;
    if (connect(c.fd, (struct sockaddr *)&at, sizeof at)) {
        zt_conn_close(&c);
        return ZT_TLS_FAILED;
    }
    fcntl(c.fd, F_SETFL, O_NONBLOCK);
    zt_meeting_hello(m, 0, ZT_PARTY_PROCESS, &hello);
    ZT_ASSERT(zt_tls_ctx_create(m->secret, NULL, NULL, &ctx, &err) == 0);
    ZT_ASSERT(zt_tls_dial(ctx, c.fd, &hello, sizeof hello, &c.tls, &err) == 0);
    while ((state = zt_tls_handshake(c.tls)) == ZT_TLS_GOING_ON) {
        p.events = zt_tls_events(c.tls);
        poll(&p, 1, -1);
    }
    zt_conn_close(&c);
    zt_tls_ctx_free(ctx);
    return state;
}

/* What the tasks get through Slurm, and with the file of `name` besides. */
static enum zt_tls_state knock_with(const char *ticket, const char *name)
{
    struct zt_meeting m;
    struct zt_err err;
    const char *host;
    int fd = open(ticket, O_RDONLY | O_CLOEXEC);
    if (name)
        use_secret(name);
    ZT_ASSERT(fd >= 0);
    if (name ? zt_srun_read_ticket(fd, &m, &host, &err) : zt_ticket_read(fd, &m, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        _exit(200);
    }
    close(fd);
    return knock(&m);
}

TEST(what_goes_through_slurm_is_not_enough)
{
    struct attempt a;
    char ticket[128], whole[160];
    int status;
    play_srun("touch $TICKET.whole; while [ -e $TICKET ]; do sleep 0.05; done; exit 42");
    put_secret("ours", "0123456789abcdef");
    put_secret("other", "0123456789abcdeF");
    use_secret("ours");
    snprintf(ticket, sizeof ticket, "%s/ticket", folder);
    snprintf(whole, sizeof whole, "%s.whole", ticket);
    pid_t task = fork();
    if (task == 0) {
        setenv("SLURM_PROCID", "0", 1);
        setenv("SLURMD_NODENAME", "n1", 1);
        while (access(whole, F_OK))
            usleep(10000);
        int wrong = knock_with(ticket, NULL) != ZT_TLS_OTHER_SECRET;
        wrong += (knock_with(ticket, "other") != ZT_TLS_OTHER_SECRET) << 1;
        wrong += (knock_with(ticket, "ours") != ZT_TLS_PROVEN) << 2; /* ends the meeting */
        unlink(ticket);
        _exit(wrong);
    }
    start(&a, 60);
    CHECK(a.rc != 0);
    CHECK(waitpid(task, &status, 0) == task);
    CHECK_INT(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    unlink(whole);
    remove_secret("ours");
    remove_secret("other");
    stop_playing();
}

TEST(a_half_that_is_missing_is_told)
{
    static const struct {
        bool half;
        const char *path, *say;
    } cases[] = {
        {true, NULL, "on n1: ZT_JOB_SECRET_FILE is set where zerotrain was started, but not here"},
        {true, "/no/such", "on n1: ZT_JOB_SECRET_FILE=/no/such: No such file"},
        {false, "/no/such", "ZT_JOB_SECRET_FILE is set here, but not where zerotrain was started"},
    };
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURMD_NODENAME", "n1", 1);
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_meeting m = {.world = 1, .half_a_secret = cases[i].half};
        struct zt_str ticket = {0};
        struct zt_err err;
        const char *host;
        int pipes[2];
        zt_ticket_put(&m, &ticket);
        ZT_ASSERT(pipe2(pipes, O_CLOEXEC) == 0);
        ZT_ASSERT(write(pipes[1], ticket.buf, ticket.len) == (ssize_t)ticket.len);
        close(pipes[1]);
        zt_str_release(&ticket);
        if (cases[i].path)
            setenv("ZT_JOB_SECRET_FILE", cases[i].path, 1);
        int rc = zt_srun_read_ticket(pipes[0], &m, &host, &err);
        unsetenv("ZT_JOB_SECRET_FILE");
        close(pipes[0]);
        CHECK_INT(rc, ZT_EINPUT);
        if (!strstr(err.msg, cases[i].say))
            FAIL("case %zu: \"%s\" does not say \"%s\"", i, err.msg, cases[i].say);
    }
    setenv("ZT_JOB_SECRET_FILE", "/no/such", 1);
    check_fails("exit 0", 60, "ZT_JOB_SECRET_FILE=/no/such: No such file");
    unsetenv("ZT_JOB_SECRET_FILE");
}

/* ---- who ends while others are awaited ---- */

/* What the first agent does, so once its task is told of: end that, or remove this file. */
static const char once_told_var[] = "ZT_TEST_ONCE_TOLD", end_task[] = "end";

/* Once srun, a script that never ends, has the ticket. */
static pid_t fork_task(void (*task)(const char *ticket))
{
    char ticket[128], whole[160];
    snprintf(ticket, sizeof ticket, "%s/ticket", folder);
    snprintf(whole, sizeof whole, "%s.whole", ticket);
    pid_t pid = fork();
    if (pid)
        return pid;
    while (access(whole, F_OK))
        usleep(10000);
    task(ticket);
    _exit(0);
}

/* The first one, on n2: it is told, starts its agents, and is killed by one of them. */
static void come_and_die(const char *ticket)
{
    setenv(once_told_var, end_task, 1);
    be_a_task(0, ticket);
}

static void come_and_stay(const char *ticket)
{
    setenv(once_told_var, ticket, 1);
    be_a_task(0, ticket);
}

static void prove_and_leave(const char *ticket)
{
    struct zt_meeting m;
    struct zt_err err;
    int fd = open(ticket, O_RDONLY | O_CLOEXEC);
    ZT_ASSERT(fd >= 0 && zt_ticket_read(fd, &m, &err) == 0);
    ZT_ASSERT(knock(&m) == ZT_TLS_PROVEN);
}

/* The other host is slow, and not to blame. */
TEST(who_comes_and_ends_is_to_blame)
{
    static const struct {
        void (*task)(const char *ticket);
        const char *say;
        enum zt_srun_host n1, n2;
    } cases[] = {
        {come_and_die, "the process on n2: it has ended", ZT_SRUN_SPARED, ZT_SRUN_FAILED},
        {prove_and_leave, "the process of rank 0: it has ended", ZT_SRUN_SPARED, ZT_SRUN_SPARED},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct attempt a;
        char whole[160];
        play_srun("touch $TICKET.whole; exec sleep 600");
        pid_t task = fork_task(cases[i].task);
        start(&a, 60);
        CHECK_INT(a.rc, ZT_EPEER);
        if (!strstr(a.err.msg, cases[i].say))
            FAIL("case %zu: \"%s\" does not say \"%s\"", i, a.err.msg, cases[i].say);
        CHECK_INT(a.state[0], cases[i].n1);
        CHECK_INT(a.state[1], cases[i].n2);
        CHECK(waitpid(task, NULL, 0) == task);
        snprintf(whole, sizeof whole, "%s/ticket.whole", folder);
        unlink(whole);
        stop_playing();
    }
}

/* srun may say that a task has ended before its link does. */
TEST(srun_knows_better_than_who_came)
{
    struct attempt a;
    char whole[160];
    play_srun("touch $TICKET.whole; while [ -e $TICKET ]; do sleep 0.05; done\n"
              "echo 'srun: error: n2: task 0: Killed' >&2; sleep 0.3; exit 1");
    pid_t task = fork_task(come_and_stay);
    start(&a, 60);
    CHECK_INT(a.rc, ZT_ESYS);
    CHECK_INT(a.state[0], ZT_SRUN_AWAITED);
    CHECK_INT(a.state[1], ZT_SRUN_FAILED);
    CHECK(waitpid(task, NULL, 0) == task);
    snprintf(whole, sizeof whole, "%s/ticket.whole", folder);
    unlink(whole);
    stop_playing();
}

/* Tasks start this program again, as an agent. */
int main(int argc, char **argv)
{
    struct zt_err err = {0};
    if (argc != 3 || strcmp(argv[1], "agent") != 0)
        return zt_run_tests(argc, argv);
    const char *once_told = getenv(once_told_var);
    if (once_told && strcmp(once_told, end_task) == 0)
        kill(getppid(), SIGKILL);
    else if (once_told)
        unlink(once_told);
    int rc = zt_agent_main(true, &err);
    if (err.msg[0])
        fprintf(stderr, "%s\n", err.msg);
    return rc;
}
