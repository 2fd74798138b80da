/*
 * launch.h: from one command to many workers, and back to one exit code.
 *
 *     front end  --frames over a socket or ssh-->   node agent  --fork/exec-->  workers
 *
 * The front end starts one agent per node: here by fork/exec, elsewhere by libssh2 or the ssh client; to it
 * an agent is two descriptors. Frames (proto.h) are versioned and bounded. Down: HELLO, ENV, JOB (starts the workers),
 * STOP, HOLD, PAUSE, RESUME, CLOCK, heartbeats. Up: HELLO, LOG (lines of a worker's stdout/stderr), REPORT (a
 * worker's own messages), APART (whom it does not reach), NOTICE, EXIT, END. Up and down again: GATHER (what each rank
 * gives to all). Nothing is on a command line, nothing listens. Agents of another build are refused.
 *
 * Endings. A worker dies: the agent aborts the shared-memory collectives, reports, and the front end
 * stops every other one within 5 s. The front end dies (EOF, or no heartbeat for 15 s): the agent ends
 * its workers and itself. The agent dies: its workers get PDEATHSIG, and the front end ends whatever
 * they had started. Ctrl-C once asks workers to stop at the next step, twice ends them (SIGTERM, and
 * SIGKILL after the grace), three times ends them at once. SIGTERM ends them, or with preempted_code is
 * like Ctrl-C. Ctrl-Z suspends the whole job.
 *
 * A worker that ends because a peer was lost (ZT_EPEER) exits with ZT_EXIT_PEER_LOST, so that it is
 * not taken for the first failure. Where no rank has one of its own, those that do not reach each other's hosts
 * have said so (zt_worker_apart()), and these pairs are the cause.
 *
 * Files: front*.c (front end; front.h says how they hang together) and supervisor.c; openssh.c, ssh_config.c, turns.c, and
 * ssh2.h with what it names (ways to other hosts); agent*.c and spawn.c (agent), worker.c (a worker's side), blame.c (which
 * death came first), apart.c (hosts that do not reach each other), rendezvous*.c, detect.c and srun.c (processes that
 * another launcher has started), over link.c (frames on descriptors), proto.c, lines.c, env.c, ranklog.c, proctree.c.
 */
#ifndef ZT_LAUNCH_LAUNCH_H
#define ZT_LAUNCH_LAUNCH_H

#include <pthread.h>

#include "base/err.h"
#include "base/str.h"
#include "launch/openssh.h"

enum {
    ZT_EXIT_PEER_LOST = 75,      /* a worker's exit code: some other rank failed */
    ZT_LAUNCH_MAX_WORKERS = 256, /* on one host; our own workers at most ZT_SHM_MAX_RANKS */
    ZT_LAUNCH_MAX_NODES = 1024,
    ZT_RECIPE_MAX_BYTES = 4 << 20, /* of opts->recipe */
    ZT_REPORT_MAX_BYTES = 1 << 20, /* of one report */
    ZT_SHARE_MAX_BYTES = 4096,     /* of what a rank gives to all at once */
    ZT_UNREAD_MAX = 1 << 20,       /* bytes for a sink whose reader is slow, before workers wait */
};

/* Collectives between GPUs, as asked for; between CPU workers there is one kind. */
enum zt_transport { ZT_TRANSPORT_AUTO, ZT_TRANSPORT_NCCL, ZT_TRANSPORT_STAGED, ZT_N_TRANSPORTS };

/* What our own workers compute on. The launcher only hands it on. */
struct zt_worker_device {
    bool gpu;          /* the only one that CUDA_VISIBLE_DEVICES shows to a worker; else the CPU */
    int ranks_per_gpu; /* more than 1: testing */
    enum zt_transport transport;
};

enum zt_log_stream { ZT_LOG_STDOUT, ZT_LOG_STDERR };

/* What is heard of a node that is for itself. */
struct zt_node_news {
    enum zt_node_event {
        ZT_NODE_ANSWERED, /* text: its build, as zt_build_name() */
        ZT_NODE_CLOCK,    /* a better measurement of its clock */
        ZT_NODE_FAILED, /* text: why it did not start, or how its agent or a worker ended; the last */
    } event;
    const char *text;      /* else "" */
    int64_t ahead_ns;      /* its wall clock before ours, give or take half of round_trip_ns */
    int64_t round_trip_ns; /* of a frame and its answer */
};

/*
 * Called in the front end, in the order things arrived, on the thread of zt_launch_run(). line,
 * report and notice are required; the others may be NULL.
 */
struct zt_launch_sink {
    void *ctx;
    void (*line)(void *ctx, int rank, enum zt_log_stream s, const char *line, size_t len);
    void (*report)(void *ctx, int rank, const char *json, size_t len); /* from zt_worker_report() */
    void (*notice)(void *ctx, const char *text);                       /* "stopping: rank 1 ..." */
    void (*tick)(void *ctx);                                           /* a few times a second */
    /*
     * With it each node is for itself: one that fails is told here, and the others go on; the job is then
     * not a failure. Workers of such a job must not wait for those of other nodes.
     */
    void (*node)(void *ctx, int node, const struct zt_node_news *news);
    /*
     * Write what the calls above have buffered, without blocking. Returns -1 when all is out, else
     * the descriptor it waits for. While it waits, agents are told to take no more from workers once it
     * has got ZT_UNREAD_MAX bytes, and go on with all else: deaths, heartbeats and signals. So output
     * into a stopped terminal or a slow pipe holds the workers up and does not end them, and keeps none
     * from being ended; at each level of an ending it gets as much again. Workers that are to end after
     * their step are not held up. A sink that blocks for 15 s loses the job.
     */
    int (*flush)(void *ctx);
};

/* A node of a job: an agent of its own, and ranks numbered node by node. */
struct zt_launch_node {
    int n_workers;
    const struct zt_ssh_target *ssh; /* how its agent is started; NULL: on this host, */
    struct zt_party *party;          /* or by a process that has joined (rendezvous.h) */
    /* Name or IP address by which other nodes reach it, for data between workers; not for one node. */
    const char *address;
};

struct zt_launch_opts {
    int n_workers;                      /* of all nodes */
    int n_nodes;                        /* 0: one, this host */
    const struct zt_launch_node *nodes; /* (n_nodes) */
    /*
     * Of the job, of printable characters, another for each: an attempt of it begins on a host only when no process of
     * an earlier one is left there. NULL: it has one attempt.
     */
    const char *name;
    const char *dir; /* that workers on other hosts work in; NULL: where a login puts them */
    const char *const *program; /* argv of a worker; NULL: this binary's `worker` */
    const char *own_command;    /* another command of this binary in its place; NULL: `worker` */
    const char *const *env;     /* "NAME=value", split at the first '='; n_env of them (env.h) */
    int n_env;
    const char *recipe; /* the resolved recipe, handed to every worker */
    size_t recipe_len;
    const char *const *devices; /* (n_workers) CUDA_VISIBLE_DEVICES entry of each, or NULL: as is */
    struct zt_worker_device device; /* zeroed: CPU */
    struct zt_rendezvous *joined;   /* processes that stand for the ranks; NULL: none */
    struct zt_srun *srun;           /* that has started those (srun.h); NULL: not ours */
    struct zt_str *cpus;            /* (n_workers) affinity mask of each; NULL: as it comes */
    int threads; /* OpenMP threads of a worker; 0: leave OMP_NUM_THREADS as it is */
    int preempted_code; /* not 0: SIGTERM, SIGUSR1 or SIGHUP is pre-emption: workers end after their step, as at
                           Ctrl-C, and this is the exit code when all of them have ended well */
    double grace_s;           /* between SIGTERM and SIGKILL; 0: 3 s */
    double silence_s;         /* after which a silent front end or agent is dead; 0: 15 s */
    double start_s;           /* within which an agent must answer that could have; 0: 60 s */
    const char *rank_log_dir; /* also write each rank's lines to DIR/rank-N.log; NULL: no */
    bool rank_log_append;     /* to what is in these files; else they are emptied */
    struct zt_launch_sink sink;
};

/* What a node had to do with the end of a job. */
enum zt_node_end {
    ZT_NODE_NOTHING, /* it ended as it was told to, or well */
    ZT_NODE_RANK,    /* a rank there was the first to fail */
    ZT_NODE_MEMORY,  /* the same, by the kernel's out-of-memory killer */
    ZT_NODE_LOST,    /* its agent, or the connection to it */
    ZT_NODE_APART,   /* others and it cannot reach each other; without it those that are left can */
    ZT_NODE_NO_START, /* its agent did not come up, or could not start its ranks */
};

struct zt_launch_result {
    int exit_code;  /* the first failure's: its code, or 128 + signal; 0 when all ended well. When
                       none failed but we were stopped by a signal: 128 + that */
    int first_rank; /* -1: no rank failed by itself */
    char host[256];
    int term_signal; /* 0: exited */
    /* Also where the job could not be started: */
    int told;     /* the last signal by which a person or a batch system told us to end; 0: none */
    bool started; /* an agent answered on every node, and started its ranks */
    unsigned char node_end[ZT_LAUNCH_MAX_NODES]; /* enum zt_node_end of each node */
    char summary[8192]; /* what a person reads: rank, host, cause, its last lines; "" when all ended
                           well. No newline at the end */
};

/*
 * Run a job to its end. Blocks; one at a time in a process. 0: it was started and has ended, well or
 * not, see *result. Negative: it could not be started. Nothing is left running either way.
 *
 * While it runs, SIGINT, SIGTERM, SIGUSR1, SIGHUP (unless ignored, as under nohup), SIGPIPE (the reader of our
 * output is gone), SIGTSTP and SIGCHLD are blocked on the calling thread and handled here (any other
 * thread must block them too), and the process is a subreaper: children that it had before are left
 * alone, new ones must come from nowhere else. SIGCHLD is not ignored (main.c).
 */
int zt_launch_run(const struct zt_launch_opts *opts, struct zt_launch_result *result,
                  struct zt_err *err) ZT_MUST_CHECK;

/*
 * The agent: `zerotrain agent`, frames on stdin/stdout; or, where it joins, over a connection that it makes by
 * the ticket on stdin (rendezvous.h). Returns the exit code of the process: 0 when the job ran to its end, however that
 * was. On failure err->msg says why; the front end has been told when it could be.
 */
int zt_agent_main(bool joins, struct zt_err *err);

struct zt_link;

/*
 * The worker's side. The agent starts it with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE in the
 * environment (as torchrun and DeepSpeed do; MASTER_ADDR and MASTER_PORT too: rank 0's host and their usual
 * port, for who asks; ours do not listen there) and ZT_JOB_FD, a socket to the agent. One thread at a
 * time. When the agent dies, the kernel kills the worker.
 */
struct zt_worker {
    int rank, world, local_rank, threads;
    int shm_control_fd; /* these and n_arenas: the zt_shm_job of coll.h */
    int *shm_arena_fds; /* (n_arenas), one of every worker on this host */
    int n_arenas;
    struct zt_worker_device device;
    char *recipe; /* NUL-terminated */
    size_t recipe_len;
    uint8_t secret[32];   /* of the job; never logged */
    struct zt_link *link; /* to the agent */
    pthread_mutex_t lock; /* of its descriptors and what is to be sent */
    bool stop;
    int node, n_nodes;
    int *node_first; /* (n_nodes + 1) rank of each node; the last: the world */
    char *towards;   /* another node, as a name or address that this one reaches; "": none */
    bool gathers;    /* inside of zt_worker_gather() */
    struct zt_str *gathered; /* by it */
};

/* Blocks until the agent has said what to do. */
int zt_worker_join(struct zt_worker *w, struct zt_err *err) ZT_MUST_CHECK;

/* Blocks while the front end is slow to read. len <= ZT_REPORT_MAX_BYTES. ZT_EPEER: agent gone. */
int zt_worker_report(struct zt_worker *w, const char *json, size_t len,
                     struct zt_err *err) ZT_MUST_CHECK;

/*
 * Every rank gives n bytes; all ranks get (world, n) of them, in the order of the ranks. By all ranks, with the
 * same n <= ZT_SHARE_MAX_BYTES. Blocks until all are there. They travel as the secret does: through agents
 * and front end, never in a file, a log or on a command line. ZT_EPEER: the agent is gone.
 */
int zt_worker_gather(struct zt_worker *w, const void *mine, size_t n, void *all,
                     struct zt_err *err) ZT_MUST_CHECK;

/* The same, of rank 0 alone: it gives n bytes at `bytes`; all ranks (it too) get them there. */
int zt_worker_share(struct zt_worker *w, void *bytes, size_t n, struct zt_err *err) ZT_MUST_CHECK;

/*
 * This rank reaches none of that node. By any thread, also while another is in a call of these. Does not block: what
 * cannot be sent now goes with what is sent next.
 */
void zt_worker_apart(struct zt_worker *w, int node);

/* Ctrl-C, or the agent is gone: finish this step and end. Does not block; stays true. */
bool zt_worker_stop_requested(struct zt_worker *w);

void zt_worker_release(struct zt_worker *w); /* closes the descriptors; accepts a zeroed one */

/*
 * Which devices a run on this host uses (CASES L06). visible: CUDA_VISIBLE_DEVICES or NULL; n_present
 * devices exist (-1: unknown); n_wanted <= 0 means all. out[0..*n_out) are its entries, each of which shows a
 * process one device, in the order of `visible` ("2,0": rank 0 gets device 2, rank 1 device 0); they
 * point into *buf. An empty `visible`, or "-1", means none: *n_out is 0, never all. Names ("GPU-...",
 * "MIG-...", or their beginnings) pass unchanged. Indices hold until a device is gone, and CUDA counts
 * the others anew: who remembers devices asks CUDA for their UUIDs.
 */
int zt_pick_devices(const char *visible, int n_present, int n_wanted, struct zt_str *buf,
                    const char **out, int max_out, int *n_out, struct zt_err *err) ZT_MUST_CHECK;

/* How many CUDA devices this host (or container) has, by its device nodes; no driver is touched. */
int zt_count_devices(void);

#endif
