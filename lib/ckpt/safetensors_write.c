#include "ckpt/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/io.h"
#include "base/size.h"
#include "ckpt/direct.h"
#include "ckpt/safetensors.h"

enum { ALIGN = 8, LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100000000 };

static const char *dtype_name(enum zt_dtype t)
{
    static const char *const names[ZT_N_DTYPES] = {
        [ZT_F32] = "F32", [ZT_BF16] = "BF16", [ZT_F16] = "F16",
        [ZT_I32] = "I32", [ZT_I64] = "I64",   [ZT_F64] = "F64",
    };
    return names[t];
}

static int entry_bytes(const struct zt_st_entry *e, size_t *bytes, struct zt_err *err)
{
    size_t n = zt_dtype_bytes(e->dtype);
    ZT_ASSERT_CMP(e->n_dims, <=, ZT_ST_MAX_DIMS);
    for (int i = 0; i < e->n_dims; i++) {
        ZT_ASSERT_CMP(e->dims[i], >=, 0);
        if (!zt_mul_size(n, (size_t)e->dims[i], &n))
            return zt_err_set(err, ZT_EINPUT, "tensor %s: more than 2^64 bytes", e->name);
    }
    *bytes = n;
    return 0;
}

static json_t *shape_json(const struct zt_st_entry *e)
{
    json_t *shape = json_array();
    for (int i = 0; i < e->n_dims; i++)
        json_array_append_new(shape, json_integer(e->dims[i]));
    return shape;
}

static int add_entries(json_t *root, const struct zt_st_entry *entries, int n, size_t *data_bytes,
                       struct zt_err *err)
{
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const struct zt_st_entry *e = &entries[i];
        size_t bytes = 0, end;
        int rc = entry_bytes(e, &bytes, err);
        if (rc)
            return rc;
        if (!zt_add_size(at, bytes, &end) || end > INT64_MAX)
            return zt_err_set(err, ZT_EINPUT, "tensor %s: the file has more than 2^63 bytes",
                              e->name);
        ZT_ASSERT(!json_object_get(root, e->name));
        json_t *info = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(e->dtype), "shape",
                                 shape_json(e), "data_offsets", (json_int_t)at, (json_int_t)end);
        if (json_object_set_new(root, e->name, info))
            return zt_err_set(err, ZT_EINPUT, "tensor %.100s: the name is not UTF-8", e->name);
        at = end;
    }
    *data_bytes = at;
    return 0;
}

int zt_st_header(const struct zt_st_entry *entries, int n, const struct zt_st_meta *meta,
                 int n_meta, struct zt_str *out, size_t *data_bytes, struct zt_err *err)
{
    static const char blanks[ALIGN] = "        ";
    json_t *root = json_object(), *strings = json_object();
    for (int i = 0; i < n_meta; i++)
        json_object_set_new(strings, meta[i].key, json_string(meta[i].value));
    if (n_meta)
        json_object_set(root, "__metadata__", strings);
    json_decref(strings);
    int rc = add_entries(root, entries, n, data_bytes, err);
    char *text = rc ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (rc)
        return rc;
    size_t len = text ? strlen(text) : 0, pad = zt_align_size(len, ALIGN) - len;
    if (!text) {
        rc = zt_err_set(err, ZT_ENOMEM, "out of memory");
    } else if (len + pad > MAX_HEADER_BYTES) {
        rc = zt_err_set(err, ZT_EINPUT, "%d tensors make a header of %zu bytes; at most %d", n, len,
                        MAX_HEADER_BYTES);
    } else {
        unsigned char le[LENGTH_BYTES];
        for (int i = 0; i < LENGTH_BYTES; i++)
            le[i] = (unsigned char)((uint64_t)(len + pad) >> 8 * i);
        zt_str_add(out, le, sizeof le);
        zt_str_add(out, text, len);
        zt_str_add(out, blanks, pad);
    }
    free(text);
    return rc;
}

int zt_st_create(const char *path, const struct zt_str *header, size_t data_bytes,
                 struct zt_st_writer *w, struct zt_err *err)
{
    struct zt_str tmp = {0};
    zt_str_printf(&tmp, "%s.tmp.%ld", path, (long)getpid());
    *w = (struct zt_st_writer){.path = zt_xstrdup(path), .tmp = tmp.buf, .left = data_bytes};
    w->fd = open(w->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        int rc = zt_err_errno(err, ZT_EIO, "%s", path);
        free(w->path);
        free(w->tmp);
        memset(w, 0, sizeof *w);
        return rc;
    }
    int rc = zt_reserve(w->fd, header->len + data_bytes, path, err);
    if (!rc)
        rc = zt_write_full(w->fd, header->buf, header->len, path, err);
    if (rc)
        zt_st_abandon(w);
    return rc;
}

int zt_st_append(struct zt_st_writer *w, const void *bytes, size_t n, struct zt_err *err)
{
    ZT_ASSERT_CMP(n, <=, w->left);
    w->left -= n;
    return zt_write_full(w->fd, bytes, n, w->path, err);
}

/* Close and forget; the temporary file is left to the caller. */
static int finish(struct zt_st_writer *w)
{
    int rc = close(w->fd);
    free(w->path);
    free(w->tmp);
    memset(w, 0, sizeof *w);
    return rc;
}

int zt_st_commit(struct zt_st_writer *w, struct zt_err *err)
{
    ZT_ASSERT_CMP(w->left, ==, 0);
    int rc = 0;
    if (fsync(w->fd))
        rc = zt_err_errno(err, ZT_EIO, "%s: fsync", w->path);
    else if (rename(w->tmp, w->path))
        rc = zt_err_errno(err, ZT_EIO, "%s: rename", w->path);
    if (rc)
        zt_st_abandon(w);
    else
        finish(w);
    return rc;
}

void zt_st_abandon(struct zt_st_writer *w)
{
    if (!w->path)
        return;
    unlink(w->tmp);
    finish(w);
}
