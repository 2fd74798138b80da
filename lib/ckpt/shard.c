#include "ckpt/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/io.h"
#include "ckpt/manifest_words.h"

enum { LENGTH_BYTES = 8, DATA_ALIGN = 4096, BUFFER_BYTES = 256 << 10 };

static size_t piece_bytes(const struct zt_shard_piece *p)
{
    return (size_t)(p->end - p->begin) * zt_dtype_bytes(p->dtype);
}

static json_t *piece_json(const struct zt_shard_piece *p, size_t at)
{
    const struct zt_ckpt_tensor *t = p->tensor;
    json_t *shape = json_array();
    const bool whole = p->end - p->begin == t->n_elems;
    for (int i = 0; i < (whole ? t->n_dims : 1); i++)
        json_array_append_new(shape,
                              json_integer(whole ? (json_int_t)t->dims[i] : p->end - p->begin));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", zt_manifest_dtypes[p->dtype], "shape", shape,
                     "data_offsets", (json_int_t)at, (json_int_t)(at + piece_bytes(p)));
}

void zt_shard_header(const struct zt_shard_piece *pieces, int n, struct zt_str *header,
                     size_t *offsets, size_t *bytes)
{
    json_t *root = json_object();
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        struct zt_str name = {0};
        zt_str_printf(&name, "%s/%s", zt_ckpt_part_name(pieces[i].part), pieces[i].tensor->name);
        ZT_ASSERT(json_object_set_new(root, name.buf, piece_json(&pieces[i], at)) == 0);
        zt_str_release(&name);
        if (offsets)
            offsets[i] = at;
        at += piece_bytes(&pieces[i]);
    }
    char *text = json_dumps(root, JSON_COMPACT);
    ZT_ASSERT(text);
    const size_t len = strlen(text);
    const size_t data = (LENGTH_BYTES + len + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    unsigned char length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++)
        length[i] = (unsigned char)((data - LENGTH_BYTES) >> 8 * i);
    zt_str_add(header, length, sizeof length);
    zt_str_add(header, text, len);
    for (size_t i = LENGTH_BYTES + len; i < data; i++)
        zt_str_add(header, " ", 1); /* blanks behind the JSON are the format's padding */
    for (int i = 0; offsets && i < n; i++)
        offsets[i] += data;
    *bytes = data + at;
    free(text);
    json_decref(root);
}

struct zt_shard_writer {
    char *path;
    int fd;
    size_t bytes;          /* written */
    size_t in_block;       /* of them, in the block that is not summed yet */
    unsigned char *buffer; /* small tensors come together */
    size_t buffered;
    XXH3_state_t *state;
    struct zt_ckpt_sum *sums;
    size_t n_sums, cap;
};

static void free_writer(struct zt_shard_writer *w)
{
    XXH3_freeState(w->state);
    free(w->buffer);
    free(w->path);
    free(w);
}

int zt_shard_create(const char *path, struct zt_shard_writer **out, struct zt_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return zt_err_errno(err, ZT_EIO, "%s", path);
    struct zt_shard_writer *w = zt_xcalloc(1, sizeof *w);
    w->fd = fd;
    w->path = zt_xstrdup(path);
    w->buffer = zt_xcalloc(BUFFER_BYTES, 1);
    w->state = XXH3_createState();
    ZT_ASSERT(w->state);
    XXH3_128bits_reset(w->state);
    *out = w;
    return 0;
}

static void end_block(struct zt_shard_writer *w)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(w->state));
    ZT_GROW(w->sums, w->n_sums + 1, w->cap);
    memcpy(w->sums[w->n_sums++].bytes, canonical.digest, sizeof w->sums->bytes);
    XXH3_128bits_reset(w->state);
    w->in_block = 0;
}

static int flush(struct zt_shard_writer *w, struct zt_err *err)
{
    int rc = zt_write_full(w->fd, w->buffer, w->buffered, w->path, err);
    w->buffered = 0;
    return rc;
}

static int put(struct zt_shard_writer *w, const void *bytes, size_t n, struct zt_err *err)
{
    int rc = 0;
    if (w->buffered + n > BUFFER_BYTES)
        rc = flush(w, err);
    if (!rc && n >= BUFFER_BYTES)
        return zt_write_full(w->fd, bytes, n, w->path, err);
    if (!rc) {
        memcpy(w->buffer + w->buffered, bytes, n);
        w->buffered += n;
    }
    return rc;
}

/*
 * Summed and written block by block, so that the second finds the bytes in the cache. The disk begins with
 * each at once, and not when all are there.
 */
int zt_shard_put(struct zt_shard_writer *w, const void *bytes, size_t n, struct zt_err *err)
{
    const unsigned char *p = bytes;
    while (n > 0) {
        const size_t part = ZT_MIN(n, ZT_CKPT_BLOCK_BYTES - w->in_block);
        XXH3_128bits_update(w->state, p, part);
        int rc = put(w, p, part, err);
        if (rc)
            return rc;
        w->in_block += part;
        w->bytes += part;
        p += part;
        n -= part;
        if (w->in_block == ZT_CKPT_BLOCK_BYTES) {
            end_block(w);
            sync_file_range(w->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
        }
    }
    return 0;
}

int zt_shard_finish(struct zt_shard_writer *w, struct zt_ckpt_sum **sums, size_t *n_sums,
                    size_t *bytes, struct zt_err *err)
{
    int rc = flush(w, err);
    if (w->in_block > 0)
        end_block(w);
    if (!rc && fsync(w->fd))
        rc = zt_err_errno(err, ZT_EIO, "%s: fsync", w->path);
    if (close(w->fd) && !rc)
        rc = zt_err_errno(err, ZT_EIO, "%s: close", w->path);
    if (rc) {
        free(w->sums);
    } else {
        *sums = w->sums;
        *n_sums = w->n_sums;
        *bytes = w->bytes;
    }
    free_writer(w);
    return rc;
}

void zt_shard_abandon(struct zt_shard_writer *w)
{
    if (!w)
        return;
    close(w->fd);
    free(w->sums);
    free_writer(w);
}
