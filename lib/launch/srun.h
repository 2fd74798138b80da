/*
 * srun.h: one process on each host of a Slurm allocation, by one srun; they join the job (rendezvous.h) and start
 * its agents. srun mixes what its tasks say, so frames go over connections of their own; through srun there goes
 * only, on its stdin and so to all tasks, a ticket: where the front end listens, and the job's secret. That is on no
 * command line, in no environment and in no file; but it crosses the network in Slurm's own connections, which are
 * encrypted only where Slurm is told to (TLSType). Where ZT_JOB_SECRET_FILE is set the ticket has half of the secret,
 * the other half is that file, and who reads the network knows nothing. What srun itself says on stderr is passed on.
 */
#ifndef ZT_LAUNCH_SRUN_H
#define ZT_LAUNCH_SRUN_H

#include <sys/types.h>

#include "base/arena.h"
#include "launch/rendezvous.h"

/* What has become of a host's task. */
enum zt_srun_host {
    ZT_SRUN_AWAITED,
    ZT_SRUN_FAILED, /* srun says that it could not start it, or that it ended; or it came, and was gone again */
    ZT_SRUN_CAME,
    ZT_SRUN_SPARED, /* awaited when the start failed because of another one */
    ZT_SRUN_N_HOST,
};

struct zt_srun {
    pid_t pid; /* 0: ended */
    int status;
    int sock, err_fd; /* its stdin and stdout, its stderr; -1: closed */
    struct zt_lines lines;
    char why[256];            /* of its stderr: the first error, or else the last line */
    const char *const *hosts; /* while it starts; then NULL */
    int n_hosts;
    bool aborts; /* it ends all, as one has failed */
    enum zt_srun_host *state;
    void (*say)(void *ctx, const char *line, size_t len);
    void *ctx;
};

/*
 * argv of srun, NULL-terminated, in the arena: a task on each of the hosts, which are of the allocation that we
 * are in. Of our environment the tasks get what a login would give them; the rest travels in frames.
 */
const char *const *zt_srun_argv(const char *program, const char *const *hosts, int n_hosts,
                                struct zt_arena *arena);

/*
 * Listen where the route to `towards` starts, under a new secret, start srun, and wait until all hosts are there (r->v, by the task's
 * number), or cannot all come. state[n_hosts]: what has become of each. s is zeroed but for say, which gets what srun
 * says on stderr, from now on. What tells a front end to end ends it: ZT_EPEER, and *sig is the signal; it may also be one
 * that came while what had failed was put away. On failure nothing is left.
 */
int zt_srun_start(struct zt_srun *s, const char *program, const char *const *hosts, int n_hosts,
                  const char *towards, double limit_s, struct zt_rendezvous *r,
                  enum zt_srun_host *state, int *sig, struct zt_err *err) ZT_MUST_CHECK;

/* Pass on what srun has said; does not block. */
void zt_srun_read(struct zt_srun *s);

/*
 * After the processes were told to leave: srun ends with them, or is killed; soon where some are lost, which it would
 * wait for. Accepts a zeroed one.
 */
void zt_srun_end(struct zt_srun *s, bool some_lost);

/*
 * The task's side: the ticket of stdin, with the file of ZT_JOB_SECRET_FILE where that is set, and what srun says of this
 * task; *host: its name for us.
 */
int zt_srun_read_ticket(int fd, struct zt_meeting *out, const char **host,
                        struct zt_err *err) ZT_MUST_CHECK;

#endif
