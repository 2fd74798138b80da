#include "train/agree.h"

#include <unistd.h>

/* The highest of what the ranks ask for, field by field. */
static int vote_now(struct zt_engine *e, struct zt_vote_request mine, struct zt_vote *vote,
                    struct zt_err *err)
{
    const struct zt_program *prog = &e->plan->programs[ZT_PROG_AGREE];
    e->request = mine;
    zt_engine_run(e, ZT_PROG_AGREE);
    int rc = zt_engine_drain(e, err);
    for (int i = 0; i < prog->n_ops && !rc; i++)
        if (prog->ops[i].kind == ZT_OP_RESULT)
            memcpy(vote, zt_engine_operand(e, prog, &prog->ops[i], ZT_R_RESULT, 0), sizeof *vote);
    e->request = (struct zt_vote_request){0};
    return rc;
}

int zt_run_agree(struct zt_engine *e, enum zt_saving mine, struct zt_vote *vote, struct zt_err *err)
{
    const int32_t lowest = e->plan->world - e->plan->rank;
    return vote_now(e,
                    (struct zt_vote_request){.save = mine == ZT_SAVING_FAILED ? lowest : 0,
                                             .saving = (int32_t)mine},
                    vote, err);
}

int zt_run_highest(struct zt_engine *e, int64_t mine, int64_t *highest, struct zt_err *err)
{
    enum { BITS = 31 }; /* that a vote carries */
    const int32_t upper = (int32_t)(mine >> BITS), lower = (int32_t)(mine & INT32_MAX);
    struct zt_vote v = {0};
    ZT_ASSERT(mine >= 0 && mine >> 2 * BITS == 0);
    int rc = vote_now(e, (struct zt_vote_request){.save = upper}, &v, err);
    if (rc)
        return rc;
    *highest = (int64_t)v.save << BITS;
    rc = vote_now(e, (struct zt_vote_request){.save = v.save == upper ? lower : 0}, &v, err);
    *highest |= rc ? 0 : v.save;
    return rc;
}

/* ---- the same files ---- */

struct zt_rank_name zt_rank_name(int rank)
{
    struct zt_rank_name name;
    char host[256] = {0};
    gethostname(host, sizeof host - 1);
    snprintf(name.text, sizeof name.text, "rank %d on %s", rank, host);
    return name;
}

static int tell(struct zt_engine *e, int rank, int64_t mine, int64_t *all, struct zt_err *err)
{
    return zt_run_highest(e, e->plan->rank == rank ? mine : 0, all, err);
}

/* The first of n marks that `rank` and rank 0 have and that is not the same. */
static int find_other(struct zt_engine *e, const struct zt_marks *mine, int rank, int64_t n,
                      int64_t *at, struct zt_err *err)
{
    int64_t end = n; /* alike before *at, not before the end */
    int rc = 0;
    *at = 0;
    while (!rc && end - *at > 1) {
        const int64_t mid = *at + (end - *at) / 2;
        const int64_t digest = zt_marks_digest(mine, ZT_MIN((size_t)mid, mine->n));
        int64_t first, other = 0;
        rc = tell(e, 0, digest, &first, err);
        if (!rc)
            rc = tell(e, rank, digest != first, &other, err);
        if (other)
            end = mid;
        else
            *at = mid;
    }
    return rc;
}

/* What differs: the number of marks, or the first one that is not what rank 0 has there. */
struct difference {
    int64_t n_first, n_other; /* marks: of rank 0, of the other */
    int64_t at, kind, n;      /* of rank 0's mark there */
};

/* All ranks find out. */
static int find_difference(struct zt_engine *e, const struct zt_marks *mine, int rank,
                           struct difference *d, struct zt_err *err)
{
    memset(d, 0, sizeof *d);
    int rc = tell(e, 0, (int64_t)mine->n, &d->n_first, err);
    if (!rc)
        rc = tell(e, rank, (int64_t)mine->n, &d->n_other, err);
    if (rc || d->n_first != d->n_other)
        return rc;
    rc = find_other(e, mine, rank, d->n_first, &d->at, err);
    const bool first = !rc && e->plan->rank == 0;
    if (!rc)
        rc = tell(e, 0, first ? zt_mark_word(mine->items[d->at].kind) : 0, &d->kind, err);
    if (!rc)
        rc = tell(e, 0, first ? mine->items[d->at].n : 0, &d->n, err);
    return rc;
}

static int refuse(const char *what, const struct zt_marks *mine, const struct difference *d,
                  struct zt_err *err)
{
    const struct zt_mark *m = &mine->items[d->at];
    if (d->n_first != d->n_other)
        return zt_err_set(err, ZT_EINPUT, "%s: %lld file%s, and rank 0 has %lld", what,
                          (long long)d->n_other, d->n_other == 1 ? "" : "s", (long long)d->n_first);
    if (zt_mark_word(m->kind) != d->kind)
        return zt_err_set(err, ZT_EINPUT, "%s: %s is %s, and rank 0's is something else", what,
                          m->name, m->kind);
    if (m->n != d->n)
        return zt_err_set(err, ZT_EINPUT, "%s: %s gives %lld %s, and rank 0's %lld", what, m->name,
                          (long long)m->n, m->unit, (long long)d->n);
    return zt_err_set(err, ZT_EINPUT, "%s: %s gives %lld %s as rank 0's does, but others", what,
                      m->name, (long long)m->n, m->unit);
}

int zt_run_check_same(struct zt_engine *e, const char *what, struct zt_marks *mine,
                      struct zt_err *err)
{
    struct difference d;
    struct zt_vote vote = {0};
    int64_t first;
    if (e->plan->world == 1)
        return 0;
    zt_marks_read(mine);
    const int64_t digest = zt_marks_digest(mine, mine->n);
    int rc = tell(e, 0, digest, &first, err);
    if (!rc)
        rc = zt_run_agree(e, digest == first ? ZT_SAVING_DONE : ZT_SAVING_FAILED, &vote, err);
    if (rc || vote.saving == ZT_SAVING_DONE)
        return rc;
    const int rank = e->plan->world - vote.save;
    rc = find_difference(e, mine, rank, &d, err);
    if (rc)
        return rc;
    if (e->plan->rank != rank) {
        *err = (struct zt_err){.code = ZT_EPEER};
        return ZT_EPEER;
    }
    (void)!refuse(what, mine, &d, err);
    (void)!zt_err_wrap(err, "%s", zt_rank_name(rank).text);
    const size_t len = strlen(err->msg);
    snprintf(err->msg + len, sizeof err->msg - len, "; copy the same files to all hosts");
    return err->code;
}
