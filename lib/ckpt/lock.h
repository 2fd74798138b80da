/*
 * lock.h: which run may change a folder of checkpoints: one, of all hosts that share the folder.
 *
 * The kernel's file locks are not relied on: over network file systems flock(2) and fcntl(2) hold among all
 * hosts, on each host alone or not at all, as the folder is mounted. The lock is a file DIR/.lock-N, made with
 * O_EXCL, which network file systems carry out in one piece as well. Only the newest counts. Who holds it
 * touches it every 3 s; who is done writes into it that it is free, and leaves it there, so that N only grows.
 * Who wants it makes .lock-(N+1), of which one alone succeeds, as soon as .lock-N
 *
 *     - is free, or
 *     - names a process of this host (the same boot and process namespace) that does not live any more, or
 *     - was not touched for 30 s, by the clock of who wants it: no two hosts' clocks are compared;
 *
 * and then removes the older ones. So a holder that was asleep meanwhile (a host that was frozen or cut off)
 * finds that out: zt_ckpt_lock_check(), before each change.
 */
#ifndef ZT_CKPT_LOCK_H
#define ZT_CKPT_LOCK_H

#include "base/err.h"

struct zt_ckpt_lock;

/* How a lock that another run holds is waited for. */
struct zt_ckpt_wait {
    double most_s;  /* while its holder lives: processes may outlive a run by moments */
    double stale_s; /* while only time can tell whether it does; 0: 30 s */
    /*
     * Optional. Called some 20 times a second while it is waited for; false: no longer. `who` holds it ("process 71
     * on zt1 since ..."; "": not known); in left_s it is given up, or taken over.
     */
    bool (*go_on)(void *ctx, const char *who, double left_s);
    void *ctx;
};

/*
 * Take the lock of the folder DIR, which is made. Blocks while another run holds it as `wait` says, then
 * ZT_EINPUT says who. *out is NULL on failure. A thread keeps it up until it is given back.
 */
int zt_ckpt_lock(const char *dir, const struct zt_ckpt_wait *wait, struct zt_ckpt_lock **out,
                 struct zt_err *err) ZT_MUST_CHECK;

/*
 * 0: still ours; where somebody has removed its file and nobody has taken it, it is put back. ZT_ESYS: another run has
 * taken it, since we did not move for too long. For one thread at a time.
 */
int zt_ckpt_lock_check(struct zt_ckpt_lock *l, struct zt_err *err) ZT_MUST_CHECK;

void zt_ckpt_unlock(struct zt_ckpt_lock *l); /* accepts NULL */

#endif
