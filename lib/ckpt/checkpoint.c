#include "ckpt/checkpoint.h"

#include <errno.h>
#include <sys/stat.h>

#include "base/io.h"
#include "ckpt/blocks.h"
#include "ckpt/folder.h"

static void file_path(const struct zt_ckpt *c, int file, struct zt_str *out)
{
    zt_str_printf(out, "%s/%s", c->path, c->m.files[file].name);
}

static int check_files(const struct zt_ckpt *c, struct zt_err *err)
{
    int rc = 0;
    for (int i = 0; i < c->m.n_files && !rc; i++) {
        struct zt_str path = {0};
        struct stat st;
        file_path(c, i, &path);
        if (stat(path.buf, &st))
            rc = zt_err_errno(err, zt_open_code(errno), "%s", path.buf);
        else if (!S_ISREG(st.st_mode) || (size_t)st.st_size != c->m.files[i].bytes)
            rc = zt_err_set(err, ZT_EINPUT,
                            "%s: has %lld bytes, but the manifest says %zu; the file was cut or "
                            "replaced",
                            path.buf, (long long)st.st_size, c->m.files[i].bytes);
        zt_str_release(&path);
    }
    return rc;
}

static int64_t id_of(const struct zt_str *manifest)
{
    const struct zt_ckpt_sum sum = zt_ckpt_sum_of(manifest->buf, manifest->len);
    int64_t id;
    memcpy(&id, &sum, sizeof id);
    return (id & ((1LL << 62) - 1)) | 1;
}

/* The newest is found by its number. */
static int check_name(const char *path, int64_t step, struct zt_err *err)
{
    int64_t named;
    if (!zt_ckpt_named_step(path, &named) || named == step)
        return 0;
    return zt_err_set(err, ZT_EINPUT,
                      "%s: holds the checkpoint of step %lld: the folder was renamed", path,
                      (long long)step);
}

int zt_ckpt_open(const char *path, struct zt_ckpt *c, struct zt_err *err)
{
    struct zt_str name = {0}, text = {0};
    memset(c, 0, sizeof *c);
    zt_str_printf(&name, "%s/" ZT_CKPT_MANIFEST, path);
    int rc = zt_read_file(name.buf, ZT_CKPT_MANIFEST_BYTES, &text, err);
    if (!rc)
        rc = zt_manifest_parse(name.buf, zt_str_get(&text), text.len, &c->m, err);
    if (!rc)
        c->id = id_of(&text);
    zt_str_release(&name);
    zt_str_release(&text);
    if (rc)
        return rc;
    c->path = zt_arena_strdup(&c->m.arena, path);
    rc = check_name(path, c->m.at.step, err);
    if (!rc)
        rc = check_files(c, err);
    if (!rc)
        rc = zt_blocks_create(c->path, &c->m, &c->blocks, err);
    if (rc)
        zt_ckpt_close(c);
    return rc;
}

void zt_ckpt_close(struct zt_ckpt *c)
{
    zt_blocks_free(c->blocks);
    zt_manifest_release(&c->m);
    memset(c, 0, sizeof *c);
}

/* An element may lie across the border of two blocks: bytes are gathered before they are converted. */
struct sink {
    enum zt_dtype dtype;
    float *out;
    unsigned char part[4];
    size_t n_part;
};

static void convert(struct sink *s, const unsigned char *p, size_t n)
{
    const size_t elem = zt_dtype_bytes(s->dtype);
    if (s->dtype == ZT_F32) {
        memcpy(s->out, p, n);
        s->out += n / elem;
        return;
    }
    for (size_t i = 0; i < n; i += elem) {
        uint16_t h;
        memcpy(&h, p + i, sizeof h);
        *s->out++ = s->dtype == ZT_BF16 ? zt_bf16_to_f32(h) : zt_f16_to_f32(h);
    }
}

static void take(struct sink *s, const unsigned char *p, size_t n)
{
    const size_t elem = zt_dtype_bytes(s->dtype);
    while (s->n_part > 0 && n > 0) {
        s->part[s->n_part++] = *p++;
        n--;
        if (s->n_part < elem)
            continue;
        convert(s, s->part, elem);
        s->n_part = 0;
    }
    convert(s, p, n / elem * elem);
    for (p += n / elem * elem, n %= elem; n > 0; n--)
        s->part[s->n_part++] = *p++;
}

static int read_piece(struct zt_ckpt *c, const struct zt_ckpt_piece *p, int64_t begin, int64_t end,
                      struct sink *s, struct zt_err *err)
{
    const size_t elem = zt_dtype_bytes(s->dtype), block = c->m.block_bytes;
    size_t at = p->offset + (size_t)(begin - p->begin) * elem;
    const size_t stop = p->offset + (size_t)(end - p->begin) * elem;
    while (at < stop) {
        const unsigned char *bytes;
        const size_t b = at / block, n = ZT_MIN(stop, (b + 1) * block) - at;
        int rc = zt_blocks_get(c->blocks, p->file, b, &bytes, err);
        if (rc)
            return rc;
        take(s, bytes + (at - b * block), n);
        at += n;
    }
    return 0;
}

/* The first piece that ends behind an element. */
static int first_piece(const struct zt_ckpt_part *part, int64_t begin)
{
    int lo = 0, hi = part->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (part->pieces[mid].end <= begin)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int zt_ckpt_read_f32(struct zt_ckpt *c, const struct zt_ckpt_tensor *t, enum zt_ckpt_part_kind part,
                     int64_t begin, int64_t n, float *out, struct zt_err *err)
{
    const struct zt_ckpt_part *of = &t->parts[part];
    const int64_t end = begin + n;
    struct sink s = {.dtype = of->dtype, .out = out};
    ZT_ASSERT(begin >= 0 && n >= 0 && begin <= t->n_elems - n && of->n > 0);
    for (int i = first_piece(of, begin); i < of->n && of->pieces[i].begin < end; i++) {
        const struct zt_ckpt_piece *p = &of->pieces[i];
        int rc = read_piece(c, p, ZT_MAX(begin, p->begin), ZT_MIN(end, p->end), &s, err);
        if (rc)
            return zt_err_wrap(err, "%s of %s", zt_ckpt_part_name(part), t->name);
    }
    return 0;
}

void zt_ckpt_expect(struct zt_ckpt *c, const struct zt_ckpt_tensor *t, enum zt_ckpt_part_kind part,
                    int64_t begin, int64_t n)
{
    const struct zt_ckpt_part *of = &t->parts[part];
    const size_t elem = zt_dtype_bytes(of->dtype), block = c->m.block_bytes;
    const int64_t end = begin + n;
    for (int i = first_piece(of, begin); i < of->n && of->pieces[i].begin < end; i++) {
        const struct zt_ckpt_piece *p = &of->pieces[i];
        const int64_t lo = ZT_MAX(begin, p->begin), hi = ZT_MIN(end, p->end);
        const size_t at = p->offset + (size_t)(lo - p->begin) * elem;
        const size_t stop = p->offset + (size_t)(hi - p->begin) * elem;
        for (size_t b = at / block; b * block < stop && lo < hi; b++)
            zt_blocks_expect(c->blocks, p->file, b,
                             ZT_MIN(stop, (b + 1) * block) - ZT_MAX(at, b * block));
    }
}

void zt_ckpt_read_ahead(struct zt_ckpt *c)
{
    zt_blocks_read_ahead(c->blocks);
}

int zt_ckpt_verify(struct zt_ckpt *c, struct zt_err *err)
{
    const unsigned char *bytes;
    for (int f = 0; f < c->m.n_files; f++)
        for (size_t b = 0; b < c->m.files[f].n_sums; b++)
            zt_blocks_expect(c->blocks, f, b, c->m.block_bytes);
    int rc = 0;
    zt_blocks_read_ahead(c->blocks);
    for (int f = 0; f < c->m.n_files && !rc; f++)
        for (size_t b = 0; b < c->m.files[f].n_sums && !rc; b++)
            rc = zt_blocks_get(c->blocks, f, b, &bytes, err);
    return rc;
}
