/*
 * mark.h: what a process reads from files of its own, in a few numbers, so that hosts can find out whether theirs are
 * the same (lib/train/agree.h). Names are for people and are not compared: the same may lie elsewhere.
 *
 * A digest is of a bounded number of bytes: of what is long, of blocks at even distances, the first and the last among
 * them, which are asked for all at once. So it costs milliseconds at any size. It tells apart what was made differently, was
 * cut, or is half copied; a few bytes changed in a long file it may miss.
 */
#ifndef ZT_BASE_MARK_H
#define ZT_BASE_MARK_H

#include "base/compat.h"

struct zt_mark {
    const char *name; /* a path, a tensor */
    const char *kind; /* "llm.c GPT-2 tokens" */
    const char *unit; /* "tokens" */
    int64_t n;        /* of them */
    const void *data;
    size_t bytes;
    int64_t digest; /* of kind, n and data; from 0 to below 2^62 */
};

/* All that names and data point to must live as long. Zero-initialised is none. */
struct zt_marks {
    struct zt_mark *items;
    size_t n, cap;
};

void zt_marks_add(struct zt_marks *m, const struct zt_mark *mark);
void zt_marks_release(struct zt_marks *m);

/* Read what the digests are of: 256 blocks of 4 KiB, or, of more than 128 marks, two blocks of each. */
void zt_marks_read(struct zt_marks *m);

/* Of the first n marks, once they are read; from 0 to below 2^62. */
int64_t zt_marks_digest(const struct zt_marks *m, size_t n);

/* Of a word: the same for the same, from 0 to below 2^62. */
int64_t zt_mark_word(const char *word);

#endif
