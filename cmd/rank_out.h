/*
 * rank_out.h: lines of many ranks on one descriptor, without blocking, for the sink of
 * zt_launch_run(). The descriptor's flags are left alone: it is shared with the shell.
 *
 * Whoever reads may be slow, stopped (Ctrl-S) or dead, which looks the same for a while. A reader is waited for as
 * long as nobody tells us to end. Then he is dead when he has taken nothing for RANK_OUT_DEAD_MS: what he has not
 * read is dropped.
 */
#ifndef ZT_CMD_RANK_OUT_H
#define ZT_CMD_RANK_OUT_H

#include "base/str.h"

enum { RANK_OUT_DEAD_MS = 3000 };

/* Zero-initialised but for fd is one that nothing was written to. */
struct rank_out {
    int fd;
    const char *const *host_of; /* (ranks) named before each line; NULL: there is one host */
    struct zt_str buf;          /* not written yet; append whole lines */
    size_t written;             /* of buf */
    int error;                  /* errno of a failed write, after which all is dropped; 0: none */
    size_t dropped_bytes;       /* by rank_out_finish(): that nobody has read */
    int own_fd;       /* fd once more, but non-blocking; 0: not opened yet; -1: cannot be */
    int unread;       /* bytes on their way to the reader, as far as the kernel tells */
    int64_t taken_ns; /* when he last took some, or there was nothing to take */
};

/* Append "[rank N] line\n", or "[HOST rank N] line\n"; without the prefix when rank is negative. */
void rank_out_line(struct rank_out *o, int rank, const char *line, size_t len);

/* Append each line of a text, as "zerotrain: LINE\n". */
void rank_out_say(struct rank_out *o, const char *text);

/* Write what fits. -1: all is written or dropped, else the descriptor to wait for. */
int rank_out_flush(struct rank_out *o);

/* The same of both; a stuck `first` does not keep `second` back, unless they are one file: then lines stay whole. */
int rank_out_flush_both(struct rank_out *first, struct rank_out *second);

/*
 * Write the rest and release. `told` to end, or as soon as a signal that does so is blocked and pending
 * (zt_ending_signals()), no dead reader is waited for; with both, no slow one either. Returns o->error; EAGAIN: some
 * was dropped.
 */
int rank_out_finish(struct rank_out *o, bool told);

/*
 * The same of both, stdout and stderr; what stdout has lost by a dead reader is said on stderr. Returns what
 * stdout's returned.
 */
int rank_out_finish_both(struct rank_out *out, struct rank_out *err, bool told);

#endif
