/*
 * proctree.h: the processes below this one, from /proc. The caller is a "subreaper": descendants
 * whose parent died hang below it again, also those that left their session, so none escapes.
 */
#ifndef ZT_LAUNCH_PROCTREE_H
#define ZT_LAUNCH_PROCTREE_H

#include "base/compat.h"

#include <sys/types.h>

/* A list of process ids; zero-initialised is empty. */
struct zt_pids {
    pid_t *v;
    size_t n, cap;
};

void zt_pids_release(struct zt_pids *p);

/* Children of this process. false: this kernel does not tell (CONFIG_PROC_CHILDREN). */
bool zt_tree_children(struct zt_pids *out);

/*
 * Send `sig` (0: only count) to every descendant but the children in `spare` (may be NULL) and what is
 * below those. Returns how many there were, dead but unreaped ones included; -1: the kernel does not
 * tell.
 */
int zt_tree_signal(const struct zt_pids *spare, int sig);

/* SIGKILL everything; stopped first, so that nothing forks away meanwhile. Returns as above. */
int zt_tree_kill(const struct zt_pids *spare);

/*
 * How often the kernel's out-of-memory killer has struck: in our cgroup where it tells, else on the
 * whole machine; -1: unknown. Compare two readings.
 */
int64_t zt_oom_kills(void);

#endif
