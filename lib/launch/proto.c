#include "launch/proto.h"

#include "base/arena.h"

enum { MARKER_LEN = sizeof ZT_PROTO_MARKER - 1 };

static const unsigned char magic[4] = {'Z', 'T', 'F', '1'};

static void store_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

static uint32_t load_u32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

size_t zt_frame_begin(struct zt_str *out, enum zt_frame_type type)
{
    unsigned char header[ZT_FRAME_HEADER] = {0};
    memcpy(header, magic, sizeof magic);
    header[4] = ZT_PROTO_VERSION;
    header[6] = (unsigned char)type;
    size_t begun = out->len;
    zt_str_add(out, header, sizeof header);
    return begun;
}

void zt_frame_end(struct zt_str *out, size_t begun)
{
    size_t n = out->len - begun - ZT_FRAME_HEADER;
    ZT_ASSERT_CMP(n, <=, ZT_FRAME_MAX);
    store_u32((unsigned char *)out->buf + begun + 12, (uint32_t)n);
}

void zt_frame_put(struct zt_str *out, enum zt_frame_type type, const void *bytes, size_t n)
{
    size_t begun = zt_frame_begin(out, type);
    zt_str_add(out, bytes, n);
    zt_frame_end(out, begun);
}

void zt_put_u32(struct zt_str *out, uint32_t v)
{
    unsigned char b[4];
    store_u32(b, v);
    zt_str_add(out, b, sizeof b);
}

void zt_put_blob(struct zt_str *out, const void *bytes, size_t n)
{
    ZT_ASSERT_CMP(n, <=, ZT_FRAME_MAX);
    zt_put_u32(out, (uint32_t)n);
    zt_str_add(out, bytes, n);
}

void zt_frame_feed(struct zt_frame_reader *r, const void *bytes, size_t n)
{
    if (r->pos) {
        r->in.len -= r->pos;
        memmove(r->in.buf, r->in.buf + r->pos, r->in.len + 1);
        r->pos = 0;
    }
    zt_str_add(&r->in, bytes, n);
}

/* Skip n bytes that are not ours, remembering the last of them. */
static void skip_noise(struct zt_frame_reader *r, size_t n)
{
    const char *p = r->in.buf + r->pos;
    size_t keep = ZT_MIN(n, sizeof r->noise);
    size_t old = ZT_MIN(r->noise_len, sizeof r->noise - keep);
    memmove(r->noise, r->noise + r->noise_len - old, old);
    memcpy(r->noise + old, p + n - keep, keep);
    r->noise_len = old + keep;
    r->n_noise += n;
    r->pos += n;
}

/* 1 when the marker is behind us, 0 when more bytes are needed. */
static int find_marker(struct zt_frame_reader *r, struct zt_err *err)
{
    if (r->synced)
        return 1;
    size_t have = r->in.len - r->pos;
    const char *start = zt_str_get(&r->in) + r->pos;
    const char *at = have ? memmem(start, have, ZT_PROTO_MARKER, MARKER_LEN) : NULL;
    if (at) {
        skip_noise(r, (size_t)(at - start));
        r->pos += MARKER_LEN;
        r->synced = true;
    } else if (have >= MARKER_LEN) {
        skip_noise(r, have - (MARKER_LEN - 1)); /* the rest may be the start of the marker */
    }
    if (r->n_noise > ZT_PROTO_NOISE_MAX)
        return zt_err_set(err, ZT_EPROTO,
                          "no zerotrain answers: more than %d bytes of other output came first",
                          ZT_PROTO_NOISE_MAX);
    return r->synced;
}

static int check_header(const unsigned char *h, struct zt_err *err)
{
    unsigned version = h[4] | (unsigned)h[5] << 8;
    if (memcmp(h, magic, sizeof magic) != 0)
        return zt_err_set(err, ZT_EPROTO,
                          "not a frame of zerotrain: its first bytes are %02x %02x %02x %02x", h[0],
                          h[1], h[2], h[3]);
    if (version != ZT_PROTO_VERSION)
        return zt_err_set(err, ZT_EPROTO,
                          "the other end speaks protocol version %u, this zerotrain version %d; "
                          "install the same zerotrain on every host",
                          version, ZT_PROTO_VERSION);
    if (load_u32(h + 8) != 0)
        return zt_err_set(err, ZT_EPROTO, "frame with unknown flags %#x", load_u32(h + 8));
    if (load_u32(h + 12) > ZT_FRAME_MAX)
        return zt_err_set(err, ZT_EPROTO, "frame of %u bytes; the limit is %d", load_u32(h + 12),
                          ZT_FRAME_MAX);
    return 0;
}

int zt_frame_next(struct zt_frame_reader *r, struct zt_frame *out, struct zt_err *err)
{
    int rc = find_marker(r, err);
    if (rc <= 0)
        return rc;
    size_t have = r->in.len - r->pos;
    if (have < ZT_FRAME_HEADER)
        return 0;
    const unsigned char *h = (const unsigned char *)r->in.buf + r->pos;
    rc = check_header(h, err);
    if (rc)
        return rc;
    size_t len = load_u32(h + 12);
    if (have - ZT_FRAME_HEADER < len)
        return 0;
    out->type = (uint16_t)(h[6] | h[7] << 8);
    out->data = h + ZT_FRAME_HEADER;
    out->len = len;
    r->pos += ZT_FRAME_HEADER + len;
    return 1;
}

void zt_frame_noise(const struct zt_frame_reader *r, struct zt_str *out)
{
    struct zt_str all = {0};
    zt_str_add(&all, r->noise, r->noise_len);
    if (!r->synced && r->in.len > r->pos)
        zt_str_add(&all, r->in.buf + r->pos, ZT_MIN(r->in.len - r->pos, ZT_PROTO_NOISE_KEPT));
    for (size_t i = 0; i < all.len; i++) {
        unsigned char ch = (unsigned char)all.buf[i];
        zt_str_add(out, ch < ' ' || ch == 0x7f ? " " : (const char *)&ch, 1);
    }
    zt_str_release(&all);
}

void zt_frame_reader_release(struct zt_frame_reader *r)
{
    zt_str_release(&r->in);
    memset(r, 0, sizeof *r);
}

const unsigned char *zt_get_bytes(struct zt_cursor *c, size_t n)
{
    if (c->bad || n > c->left) {
        c->bad = true;
        return NULL;
    }
    const unsigned char *p = c->p;
    c->p += n;
    c->left -= n;
    return p;
}

uint32_t zt_get_u32(struct zt_cursor *c)
{
    const unsigned char *p = zt_get_bytes(c, 4);
    return p ? load_u32(p) : 0;
}

const unsigned char *zt_get_blob(struct zt_cursor *c, size_t *n)
{
    *n = zt_get_u32(c);
    const unsigned char *p = zt_get_bytes(c, *n);
    if (!p)
        *n = 0;
    return p;
}
