/*
 * restart.h: --max_restarts and --elastic: whether a job that has failed begins again, when, and with what.
 *
 * It does after a rank, an agent or a host has failed; not after what would fail the same way again (a wrong
 * input, a plan that does not fit, a non-finite loss), nor when a person or a batch system ended it, nor
 * before any attempt had all hosts up. Hosts that do not come up again are waited for; such tries are no restarts.
 *
 * With --elastic what fails is left out, until the end of the run:
 *   - a host that is lost, does not come up again, or where the kernel ran out of memory; not all hosts at
 *     once, which is more likely to be our own connection;
 *   - of hosts that do not reach each other those without which the others all do (launch/apart.h);
 *   - a host whose ranks failed first twice in a row;
 *   - on one machine, a GPU whose ranks failed first twice in a row, or that cannot be used any more; one of the CPU
 *     workers when the same rank did.
 * The global batch stays: its micro-batches and accumulation steps are divided anew, and where that many ranks
 * do not divide it, the last ones are left out too.
 *
 * On one machine a run keeps to the devices that it has begun with. A GPU that cannot be used when it begins again is
 * left out with --elastic, and else the end of it: it never goes on with fewer unasked. A GPU is its UUID here: when one
 * is gone, CUDA gives its index to another.
 */
#ifndef ZT_CMD_RESTART_H
#define ZT_CMD_RESTART_H

#include <signal.h>

#include "cmd.h"
#include "devices.h"

/* Zero-initialised but for max and own_set is the state before the first attempt. */
struct cmd_restart {
    int max, used;
    bool any_code;       /* the program is not ours: its exit codes mean nothing to us */
    bool started;        /* an attempt had all hosts up */
    int n_tries;         /* since then that did not */
    int64_t gives_up_ns; /* when hosts have been waited for long enough */
    char culprit[256];   /* the host, GPU or rank that failed last time; "": none was to blame */
    char name[40];       /* of the job, for its agents */
    sigset_t before;     /* signals that were blocked */
    struct zt_str_list own_set; /* settings as they were given; launch has none */
};

/*
 * Before the first attempt: with restarts the job gets its name; signals that tell us to end are blocked, so that one
 * that comes between two attempts is seen by cmd_restart_wait() or by the next one, and one that comes after the
 * last by rank_out_finish().
 */
void cmd_restart_begin(struct cmd_restart *r);

/*
 * After the last attempt, when all is said: these signals end us again. Not those that have come already: we are on
 * our way out.
 */
void cmd_restart_end(const struct cmd_restart *r);

/* Wait before the next attempt, while the sink goes on writing. 0, or the signal that told us to end. */
int cmd_restart_wait(double wait_s, const struct zt_launch_sink *sink);

/*
 * What zt_launch_run() returned, and gave: does the job begin again? Then *wait_s is after how long, and `say`
 * tells a person.
 */
bool cmd_restart_again(struct cmd_restart *r, int rc, const struct zt_launch_result *res,
                       double *wait_s, struct zt_str *say);

/*
 * --elastic: leave out what has failed (o->lost, o->gpus). Returns whether it is anything; `say` then has a line
 * for each.
 */
bool cmd_restart_leave_out(struct cmd_restart *r, const struct zt_launch_result *res,
                           const struct cmd_devices *dev, struct cmd_options *o,
                           struct zt_str *say);

/*
 * Of `left` devices, of per_device ranks each, as many as can share the batch (0: any can). `say` (optional) gets a
 * line when that is not all of them.
 */
int cmd_restart_divide(int64_t batch, int per_device, int left, struct zt_str *say);

/*
 * The settings of the next attempt: o->set, then where it goes on from (NULL: as the recipe says), and with
 * ranks > 0 how `batch` is divided among them: into micro-batches no larger than before.
 */
void cmd_restart_settings(struct cmd_restart *r, const char *resume,
                          const struct zt_recipe_batch *batch, int ranks, struct cmd_options *o);

#endif
