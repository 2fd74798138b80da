#include "ckpt/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"

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
            rc = zt_err_errno(err, ZT_EINPUT, "%s", path.buf);
        else if (!S_ISREG(st.st_mode) || (size_t)st.st_size != c->m.files[i].bytes)
            rc = zt_err_set(err, ZT_EINPUT,
                            "%s: has %lld bytes, but the manifest says %zu; the file was cut or "
                            "replaced",
                            path.buf, (long long)st.st_size, c->m.files[i].bytes);
        zt_str_release(&path);
    }
    return rc;
}

int zt_ckpt_open(const char *path, struct zt_ckpt *c, struct zt_err *err)
{
    struct zt_str name = {0}, text = {0};
    memset(c, 0, sizeof *c);
    zt_str_printf(&name, "%s/" ZT_CKPT_MANIFEST, path);
    int rc = zt_read_file(name.buf, ZT_CKPT_MANIFEST_BYTES, &text, err);
    if (!rc)
        rc = zt_manifest_parse(name.buf, zt_str_get(&text), text.len, &c->m, err);
    zt_str_release(&name);
    zt_str_release(&text);
    if (rc)
        return rc;
    c->path = zt_arena_strdup(&c->m.arena, path);
    const size_t n = (size_t)c->m.n_files;
    c->fds = zt_arena_alloc(&c->m.arena, n, sizeof *c->fds);
    c->verified = zt_arena_alloc(&c->m.arena, n, sizeof *c->verified);
    c->block = zt_xcalloc(c->m.block_bytes, 1);
    for (size_t i = 0; i < n; i++) {
        c->fds[i] = -1;
        c->verified[i] = zt_arena_alloc(&c->m.arena, c->m.files[i].n_sums, 1);
    }
    rc = check_files(c, err);
    if (rc)
        zt_ckpt_close(c);
    return rc;
}

void zt_ckpt_close(struct zt_ckpt *c)
{
    for (int i = 0; i < c->m.n_files; i++)
        if (c->fds[i] >= 0)
            close(c->fds[i]);
    free(c->block);
    zt_manifest_release(&c->m);
    memset(c, 0, sizeof *c);
}

static int read_at(struct zt_ckpt *c, int file, size_t offset, void *out, size_t n,
                   struct zt_err *err)
{
    struct zt_str path = {0};
    int rc = 0;
    file_path(c, file, &path);
    if (c->fds[file] < 0)
        c->fds[file] = open(path.buf, O_RDONLY | O_CLOEXEC);
    if (c->fds[file] < 0)
        rc = zt_err_errno(err, ZT_EINPUT, "%s", path.buf);
    for (size_t done = 0; done < n && !rc;) {
        ssize_t k = pread(c->fds[file], (char *)out + done, n - done, (off_t)(offset + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            rc = zt_err_errno(err, ZT_EIO, "%s: read", path.buf);
        else if (k == 0)
            rc = zt_err_set(err, ZT_EINPUT, "%s: ends at byte %zu, while it is read", path.buf,
                            offset + done);
        else
            done += (size_t)k;
    }
    zt_str_release(&path);
    return rc;
}

/* Reads block b to `to` and checks it, while the disk brings those that follow. */
static int verify_block(struct zt_ckpt *c, int file, size_t b, void *to, struct zt_err *err)
{
    enum { AHEAD_BYTES = 32 << 20 };
    const struct zt_ckpt_file *f = &c->m.files[file];
    const size_t begin = b * c->m.block_bytes, n = ZT_MIN(c->m.block_bytes, f->bytes - begin);
    int rc = read_at(c, file, begin, to, n, err);
    if (rc)
        return rc;
    posix_fadvise(c->fds[file], (off_t)(begin + n), AHEAD_BYTES, POSIX_FADV_WILLNEED);
    struct zt_ckpt_sum sum = zt_ckpt_sum_of(to, n);
    if (memcmp(&sum, &f->sums[b], sizeof sum) != 0)
        return zt_err_set(err, ZT_EINPUT,
                          "%s/%s: the checksum of bytes %zu to %zu is wrong: the file was damaged",
                          c->path, f->name, begin, begin + n);
    c->verified[file][b] = 1;
    return 0;
}

/* Bytes [offset, offset + n) of one block, where they can be read until the next call. */
static int fetch(struct zt_ckpt *c, int file, size_t offset, size_t n, const unsigned char **out,
                 struct zt_err *err)
{
    const size_t b = offset / c->m.block_bytes;
    if (c->verified[file][b]) {
        *out = c->block;
        return read_at(c, file, offset, c->block, n, err);
    }
    *out = c->block + (offset - b * c->m.block_bytes);
    return verify_block(c, file, b, c->block, err);
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

/* A whole block of whole elements that nobody has read yet and that needs no conversion goes where it is wanted. */
static bool goes_straight(const struct zt_ckpt *c, int file, size_t at, size_t n,
                          const struct sink *s)
{
    return s->dtype == ZT_F32 && s->n_part == 0 && n == c->m.block_bytes &&
           n % sizeof *s->out == 0 && !c->verified[file][at / n];
}

static int read_piece(struct zt_ckpt *c, const struct zt_ckpt_piece *p, int64_t begin, int64_t end,
                      struct sink *s, struct zt_err *err)
{
    const size_t elem = zt_dtype_bytes(s->dtype), block = c->m.block_bytes;
    size_t at = p->offset + (size_t)(begin - p->begin) * elem;
    const size_t stop = p->offset + (size_t)(end - p->begin) * elem;
    while (at < stop) {
        const unsigned char *bytes;
        const size_t n = ZT_MIN(stop, (at / block + 1) * block) - at;
        const bool straight = goes_straight(c, p->file, at, n, s);
        int rc = straight ? verify_block(c, p->file, at / block, s->out, err)
                          : fetch(c, p->file, at, n, &bytes, err);
        if (rc)
            return rc;
        if (straight)
            s->out += n / elem;
        else
            take(s, bytes, n);
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

int zt_ckpt_verify(struct zt_ckpt *c, struct zt_err *err)
{
    int rc = 0;
    for (int f = 0; f < c->m.n_files && !rc; f++)
        for (size_t b = 0; b < c->m.files[f].n_sums && !rc; b++)
            rc = verify_block(c, f, b, c->block, err);
    return rc;
}
