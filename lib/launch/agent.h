/*
 * agent.h: inside of the node agent (private to lib/launch). One thread and one poll loop:
 *
 *     agent.c          the front end's frames, signals, and the loop
 *     agent_workers.c  the workers: how they start, what they say, how they end
 */
#ifndef ZT_LAUNCH_AGENT_H
#define ZT_LAUNCH_AGENT_H

#include "launch/link.h"
#include "launch/spawn.h"

struct agent {
    struct zt_link front;
    int sig_fd;
    bool greeted;
    struct zt_env env;
    struct zt_job job;
    bool has_job, started;
    int64_t claims_ns;     /* since when an earlier attempt of it is waited for; 0: it is not */
    struct zt_proc *procs; /* (job.n_workers); the first n_procs were started */
    int n_procs, n_alive;
    int shm_control_fd;
    int *arena_fds; /* (job.n_workers); NULL: no shared memory */
    int64_t oom_before;
    int64_t silence_ns;
    bool paused;
    bool held;  /* the front end's reader is slow: the workers wait */
    bool joins; /* it came to the front end by itself, which may need it later, or not at all */
    bool aside; /* we and our workers ignore signals (zt_spawn_agent()) */
    enum zt_stop stop;
    int64_t stop_ns; /* since when `stop` is what it is */
    int64_t idle_ns; /* since when no worker lives */
    int end_signal;
    bool asked; /* the front end was told of a signal */
    bool finished;
    int rc;
};

/* ---- agent_workers.c ---- */

/* Start the workers, unless those of an earlier attempt are still there: then zt_agent_advance() comes back to it. */
void zt_agent_begin(struct agent *a);

/* Read a worker's output, or its socket, once. Returns whether there may be more. */
bool zt_agent_read_log(struct agent *a, struct zt_proc *p, enum zt_log_stream stream);
bool zt_agent_read_reports(struct agent *a, struct zt_proc *p);

void zt_agent_signal(struct agent *a, int sig); /* all workers, and what they have started */

/* How hard they are told to end; the level only rises. */
void zt_agent_stop(struct agent *a, enum zt_stop level);

/* What time and deaths bring about, up to the END frame. */
void zt_agent_advance(struct agent *a, int64_t now_ns);

#endif
