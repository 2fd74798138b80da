#include "launch/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

void zt_ending_signals(sigset_t *set)
{
    struct sigaction hup;
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGUSR1);
    sigaddset(set, SIGPIPE);
    /*
     * Ignored hang-ups mean nohup. An ignored SIGINT means less: every shell script ignores it for
     * its background jobs, and who sends it then means us.
     */
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN)
        sigaddset(set, SIGHUP);
}

int zt_await_ending_signal(double wait_s)
{
    const int64_t end_ns = zt_now_ns() + (int64_t)(wait_s * 1e9);
    int64_t left_ns;
    sigset_t set;
    zt_ending_signals(&set);
    do {
        left_ns = ZT_MAX(end_ns - zt_now_ns(), 0);
        const struct timespec t = {left_ns / 1000000000, left_ns % 1000000000};
        const int sig = sigtimedwait(&set, NULL, &t);
        if (sig > 0)
            return sig;
    } while (left_ns > 0);
    return 0;
}

bool zt_ending_signal_came(void)
{
    sigset_t ending, came;
    zt_ending_signals(&ending);
    sigpending(&came);
    sigandset(&came, &came, &ending);
    return !sigisemptyset(&came);
}

void zt_forget_ending_signals(void)
{
    while (zt_await_ending_signal(0))
        ;
}

int zt_supervisor_init(struct zt_supervisor *s, struct zt_err *err)
{
    static const int others[] = {SIGCHLD, SIGTSTP};
    sigset_t mask;
    zt_ending_signals(&mask);
    for (size_t i = 0; i < ZT_ARRAY_LEN(others); i++)
        sigaddset(&mask, others[i]);
    s->sig_fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->sig_fd < 0)
        return zt_err_errno(err, ZT_ESYS, "signalfd");
    zt_tree_children(&s->children);
    prctl(PR_GET_CHILD_SUBREAPER, &s->subreaper);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pthread_sigmask(SIG_BLOCK, &mask, &s->mask);
    return 0;
}

void zt_supervisor_release(struct zt_supervisor *s)
{
    struct signalfd_siginfo si;
    if (s->sig_fd < 0)
        return;
    /* Already on our way out; but who had blocked them before wants to see them. */
    while (!sigismember(&s->mask, SIGTERM) && read(s->sig_fd, &si, sizeof si) == sizeof si)
        ;
    pthread_sigmask(SIG_SETMASK, &s->mask, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, s->subreaper);
    zt_pids_release(&s->children);
    close(s->sig_fd);
}

void zt_supervisor_sweep(const struct zt_supervisor *s)
{
    int64_t give_up_ns = zt_now_ns() + 5 * (int64_t)1000000000;
    for (int n = 1; n > 0 && zt_now_ns() < give_up_ns;) {
        struct zt_pids now = {0};
        n = zt_tree_kill(&s->children);
        zt_tree_children(&now);
        for (size_t i = 0; i < now.n; i++) {
            bool ours = true;
            for (size_t j = 0; j < s->children.n; j++)
                ours = ours && now.v[i] != s->children.v[j];
            if (ours)
                waitpid(now.v[i], NULL, WNOHANG);
        }
        zt_pids_release(&now);
        if (n > 0)
            poll(NULL, 0, 20);
    }
}

/* Whom launchers may signal; blocked in the caller, so that none is lost while they are ignored. */
static const int aside_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};

static int spawn_ignoring(pid_t *pid, const posix_spawn_file_actions_t *fds,
                          const posix_spawnattr_t *attr, char *const *argv)
{
    enum { N = ZT_ARRAY_LEN(aside_signals) };
    struct sigaction before[N], ignore = {.sa_handler = SIG_IGN};
    for (size_t i = 0; i < N; i++)
        sigaction(aside_signals[i], &ignore, &before[i]);
    int rc = posix_spawn(pid, "/proc/self/exe", fds, attr, argv, environ);
    for (size_t i = 0; i < N; i++)
        sigaction(aside_signals[i], &before[i], NULL);
    return rc;
}

int zt_spawn_agent(pid_t *pid, const char *const *command, int sock, int err_fd, bool aside)
{
    static char name[] = "zerotrain", cmd[] = "agent";
    char *const ours[] = {name, cmd, NULL};
    char *const *argv = command ? (char *const *)command : ours;
    posix_spawn_file_actions_t fds;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    if (posix_spawn_file_actions_init(&fds))
        return ENOMEM;
    int rc = posix_spawnattr_init(&attr);
    if (rc)
        goto out;
    /* A session of its own: Ctrl-C must reach the front end alone, and ssh has no terminal to ask on. */
    if ((rc = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID)) == 0 &&
        (rc = posix_spawnattr_setsigmask(&attr, &none)) == 0 &&
        (rc = posix_spawn_file_actions_adddup2(&fds, sock, STDIN_FILENO)) == 0 &&
        (rc = posix_spawn_file_actions_adddup2(&fds, sock, STDOUT_FILENO)) == 0 &&
        (rc = posix_spawn_file_actions_adddup2(&fds, err_fd, STDERR_FILENO)) == 0)
        rc = aside ? spawn_ignoring(pid, &fds, &attr, argv)
                   : posix_spawnp(pid, command ? command[0] : "/proc/self/exe", &fds, &attr, argv,
                                  environ);
    posix_spawnattr_destroy(&attr);
out:
    posix_spawn_file_actions_destroy(&fds);
    return rc;
}
