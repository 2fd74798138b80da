/*
 * rank_out.h: lines of many ranks on one descriptor, without blocking, for the sink of
 * zt_launch_run(). The descriptor's flags are left alone: it is shared with the shell.
 */
#ifndef ZT_CMD_RANK_OUT_H
#define ZT_CMD_RANK_OUT_H

#include "base/str.h"

struct rank_out {
    int fd;
    const char *const *host_of; /* (ranks) named before each line; NULL: there is one host */
    struct zt_str buf;          /* not written yet; append whole lines */
    size_t written;             /* of buf */
    bool no_wait;               /* told to end: finish drops what nobody reads */
    int error;                  /* errno of a failed write, after which all is dropped; 0: none */
};

/* Append "[rank N] line\n", or "[HOST rank N] line\n"; without the prefix when rank is negative. */
void rank_out_line(struct rank_out *o, int rank, const char *line, size_t len);

/* Write what fits. -1: all is written or dropped, else the descriptor to wait for. */
int rank_out_flush(struct rank_out *o);

/*
 * Write the rest, blocking unless no_wait, and release. Returns o->error; EAGAIN: some was
 * dropped.
 */
int rank_out_finish(struct rank_out *o);

#endif
