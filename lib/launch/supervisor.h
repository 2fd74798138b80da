/*
 * supervisor.h: what the front end changes in its process while a job runs, and puts back: signals
 * come through a descriptor, and orphans hang below it.
 */
#ifndef ZT_LAUNCH_SUPERVISOR_H
#define ZT_LAUNCH_SUPERVISOR_H

#include <signal.h>

#include "base/err.h"
#include "launch/proctree.h"

struct zt_supervisor {
    int sig_fd; /* a signalfd, non-blocking; -1: nothing was changed */
    sigset_t mask;
    int subreaper;
    struct zt_pids children; /* those of before, which are none of our business */
};

int zt_supervisor_init(struct zt_supervisor *s, struct zt_err *err) ZT_MUST_CHECK;
void zt_supervisor_release(struct zt_supervisor *s);

/*
 * The signals that tell a front end to end: SIGINT, SIGTERM, SIGUSR1, SIGPIPE by its own output, and SIGHUP unless it is
 * ignored (nohup).
 */
void zt_ending_signals(sigset_t *set);

/* They are blocked. Wait; 0, or the signal that came instead, or had come before. */
int zt_await_ending_signal(double wait_s);

/* One of them is blocked and has come; it stays for whoever asks for it. */
bool zt_ending_signal_came(void);

/* Those of them that are blocked and have come are forgotten: for who ends anyway, and unblocks them then. */
void zt_forget_ending_signals(void);

/*
 * After an agent that died before it could end its workers: they died with it, but not what they had
 * started; that hangs below us now and is killed.
 */
void zt_supervisor_sweep(const struct zt_supervisor *s);

/*
 * Start an agent with `sock` as stdin and stdout: this program as `agent`, or a command (argv, found by PATH)
 * that brings one up. aside: it and its workers ignore what launchers send to all processes (SIGTERM, SIGUSR1, ...):
 * the front end heeds that. 0, or an errno value.
 */
int zt_spawn_agent(pid_t *pid, const char *const *command, int sock, int err_fd, bool aside);

#endif
