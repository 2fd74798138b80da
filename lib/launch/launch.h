/*
 * launch.h: from one command to many workers, and back to one exit code.
 *
 *     front end  --frames over a pipe pair-->  node agent  --fork/exec-->  workers
 *
 * The front end starts one agent per node: here by fork/exec, later over SSH; to it an agent is two
 * descriptors. Frames (proto.h) are versioned and bounded. Down: HELLO, ENV, JOB, GO, STOP, heartbeats.
 * Up: HELLO, LOG (lines of a worker's stdout/stderr), REPORT (a worker's own messages), EXIT, END.
 * Nothing is on a command line, nothing listens.
 *
 * Endings. A worker dies: the agent aborts the shared-memory collectives, reports, and the front end
 * stops every other one within 5 s. The front end dies (EOF, or no heartbeat for 15 s): the agent ends
 * its workers and itself. The agent dies: its workers get PDEATHSIG. Ctrl-C once asks workers to stop
 * at the next step, twice ends them.
 */
#ifndef ZT_LAUNCH_LAUNCH_H
#define ZT_LAUNCH_LAUNCH_H

#include "base/err.h"
#include "base/str.h"

enum zt_log_stream { ZT_LOG_STDOUT, ZT_LOG_STDERR };

/* Called in the front end, in the order things arrived. */
struct zt_launch_sink {
    void *ctx;
    void (*line)(void *ctx, int rank, enum zt_log_stream s, const char *line, size_t len);
    void (*report)(void *ctx, int rank, const char *json, size_t len); /* from zt_worker_report() */
    void (*notice)(void *ctx, const char *text); /* "stopping: rank 1 ..." */
    void (*tick)(void *ctx);                     /* a few times a second */
};

struct zt_launch_opts {
    int n_workers;                 /* on this host */
    const char *const *program;    /* argv of a worker; NULL: this binary's `worker` */
    const char *const *env;        /* "NAME=value", split at the first '='; n_env of them */
    int n_env;
    const char *recipe; /* the resolved recipe, handed to every worker */
    size_t recipe_len;
    const char *const *devices; /* (n_workers) CUDA_VISIBLE_DEVICES entry of each, or NULL: CPU */
    int threads;                /* OpenMP threads of a worker */
    double grace_s;             /* between SIGTERM and SIGKILL; 0: 3 s */
    struct zt_launch_sink sink;
};

struct zt_launch_result {
    int exit_code;     /* the first failure's: its code, or 128 + signal; 0 when all ended well */
    int first_rank;    /* -1: none failed */
    char host[256];
    int term_signal;   /* 0: exited */
    char summary[8192]; /* what a person reads: rank, host, cause, its last lines */
};

/* Run a job to its end. Blocks. Handles SIGINT, SIGTERM, SIGHUP, SIGCHLD while it runs. */
int zt_launch_run(const struct zt_launch_opts *opts, struct zt_launch_result *result,
                  struct zt_err *err) ZT_MUST_CHECK;

/* The agent: `zerotrain agent`, frames on stdin/stdout. Returns the exit code. */
int zt_agent_main(void);

/*
 * The worker's side. The agent starts it with RANK, LOCAL_RANK, WORLD_SIZE in the environment (as
 * torchrun and DeepSpeed do) and ZT_JOB_FD, a socket to the agent.
 */
struct zt_worker {
    int rank, world, local_rank, threads;
    int job_fd;
    int shm_control_fd;
    int *shm_arena_fds; /* (world) */
    char *recipe;
    size_t recipe_len;
    uint8_t secret[32]; /* of the job; never logged */
};

int zt_worker_join(struct zt_worker *w, struct zt_err *err) ZT_MUST_CHECK;
int zt_worker_report(struct zt_worker *w, const char *json, size_t len,
                     struct zt_err *err) ZT_MUST_CHECK;
bool zt_worker_stop_requested(const struct zt_worker *w); /* Ctrl-C: finish this step and end */
void zt_worker_release(struct zt_worker *w);

/*
 * Which devices a run on this host uses (CASES L06). visible: CUDA_VISIBLE_DEVICES or NULL; n_present
 * devices exist; n_wanted <= 0 means all. out[i] are entries to hand to worker i, in `arena`-less
 * static storage of *buf. An empty `visible` means none.
 */
int zt_pick_devices(const char *visible, int n_present, int n_wanted, struct zt_str *buf,
                    const char **out, int max_out, int *n_out, struct zt_err *err) ZT_MUST_CHECK;

#endif
