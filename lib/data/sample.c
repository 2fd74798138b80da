#include "data/data.h"

#include "base/rng.h"
#include "data/dataset_internal.h"
#include "data/megatron.h"
#include "dev/dev.h"

/* What is known of a token of a row besides its id. */
enum {
    BEGINS = 1, /* a document: attention does not reach back, and nobody predicts it */
    MASKED = 2, /* no target */
};

/* A row under way: its seq_len + 1 tokens, the last of which is only a target. */
struct row {
    const struct zt_sample *out;
    int64_t n;       /* seq_len */
    int32_t last;    /* token n */
    int32_t n_flags; /* of token n; those of the others stand in out->seg_start until the end */
};

static int32_t *flags_of(struct row *row, int64_t t)
{
    return t < row->n ? &row->out->seg_start[t] : &row->n_flags;
}

static int32_t token_of(const struct row *row, int64_t t)
{
    return t < row->n ? row->out->tokens[t] : row->last;
}

/* The part that sample `i` (packed: token `i`) lies in. */
static size_t find_part(const struct zt_dataset *d, int64_t i)
{
    size_t lo = 0, hi = d->n_parts;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (d->parts[mid].first <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static int read_mask(const struct zt_data_part *p, int64_t at, int64_t t, int64_t n,
                     struct row *row, struct zt_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        unsigned char counted = p->mask.data[at + i];
        if (counted > 1)
            return zt_err_set(err, ZT_EINPUT,
                              "%s: byte %lld is %d; a mask holds 0 (no target) and 1 (target) only",
                              p->mask_name, (long long)(at + i), counted);
        if (!counted)
            *flags_of(row, t + i) |= MASKED;
    }
    return 0;
}

/* Tokens [at, at + n) of a file -> tokens [t, t + n) of the row. */
static int read_run(const struct zt_dataset *d, const struct zt_data_part *p, int64_t at, int64_t t,
                    int64_t n, struct row *row, struct zt_err *err)
{
    const struct zt_dataset_opts *o = &d->opts;
    int64_t inside = ZT_MIN(n, row->n - t);
    int rc = zt_token_file_read(&p->file, at, inside, o->vocab_size, row->out->tokens + t, err);
    if (!rc && inside < n)
        rc = zt_token_file_read(&p->file, at + inside, 1, o->vocab_size, &row->last, err);
    for (int64_t i = 0; i < n; i++)
        *flags_of(row, t + i) = 0;
    if (!rc && p->mask_name)
        rc = read_mask(p, at, t, n, row, err);
    if (rc || !o->packed)
        return rc;
    if (at == p->begin)
        *flags_of(row, t) |= BEGINS;
    if (p->file.n_docs)
        for (int64_t doc = at; (doc = zt_megatron_next_document(&p->file, doc)) < at + n;)
            *flags_of(row, t + doc - at) |= BEGINS;
    for (int64_t i = t; i < t + n - 1; i++)
        if (token_of(row, i) == o->separator)
            *flags_of(row, i + 1) |= BEGINS;
    return 0;
}

/* Tokens and flags -> targets, positions, segment starts. */
static void finish_row(struct row *row)
{
    const struct zt_sample *out = row->out;
    int32_t start = 0;
    for (int64_t t = 0; t < row->n; t++) {
        if (t > 0 && (*flags_of(row, t) & BEGINS))
            start = (int32_t)t;
        out->targets[t] = *flags_of(row, t + 1) ? ZT_IGNORE_TARGET : token_of(row, t + 1);
        out->positions[t] = (int32_t)t - start;
        out->seg_start[t] = start;
    }
}

int zt_dataset_get(const struct zt_dataset *d, int64_t pos, const struct zt_sample *out,
                   struct zt_err *err)
{
    ZT_ASSERT_CMP(pos, >=, 0);
    if (d->sources) {
        int source;
        zt_blend_at(&d->blend, pos, &source, &pos);
        return zt_dataset_get(d->sources[source], pos, out, err);
    }
    struct row row = {.out = out, .n = d->opts.seq_len};
    int64_t i = pos % d->n_samples;
    if (d->opts.shuffle)
        i = zt_permute(d->opts.seed, (uint64_t)(pos / d->n_samples), d->n_samples, i);
    int64_t first = d->opts.packed ? i * row.n : i; /* in the unit of part.first */
    const struct zt_data_part *p = &d->parts[find_part(d, first)];
    int64_t skip = (first - p->first) * (d->opts.packed ? 1 : row.n);
    for (int64_t t = 0; t <= row.n; p++, skip = 0) {
        int64_t n = ZT_MIN(p->n - skip, row.n + 1 - t);
        int rc = read_run(d, p, p->begin + skip, t, n, &row, err);
        if (rc)
            return rc;
        t += n;
    }
    finish_row(&row);
    return 0;
}
