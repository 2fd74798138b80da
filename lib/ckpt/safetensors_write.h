/*
 * safetensors_write.h: writing safetensors files, of any size in bounded memory. The format is that of
 * safetensors.h; what is written here, it reads.
 *
 *   zt_st_header() -> zt_st_create() -> zt_st_append()... -> zt_st_commit(), or zt_st_abandon()
 *
 * A file is there whole or not at all: it grows under a temporary name beside its own, is fsynced, then
 * renamed. Whoever needs the name itself to survive a crash syncs the folder after that. Not for
 * several threads at once.
 */
#ifndef ZT_CKPT_SAFETENSORS_WRITE_H
#define ZT_CKPT_SAFETENSORS_WRITE_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"

struct zt_st_entry {
    const char *name; /* UTF-8; each once */
    enum zt_dtype dtype;
    int n_dims; /* at most ZT_ST_MAX_DIMS */
    const int64_t *dims;
};

/* An entry of __metadata__. */
struct zt_st_meta {
    const char *key, *value;
};

/*
 * Append a file's beginning to `out`: the length, the header in JSON, blanks up to a multiple of 8 bytes.
 * The tensors' bytes follow it in the order of the entries, without gaps; *data_bytes is their sum.
 * ZT_EINPUT: more bytes or a longer header than the format takes.
 */
int zt_st_header(const struct zt_st_entry *entries, int n, const struct zt_st_meta *meta,
                 int n_meta, struct zt_str *out, size_t *data_bytes,
                 struct zt_err *err) ZT_MUST_CHECK;

struct zt_st_writer {
    char *path, *tmp;
    int fd;
    size_t left; /* bytes of data still to come */
};

/*
 * Begin a file; room for all of it is asked for at once, so that a disk that is too small says so before
 * the work. A failed one leaves nothing.
 */
int zt_st_create(const char *path, const struct zt_str *header, size_t data_bytes,
                 struct zt_st_writer *w, struct zt_err *err) ZT_MUST_CHECK;

/* The next bytes of data, at most as many as are still to come. */
int zt_st_append(struct zt_st_writer *w, const void *bytes, size_t n,
                 struct zt_err *err) ZT_MUST_CHECK;

/* All data are there: sync and rename. The writer is done with, also when this fails. */
int zt_st_commit(struct zt_st_writer *w, struct zt_err *err) ZT_MUST_CHECK;

/* Leave no trace. Accepts a zeroed writer, and one that is done with. */
void zt_st_abandon(struct zt_st_writer *w);

#endif
