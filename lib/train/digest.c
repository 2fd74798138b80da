#include "train/run.h"

/*
 * 64 elements (a chunk) never cross a tensor's or a slice's border, so hashing chunks with their
 * place and combining them by XOR gives the same digest for every stage and rank count.
 */

static uint64_t mix(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 33;
}

static uint64_t hash_chunk(const unsigned char *p, size_t bytes, uint64_t place)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ place, any = 0;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, sizeof word);
        any |= word;
        h = mix(h ^ word);
    }
    return any ? h : 0; /* zeros count for nothing: padding depends on the rank count */
}

/* XORs the hash of this rank's slice of a unit into *digest. */
static int hash_slice(struct zt_engine *e, int buf, uint64_t *digest, struct zt_err *err)
{
    const struct zt_buf *b = &e->plan->bufs[buf];
    const struct zt_unit *u = &e->plan->units[b->unit];
    size_t elem = zt_dtype_bytes(b->dtype);
    const unsigned char *at = zt_engine_buf(e, buf), *p;
    size_t bytes = (size_t)u->slice_elems * elem, chunk = ZT_ELEM_ALIGN * elem;
    int64_t first = e->plan->shard_rank * u->slice_elems;
    if (b->used == (size_t)u->padded_elems * elem)
        at += (size_t)first * elem;
    for (size_t done = 0, n; done < bytes; done += n) {
        n = zt_view_bytes(done, bytes);
        int rc = zt_engine_view(e, at + done, n, &p, err);
        if (rc)
            return rc;
        for (size_t i = 0; i < n; i += chunk) {
            uint64_t elems = (uint64_t)first + (done + i) / elem;
            uint64_t place = (uint64_t)b->cat << 56 ^ (uint64_t)b->unit << 40 ^ elems;
            *digest ^= hash_chunk(p + i, chunk, mix(place));
        }
    }
    return 0;
}

/* Where fp32 parameters have a master, in another arena, it is a copy of them. */
static bool is_state(const struct zt_plan *p, const struct zt_buf *b)
{
    return b->program < 0 &&
           (b->cat == ZT_CAT_PARAM || b->cat == ZT_CAT_OPT_M || b->cat == ZT_CAT_OPT_V ||
            (b->cat == ZT_CAT_MASTER && p->cfg.dtype != ZT_F32));
}

int zt_run_digest(struct zt_engine *e, uint64_t *digest, struct zt_err *err)
{
    int rc = 0;
    *digest = 0;
    for (int i = 0; i < e->plan->n_bufs && !rc; i++)
        if (is_state(e->plan, &e->plan->bufs[i]))
            rc = hash_slice(e, i, digest, err);
    return rc;
}
