/*
 * ranklog.h: what the front end keeps of each rank's output: its last stderr lines, for the summary,
 * and its log file when there is a folder for them.
 */
#ifndef ZT_LAUNCH_RANKLOG_H
#define ZT_LAUNCH_RANKLOG_H

#include "launch/launch.h"

enum { ZT_TAIL_LINES = 10, ZT_TAIL_LINE_BYTES = 400 };

struct zt_ranklog {
    struct zt_str tail[ZT_TAIL_LINES]; /* a ring of lines, each cut at ZT_TAIL_LINE_BYTES */
    size_t n_lines;                    /* ever seen; the next one goes to n_lines % ZT_TAIL_LINES */
    int fd;                            /* -1: no file, or it failed */
};

struct zt_ranklogs {
    struct zt_ranklog *v;
    int n;
    char *dir; /* NULL: no files */
    struct zt_str line;
    bool failed; /* a file could not be written to; said once */
};

/*
 * Make DIR (with its parents) and DIR/rank-N.log for N in [0, n), emptied unless `append`. dir NULL: tails
 * only.
 */
int zt_ranklogs_init(struct zt_ranklogs *l, int n, const char *dir, bool append,
                     struct zt_err *err) ZT_MUST_CHECK;

/* Record a line. ZT_EIO the first time that a file cannot be written; from then on it is not. */
int zt_ranklogs_add(struct zt_ranklogs *l, int rank, enum zt_log_stream stream, const char *line,
                    size_t len, struct zt_err *err) ZT_MUST_CHECK;

/* Append the last stderr lines of a rank, each after `prefix` and followed by a newline. */
void zt_ranklogs_tail(const struct zt_ranklogs *l, int rank, const char *prefix,
                      struct zt_str *out);

void zt_ranklogs_release(struct zt_ranklogs *l);

#endif
