/*
 * blocks.h: the blocks of a checkpoint's files, whose checksums are checked when they are read. Internal to
 * lib/ckpt; for one thread at a time.
 *
 * Of the files 64 at most are open at a time, those used last: a checkpoint may have more than a process may open.
 *
 * Blocks that were expected are read ahead by threads, in that order, ZT_CKPT_READ_BYTES at most. One that is wanted
 * several times, as with slices shorter than a block that lie in several files, is kept in between, and so read once.
 * Where these are more than ZT_CKPT_KEPT_BYTES, those stay that are wanted soonest, and others are read again. Buffers
 * take no memory until used. A block of which only a part is used comes through the page cache: another rank wants
 * the rest.
 */
#ifndef ZT_CKPT_BLOCKS_H
#define ZT_CKPT_BLOCKS_H

#include "ckpt/checkpoint.h"

/* `path` and `m` must live as long. */
int zt_blocks_create(const char *path, const struct zt_manifest *m, struct zt_blocks **out,
                     struct zt_err *err) ZT_MUST_CHECK;
void zt_blocks_free(struct zt_blocks *b); /* accepts NULL */

/*
 * The next block that will be asked for, and how many bytes of it will be used; the same one again is the same
 * block, of which more is used. Before reading ahead begins.
 */
void zt_blocks_expect(struct zt_blocks *b, int file, size_t block, size_t bytes);
void zt_blocks_read_ahead(struct zt_blocks *b); /* once */

/* Where its bytes can be read until the next call. ZT_EINPUT: its checksum is wrong. */
int zt_blocks_get(struct zt_blocks *b, int file, size_t block, const unsigned char **out,
                  struct zt_err *err) ZT_MUST_CHECK;

#endif
