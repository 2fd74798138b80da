/* spawn.h: one worker process: its environment, pipes, and how it is started. Used by the agent. */
#ifndef ZT_LAUNCH_SPAWN_H
#define ZT_LAUNCH_SPAWN_H

#include <sys/types.h>

#include "launch/env.h"
#include "launch/launch.h"
#include "launch/lines.h"
#include "launch/link.h"

enum { ZT_JOB_THREADS_MAX = 4096 };

/* The nodes of a job; ranks of a node are one after the other. */
struct zt_nodes {
    int node, n;   /* this one, of how many; n 0: one */
    int *first;    /* (n + 1) rank of each node; the last: the world */
    char *towards; /* what this node calls another one; "" when there is none */
};

/* A part of JOB and TASK frames. world: what the frame said of it; what cannot be sets c->bad. */
void zt_nodes_put(const struct zt_nodes *nodes, int world, struct zt_str *out);
void zt_nodes_get(struct zt_nodes *nodes, uint32_t world, struct zt_cursor *c);

/* What all workers of this agent have in common. */
struct zt_job {
    int n_workers, first_rank, world, threads;
    bool own; /* workers are ours: they get a socket and shared memory */
    struct zt_worker_device device;
    struct zt_nodes nodes;
    int64_t grace_ns, silence_ns;
    uint8_t secret[32];
    char *recipe;
    size_t recipe_len;
    char *dir;      /* to work in; "": where the agent is */
    char *command;  /* of this binary, of workers of ours; "": `worker` */
    char *claim;    /* name that one attempt at a time has on this host; "": there is only one */
    char **argv;    /* NULL-terminated; NULL when own */
    char **devices; /* (n_workers), or NULL */
    struct zt_str *cpus; /* (n_workers) affinity masks, or NULL: as the agent's */
};

/* Read the payload of ZT_FRAME_JOB. */
int zt_job_get(struct zt_job *job, const struct zt_frame *f, struct zt_err *err) ZT_MUST_CHECK;
void zt_job_put(const struct zt_job *job, struct zt_str *out);
void zt_job_release(struct zt_job *job);

/* A part of JOB and TASK frames; what cannot be sets c->bad. */
void zt_device_put(const struct zt_worker_device *d, struct zt_str *out);
void zt_device_get(struct zt_worker_device *d, struct zt_cursor *c);

/*
 * Take this name on this host, for us and all processes that we start from here on, as long as any of them
 * lives. false: some of another process have it.
 */
bool zt_claim(const char *text) ZT_MUST_CHECK;

struct zt_proc {
    int rank;
    pid_t pid;     /* 0 once reaped */
    int log_fd[2]; /* read ends of its stdout and stderr; -1 once ended */
    struct zt_lines lines[2];
    struct zt_link link; /* to a worker of ours */
    bool gathers;        /* it waits for what all ranks give */
};

/*
 * Start worker `local` with the environment `base` and its own variables. Call it on the main thread
 * of a process that has one thread: PDEATHSIG follows the thread that forks.
 */
int zt_proc_start(struct zt_proc *p, const struct zt_job *job, int local, const struct zt_env *base,
                  struct zt_err *err) ZT_MUST_CHECK;
void zt_proc_release(struct zt_proc *p);

#endif
