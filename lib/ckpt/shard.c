#include "ckpt/checkpoint.h"

#include <jansson.h>
#include <unistd.h>

#include "base/ring.h"
#include "ckpt/direct.h"
#include "ckpt/manifest_words.h"

enum { LENGTH_BYTES = 8, DATA_ALIGN = 4096 };

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
    struct zt_direct file;
    size_t bytes; /* of the file */
    size_t at;    /* of them, put so far */
    struct zt_ring *ring;
    struct zt_ckpt_sum *sums; /* (n_sums), one for each block */
    size_t n_sums;
};

/* The ring's job: a block that is filled. Summed where it is in the cache still. */
static int write_block(void *ctx, int64_t i, unsigned char *block, struct zt_err *err)
{
    struct zt_shard_writer *w = ctx;
    const size_t at = (size_t)i * ZT_CKPT_BLOCK_BYTES;
    const size_t n = ZT_MIN(w->bytes - at, (size_t)ZT_CKPT_BLOCK_BYTES);
    w->sums[i] = zt_ckpt_sum_of(block, n);
    return zt_direct_write(&w->file, block, n, at, err);
}

static void free_writer(struct zt_shard_writer *w)
{
    free(w->sums);
    free(w->path);
    free(w);
}

int zt_shard_create(const char *path, size_t bytes, struct zt_shard_writer **out,
                    struct zt_err *err)
{
    enum { AT_ONCE = ZT_CKPT_WRITE_BYTES / ZT_CKPT_BLOCK_BYTES };
    struct zt_shard_writer *w = zt_xcalloc(1, sizeof *w);
    ZT_ASSERT_CMP(bytes, >, 0);
    w->path = zt_xstrdup(path);
    w->bytes = bytes;
    w->n_sums = (bytes + ZT_CKPT_BLOCK_BYTES - 1) / ZT_CKPT_BLOCK_BYTES;
    w->sums = zt_xcalloc(w->n_sums, sizeof *w->sums);
    const int n = (int)ZT_MIN(w->n_sums, (size_t)AT_ONCE);
    const struct zt_ring_opts ring = {.name = "ckpt-write",
                                      .n_threads = n,
                                      .n_slots = n,
                                      .slot_bytes = ZT_CKPT_BLOCK_BYTES,
                                      .work = write_block,
                                      .ctx = w};
    int rc = zt_direct_create(&w->file, w->path, bytes, err);
    if (!rc) {
        rc = zt_ring_create(&ring, &w->ring, err);
        if (rc)
            (void)!zt_direct_close(&w->file);
    }
    if (rc)
        free_writer(w);
    else
        *out = w;
    return rc;
}

/* The block's buffer is free when the block that had it before is written. */
static int claim(struct zt_shard_writer *w, int64_t block, struct zt_err *err)
{
    const int64_t before = block - zt_ring_n_slots(w->ring);
    return before < 0 ? 0 : zt_ring_wait(w->ring, before, err);
}

int zt_shard_put(struct zt_shard_writer *w, const void *bytes, size_t n, struct zt_err *err)
{
    const unsigned char *p = bytes;
    ZT_ASSERT_CMP(n, <=, w->bytes - w->at);
    while (n > 0) {
        const int64_t block = (int64_t)(w->at / ZT_CKPT_BLOCK_BYTES);
        const size_t in = w->at % ZT_CKPT_BLOCK_BYTES;
        const size_t part = ZT_MIN(n, ZT_CKPT_BLOCK_BYTES - in);
        int rc = in == 0 ? claim(w, block, err) : 0;
        if (rc)
            return rc;
        memcpy(zt_ring_slot(w->ring, block) + in, p, part);
        w->at += part;
        p += part;
        n -= part;
        if (w->at % ZT_CKPT_BLOCK_BYTES == 0 || w->at == w->bytes)
            zt_ring_allow(w->ring, block + 1);
    }
    return 0;
}

int zt_shard_finish(struct zt_shard_writer *w, struct zt_ckpt_sum **sums, size_t *n_sums,
                    struct zt_err *err)
{
    const int64_t n = (int64_t)w->n_sums;
    int rc = 0;
    ZT_ASSERT_CMP(w->at, ==, w->bytes);
    for (int64_t i = ZT_MAX(n - zt_ring_n_slots(w->ring), (int64_t)0); i < n && !rc; i++)
        rc = zt_ring_wait(w->ring, i, err);
    zt_ring_free(w->ring);
    if (!rc && fsync(w->file.fd))
        rc = zt_err_errno(err, ZT_EIO, "%s: fsync", w->path);
    if (zt_direct_close(&w->file) && !rc)
        rc = zt_err_errno(err, ZT_EIO, "%s: close", w->path);
    if (!rc) {
        *sums = w->sums;
        *n_sums = w->n_sums;
        w->sums = NULL;
    }
    free_writer(w);
    return rc;
}

void zt_shard_abandon(struct zt_shard_writer *w)
{
    if (!w)
        return;
    zt_ring_free(w->ring);
    (void)!zt_direct_close(&w->file);
    free_writer(w);
}
