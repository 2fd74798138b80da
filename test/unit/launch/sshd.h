/*
 * sshd.h: an sshd of the test's own on a port of the loopback interface, with keys in a folder of the test, and
 * hosts that are reached by it. Nothing of the account's own configuration matters.
 */
#ifndef ZT_TEST_LAUNCH_SSHD_H
#define ZT_TEST_LAUNCH_SSHD_H

#include "harness.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "launch/ssh2.h"
#include "launch/ssh_config.h"
#include "launch/turns.h"

enum { MAX_HOSTS = 64, WAIT_S = 60 };

struct rig {
    char dir[64];
    int port;
    pid_t sshd, agent;
    struct zt_arena arena;
    struct zt_ssh2 *ssh2;
    struct zt_ssh_keys *keys; /* of all jobs; NULL: each has its own */
    int n;
    struct zt_ssh_target target[MAX_HOSTS];
    struct zt_ssh_config config[MAX_HOSTS];
    struct zt_turns *turns;
    struct zt_turn turn[MAX_HOSTS];
    int fd[MAX_HOSTS], err_fd[MAX_HOSTS]; /* our ends */
};

extern char **environ;

/* A command in the rig's folder. */
ZT_UNUSED ZT_PRINTF(2, 3) static int sh(const struct rig *r, const char *fmt, ...)
{
    char cmd[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = snprintf(cmd, sizeof cmd, "exec >>%s/out 2>&1; cd %s && { ", r->dir, r->dir);
    n += vsnprintf(cmd + n, sizeof cmd - (size_t)n, fmt, ap);
    va_end(ap);
    snprintf(cmd + n, sizeof cmd - (size_t)n, "; }");
    return system(cmd);
}

ZT_UNUSED static char *in(struct rig *r, const char *name)
{
    return zt_arena_printf(&r->arena, "%s/%s", r->dir, name);
}

ZT_UNUSED static pid_t spawn_in(struct rig *r, const char *const *argv)
{
    posix_spawn_file_actions_t files;
    pid_t pid = 0;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, in(r, "log"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    if (posix_spawnp(&pid, argv[0], &files, NULL, (char *const *)argv, environ))
        pid = 0;
    posix_spawn_file_actions_destroy(&files);
    return pid;
}

ZT_UNUSED static void end_process(pid_t *pid)
{
    if (*pid > 0) {
        kill(*pid, SIGTERM);
        waitpid(*pid, NULL, 0);
    }
    *pid = 0;
}

ZT_UNUSED static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, len) == 0 &&
              getsockname(fd, (struct sockaddr *)&a, &len) == 0;
    close(fd);
    return ok ? ntohs(a.sin_port) : 0;
}

ZT_UNUSED static bool answers(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return ok;
}

/*
 * Start the sshd (again), with what is given beside the usual configuration. The account has its home in the
 * folder: what its own shell does at each login is not ours to measure.
 */
ZT_UNUSED static bool start_sshd(struct rig *r, const char *host_key, const char *more)
{
    struct zt_str s = {0};
    struct zt_err err;
    end_process(&r->sshd);
    r->port = free_port();
    zt_str_printf(&s,
                  "Port %d\n%sHostKey %s/%s\nPidFile none\n"
                  "AuthorizedKeysFile %s/authorized\nStrictModes no\nUsePAM no\nSetEnv HOME=%s\n"
                  "PermitRootLogin yes\nLogLevel VERBOSE\n%s\n",
                  r->port,
                  strstr(more, "ListenAddress") ? ""
                                                : "ListenAddress 127.0.0.1\nListenAddress ::1\n",
                  r->dir, host_key, r->dir, r->dir, more);
    bool ok = zt_write_file_atomic(in(r, "sshd_config"), s.buf, s.len, &err) == 0;
    zt_str_release(&s);
    const char *argv[] = {"/usr/sbin/sshd", "-D", "-e", "-f", in(r, "sshd_config"), NULL};
    r->sshd = ok ? spawn_in(r, argv) : 0;
    for (int i = 0; r->sshd && i < 20 * WAIT_S; i++) {
        if (answers(r->port))
            return true;
        if (waitpid(r->sshd, NULL, WNOHANG) == r->sshd)
            r->sshd = 0;
        poll(NULL, 0, 50);
    }
    return false;
}

/* known_hosts has the key of that name for the host at the rig's port. */
ZT_UNUSED static bool know(struct rig *r, const char *hosts, const char *key)
{
    return sh(r, "{ printf '%s '; cut -d' ' -f1,2 %s.pub; } >known", hosts, key) == 0;
}

/* Why there can be no rig here, or NULL. */
ZT_UNUSED static const char *no_sshd(void)
{
    if (access("/usr/sbin/sshd", X_OK))
        return "no sshd (openssh-server) is installed";
    if (geteuid() != 0)
        return "not root";
    return NULL;
}

/* A script that stands for zerotrain on the other side. */
ZT_UNUSED static bool program(struct rig *r, const char *text)
{
    struct zt_err err;
    struct zt_str s = {0};
    zt_str_printf(&s, "#!/bin/sh\n%s\n", text);
    bool ok = zt_write_file_atomic(in(r, "program"), s.buf, s.len, &err) == 0 &&
              chmod(in(r, "program"), 0755) == 0;
    zt_str_release(&s);
    return ok;
}

ZT_UNUSED static bool setup(struct rig *r)
{
    memset(r, 0, sizeof *r);
    snprintf(r->dir, sizeof r->dir, "/tmp/zt-ssh2-XXXXXX");
    mkdir("/run/sshd", 0755); /* where sshd shuts itself in */
    unsetenv("SSH_AUTH_SOCK");
    return mkdtemp(r->dir) && chmod(r->dir, 0755) == 0 &&
           sh(r, "for k in host other key; do ssh-keygen -q -t ed25519 -N '' -C $k -f $k; done; "
                 "cat key.pub >authorized") == 0 &&
           program(r, "exec cat") && start_sshd(r, "host", "") && know(r, "127.0.0.1", "host");
}

ZT_UNUSED static void stop_hosts(struct rig *r)
{
    zt_ssh2_stop(r->ssh2);
    r->ssh2 = NULL;
    zt_turns_free(r->turns);
    r->turns = NULL;
    for (int i = 0; i < r->n; i++) {
        close(r->fd[i]);
        close(r->err_fd[i]);
    }
    r->n = 0;
}

ZT_UNUSED static void teardown(struct rig *r)
{
    stop_hosts(r);
    end_process(&r->sshd);
    end_process(&r->agent);
    if (!getenv("ZT_TEST_KEEP") && sh(r, "rm -rf %s", r->dir))
        printf("%s is left\n", r->dir);
    zt_arena_release(&r->arena);
}

/* Add a host that the next begin() starts; its configuration may be changed. */
ZT_UNUSED static struct zt_ssh_config *add_host(struct rig *r)
{
    struct zt_ssh_config *c = &r->config[r->n];
    const struct passwd *me = getpwuid(geteuid());
    *c = (struct zt_ssh_config){.hostname = "127.0.0.1",
                                .user = zt_arena_strdup(&r->arena, me ? me->pw_name : "root"),
                                .port = r->port};
    c->identity_files.v[c->identity_files.n++] = in(r, "key");
    c->user_known_hosts.v[c->user_known_hosts.n++] = in(r, "nosuch");
    c->user_known_hosts.v[c->user_known_hosts.n++] = in(r, "known");
    r->target[r->n] = (struct zt_ssh_target){.host = "node-a",
                                             .port = r->port,
                                             .program = in(r, "program"),
                                             .config = c,
                                             .keys = r->keys};
    r->n++;
    return c;
}

ZT_UNUSED static bool begin(struct rig *r)
{
    struct zt_ssh2_host hosts[MAX_HOSTS];
    struct zt_err err;
    r->turns = zt_turns_create(r->n);
    for (int i = 0; i < r->n; i++) {
        int sock[2], errs[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) || pipe2(errs, O_CLOEXEC))
            return false;
        r->fd[i] = sock[0];
        r->err_fd[i] = errs[0];
        zt_turn_init(&r->turn[i], r->turns, &r->target[i]);
        hosts[i] = (struct zt_ssh2_host){&r->target[i], &r->turn[i], sock[1], errs[1]};
    }
    return zt_ssh2_start(hosts, r->n, &r->ssh2, &err) == 0;
}

/* Wait for what becomes of host i. */
ZT_UNUSED static bool ends(struct rig *r, int i, struct zt_ssh2_outcome *out)
{
    struct pollfd p = {.fd = zt_ssh2_fd(r->ssh2), .events = POLLIN};
    memset(out, 0, sizeof *out);
    for (int64_t end = zt_now_ns() + WAIT_S * (int64_t)1000000000; zt_now_ns() < end;) {
        zt_ssh2_clear(r->ssh2);
        if (zt_ssh2_take(r->ssh2, i, out))
            return true;
        poll(&p, 1, 100);
    }
    return false;
}

/* The host does with "hello" what `cat` does. */
ZT_UNUSED static bool echoes(const struct rig *r, int i)
{
    char text[8] = "";
    struct pollfd p = {.fd = r->fd[i], .events = POLLIN};
    return send(r->fd[i], "hello", 5, MSG_NOSIGNAL) == 5 && poll(&p, 1, WAIT_S * 1000) == 1 &&
           read(r->fd[i], text, sizeof text) == 5 && memcmp(text, "hello", 5) == 0;
}

/* All that comes up on a descriptor until its end; at most a buffer. */
ZT_UNUSED static const char *drain(int fd, char *buf, size_t size)
{
    size_t n = 0;
    ssize_t k;
    while (n < size - 1 && (k = read(fd, buf + n, size - 1 - n)) > 0)
        n += (size_t)k;
    buf[n] = '\0';
    return buf;
}

#define RIG(r)                                                                                     \
    if (no_sshd())                                                                                 \
        SKIP("%s", no_sshd());                                                                     \
    CHECK(setup(r))

/* One host, as it is configured, ends like this. */
#define CHECK_ENDS(r, cause_, words)                                                               \
    do {                                                                                           \
        struct zt_ssh2_outcome o_;                                                                 \
        CHECK(begin(r));                                                                           \
        CHECK(ends(r, 0, &o_));                                                                    \
        stop_hosts(r);                                                                             \
        if (o_.needs_client || o_.end.cause != (cause_) || !strstr(o_.end.text, words))            \
            FAIL("it ended with %d%s: %s", o_.end.cause, o_.needs_client ? " (client)" : "",       \
                 o_.end.text);                                                                     \
    } while (0)

#define CHECK_NEEDS_CLIENT(r, words)                                                               \
    do {                                                                                           \
        struct zt_ssh2_outcome o_;                                                                 \
        CHECK(begin(r));                                                                           \
        CHECK(ends(r, 0, &o_));                                                                    \
        stop_hosts(r);                                                                             \
        if (!o_.needs_client || !strstr(o_.end.text, words))                                       \
            FAIL("it ended with %d: %s", o_.end.cause, o_.end.text);                               \
    } while (0)

#define CHECK_LETS_IN(r)                                                                           \
    do {                                                                                           \
        CHECK(begin(r));                                                                           \
        for (int i_ = 0; i_ < (r)->n; i_++)                                                        \
            if (!echoes(r, i_)) {                                                                  \
                struct zt_ssh2_outcome o_ = {0};                                                   \
                zt_ssh2_take((r)->ssh2, i_, &o_);                                                  \
                FAIL("host %d does not answer: %d%s: %s", i_, o_.end.cause,                        \
                     o_.needs_client ? " (client)" : "", o_.end.text);                             \
            }                                                                                      \
        stop_hosts(r);                                                                             \
    } while (0)

#endif
