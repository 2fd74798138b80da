/*
 * cmd.h: the subcommands. One file each; only cmd/ prints and exits.
 */
#ifndef ZT_CMD_CMD_H
#define ZT_CMD_CMD_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "base/version.h"
#include "hosts/hosts.h"
#include "launch/launch.h"
#include "recipe/recipe.h"

/*
 * Exit codes, as numbered in zerotrain(1); 128 + N stands for death by signal N. ZT_EXIT_PEER_LOST
 * (launch/launch.h) is one of them.
 */
enum zt_exit {
    ZT_EXIT_OK = 0,
    ZT_EXIT_FAILURE = 1,     /* anything not listed */
    ZT_EXIT_USAGE = 2,       /* the command line is wrong */
    ZT_EXIT_INPUT = 3,       /* recipe, data or weights are wrong */
    ZT_EXIT_UNSUPPORTED = 4, /* understood, but not carried out */
    ZT_EXIT_MEMORY = 5,      /* it does not fit */
    ZT_EXIT_NUMERIC = 6,     /* the loss or the gradient became non-finite */
    ZT_EXIT_PREEMPTED = 7,   /* SIGTERM, SIGUSR1 or SIGHUP: saved, and ended early */
};

int zt_exit_code(int zt_code);

struct cmd {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the subcommand's name */
    const char *help;                  /* one line; NULL: hidden */
};

int cmd_train(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_hosts(int argc, char **argv);
int cmd_launch(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_agent(int argc, char **argv);
int cmd_member(int argc, char **argv);
int cmd_worker(int argc, char **argv);
int cmd_gpus(int argc, char **argv);
int cmd_probe(int argc, char **argv);

/*
 * Print "zerotrain: message" (each line of it), or "note: message", to stderr. A stuck reader is waited for until a
 * signal tells us to end (rank_out_finish()).
 */
void cmd_error(const char *fmt, ...) ZT_PRINTF(1, 2);
void cmd_note(const char *fmt, ...) ZT_PRINTF(1, 2);

/*
 * What cmd_error() and cmd_note() say from now on is appended to `to`, for its owner to write: nobody waits. NULL: it
 * goes to stderr at once.
 */
struct rank_out *cmd_says_through(void);
void cmd_say_through(struct rank_out *to);

enum { CMD_MAX_RANKS = 1 << 20, CMD_MAX_RESTARTS = 1000 };

/* Where a training runs, when that is not this machine alone. */
struct cmd_nodes {
    int n;                      /* 0: this machine alone */
    const char *from;           /* what has told them: the hostfile, or "srun" */
    struct zt_launch_node *v;   /* (n) */
    const char *const *host_of; /* (ranks) the host of each, as the hostfile calls it */
    const int *slots;       /* (ranks) of that host, counted as it counts those that we may use */
    int n_ranks, most;      /* of all hosts, of the one with most */
    int first_here, n_here; /* ranks of this machine; n_here 0: none */
};

/* What a run that begins again does without (restart.h). */
struct cmd_lost {
    struct zt_str_list hosts; /* as the hostfile calls them */
    int most;                 /* hosts' slots, or CPU workers, in all; 0: as many as there are */
    int64_t batch;            /* that ranks must divide; 0: the run has not begun */
};

/* Commands that share a table of options; doctor's recipe may be left out. */
enum cmd_command { CMD_TRAIN, CMD_PLAN, CMD_DOCTOR };

/* Their options. */
struct cmd_options {
    const char *recipe_path;
    int num_gpus; /* 0: not given */
    const char *hostfile;
    struct zt_hosts_filter hosts; /* num_gpus stands above */
    const int *slots; /* (num_gpus) of this machine, as the hostfile says; NULL: any (hosts_in.h) */
    int ssh_port;     /* 0: as ssh's configuration says */
    const char *remote_path;
    const char *launcher;   /* NULL: not given */
    struct zt_hosts listed; /* in the hostfile, and chosen */
    struct cmd_host_gpus *asked;
    int n_asked; /* hosts of `asked`: what they have (devices.h) */
    struct cmd_lost lost;
    struct cmd_gpu *gpus; /* (n_gpus) of this machine (gpus.h): those that the run has begun
                                     with, and not lost */
    int n_gpus;
    struct zt_ssh_keys *ssh_keys; /* by which other hosts let us in; NULL: not by libssh2 */
    struct cmd_nodes nodes;       /* (hosts_in.h) */
    struct zt_rendezvous *joined; /* processes that a launcher has started (join.h); NULL: none */
    struct zt_srun *srun;         /* that has started them (slurm.h); NULL: not ours */
    struct zt_str *cpus;          /* (ranks) of them, or NULL */
    const char *device;           /* "cpu", "cuda", "auto" */
    int per_gpu;                  /* 0: not given */
    enum zt_transport transport;
    const char *log_dir, *rank_log_dir, *env_file;
    const char *seed, *device_memory, *host_memory, *resume;
    bool fresh, elastic;
    int max_restarts;
    struct zt_str_list set, deepspeed_configs;
    struct zt_str_list chosen; /* by cmd_fit_choose() */
    /* plan */
    int rank;
    bool schedule, print_recipe, json, largest, deepspeed_estimate;
    const char *fit;
    int64_t largest_layer; /* parameters; 0: not given */
    const char *profile;
    struct zt_arena arena; /* of the lists */
};

/*
 * Parse argv. Returns -1 to go on, or an exit code (after --help: 0; after a message:
 * ZT_EXIT_USAGE). Release o in either case.
 */
int cmd_parse(int argc, char **argv, enum cmd_command command, struct cmd_options *o);
void cmd_options_release(struct cmd_options *o);

/* A copy of text, in the arena, at the end of the list. */
void cmd_list_add(struct zt_arena *arena, struct zt_str_list *list, const char *text);

static inline bool cmd_by_slurm(const struct cmd_options *o)
{
    return o->launcher && strcmp(o->launcher, "slurm") == 0;
}

/* The recipe with options applied; prints its errors. 0 or an exit code. */
int cmd_load_recipe(const struct cmd_options *o, int n_ranks, bool for_plan, int64_t epoch_steps,
                    struct zt_recipe **out);

#endif
