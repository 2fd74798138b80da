#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * What can be checked without an order: buffers lie in their arena and share no byte with a
 * persistent one, accesses lie in their buffer, operands of one op do not alias, waits refer to ops
 * that exist and come before, collectives declare what they send and receive.
 */

static bool overlap(size_t a, size_t a_end, size_t b, size_t b_end)
{
    return a < b_end && b < a_end;
}

static int by_place(const void *a, const void *b)
{
    const struct zt_buf *x = *(const struct zt_buf *const *)a;
    const struct zt_buf *y = *(const struct zt_buf *const *)b;
    if (x->arena != y->arena)
        return x->arena < y->arena ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static bool *used_buffers(const struct zt_plan *p, enum zt_program_kind k)
{
    const struct zt_program *prog = &p->programs[k];
    bool *used = zt_xcalloc(p->n_bufs, sizeof *used);
    for (int i = 0; i < prog->n_accesses; i++)
        used[prog->accesses[i].buf] = true;
    return used;
}

static int check_place(const struct zt_plan *p, const struct zt_buf *b, struct zt_err *err)
{
    if (b->arena >= ZT_N_ARENAS)
        return zt_err_set(err, ZT_EVERIFY, "buffer '%s': no arena %d", b->name, (int)b->arena);
    size_t peak = p->ledger.peak[b->arena];
    size_t align = b->arena == ZT_AR_DISK ? ZT_DISK_BUF_ALIGN : ZT_BUF_ALIGN;
    if (!b->bytes || b->bytes % align || b->offset % align)
        return zt_err_set(err, ZT_EVERIFY, "buffer '%s': offset %zu or size %zu is not aligned",
                          b->name, b->offset, b->bytes);
    if (b->bytes > peak || b->offset > peak - b->bytes)
        return zt_err_set(err, ZT_EVERIFY, "buffer '%s' at %zu, %zu bytes, passes the arena's %zu",
                          b->name, b->offset, b->bytes, peak);
    return 0;
}

/* Persistent buffers share no byte with each other nor with a transient of the program. */
int zt_verify_layout(const struct zt_plan *p, enum zt_program_kind k, struct zt_err *err)
{
    const struct zt_buf **sorted = zt_xcalloc(p->n_bufs, sizeof(void *));
    bool *used = used_buffers(p, k);
    int n = 0, rc = 0;
    for (int b = 0; b < p->n_bufs && !rc; b++) {
        if (p->bufs[b].program >= 0 && !(zt_is_transient(&p->bufs[b], k) && used[b]))
            continue;
        sorted[n++] = &p->bufs[b];
        rc = check_place(p, &p->bufs[b], err);
    }
    if (rc)
        goto out;
    qsort(sorted, n, sizeof(void *), by_place);
    /* Walk by offset; of all buffers passed, remember the end of the persistent and of any. */
    const struct zt_buf *last = NULL, *last_persistent = NULL;
    for (int i = 0; i < n; i++) {
        const struct zt_buf *b = sorted[i], *clash = b->program < 0 ? last : last_persistent;
        if (clash && clash->arena == b->arena && b->offset < clash->offset + clash->bytes) {
            rc = zt_err_set(err, ZT_EVERIFY,
                            "buffers '%s' [%zu, %zu) and '%s' [%zu, %zu) overlap, and %s is "
                            "persistent",
                            clash->name, clash->offset, clash->offset + clash->bytes, b->name,
                            b->offset, b->offset + b->bytes,
                            b->program < 0 ? "the latter" : "the former");
            goto out;
        }
        if (!last || last->arena != b->arena || last->offset + last->bytes < b->offset + b->bytes)
            last = b;
        if (b->program < 0)
            last_persistent = b;
    }
out:
    free(used);
    free(sorted);
    return rc;
}

/* Two operands of an op share bytes only when both read the same buffer. */
static int check_pair(const struct zt_plan *p, enum zt_program_kind k, int i,
                      const struct zt_access *a, const struct zt_access *b, struct zt_err *err)
{
    const struct zt_buf *x = &p->bufs[a->buf], *y = &p->bufs[b->buf];
    if (x->arena != y->arena || !overlap(x->offset + a->begin, x->offset + a->end,
                                         y->offset + b->begin, y->offset + b->end))
        return 0;
    if (a->buf == b->buf && !((a->mode | b->mode) & ZT_WRITE))
        return 0;
    char text[160];
    return zt_err_set(err, ZT_EVERIFY,
                      "%s: operands [%zu, %zu) of '%s' and [%zu, %zu) of '%s' share bytes",
                      zt_op_text(p, k, i, text, sizeof text), a->begin, a->end, x->name, b->begin,
                      b->end, y->name);
}

static int check_access(const struct zt_plan *p, enum zt_program_kind k, int i,
                        const struct zt_access *a, struct zt_err *err)
{
    const struct zt_buf *b = a->buf >= 0 && a->buf < p->n_bufs ? &p->bufs[a->buf] : NULL;
    bool own = b && (b->program < 0 || zt_is_transient(b, k));
    bool inside = b && a->begin < a->end && a->end <= b->bytes;
    enum zt_op_kind kind = p->programs[k].ops[i].kind;
    bool reaches = b && (b->arena != ZT_AR_DISK || kind == ZT_OP_READ || kind == ZT_OP_WRITE);
    if (own && inside && reaches && a->mode >= ZT_READ && a->mode <= (ZT_READ | ZT_WRITE) &&
        a->role < ZT_N_ROLES)
        return 0;
    char text[160];
    zt_op_text(p, k, i, text, sizeof text);
    if (!b)
        return zt_err_set(err, ZT_EVERIFY, "%s: no buffer %d", text, a->buf);
    if (!own)
        return zt_err_set(err, ZT_EVERIFY, "%s: '%s' belongs to another program", text, b->name);
    if (!reaches)
        return zt_err_set(err, ZT_EVERIFY,
                          "%s: '%s' lies on the disk, which only READ and WRITE reach", text,
                          b->name);
    if (!inside)
        return zt_err_set(err, ZT_EVERIFY, "%s: range [%zu, %zu) of '%s', which has %zu bytes",
                          text, a->begin, a->end, b->name, b->bytes);
    return zt_err_set(err, ZT_EVERIFY, "%s: no mode %d or role %d of '%s'", text, a->mode, a->role,
                      b->name);
}

static int check_wait(const struct zt_plan *p, enum zt_program_kind k, int i, struct zt_wait w,
                      struct zt_err *err)
{
    const struct zt_program *prog = &p->programs[k];
    if (w.op >= 0 && w.op < prog->n_ops &&
        (w.delta == 0 ? w.op < i : w.delta == 1 && prog->repeats))
        return 0;
    char text[160];
    return zt_err_set(err, ZT_EVERIFY, "%s waits for op %d, %d runs before, which cannot be",
                      zt_op_text(p, k, i, text, sizeof text), w.op, w.delta);
}

/* A collective declares at least its own slice on both sides. */
static int check_collective(const struct zt_plan *p, enum zt_program_kind k, int i,
                            struct zt_err *err)
{
    const struct zt_op *op = &p->programs[k].ops[i];
    const struct zt_access *a = zt_op_accesses(&p->programs[k], i);
    size_t bytes = (size_t)op->count * zt_dtype_bytes(op->dtype);
    bool sends = op->kind == ZT_OP_RECV, receives = op->kind == ZT_OP_SEND;
    for (int j = 0; j < op->n_accesses; j++) {
        bool long_enough = a[j].end - a[j].begin >= bytes;
        sends |= long_enough && (a[j].mode & ZT_READ);
        receives |= long_enough && (a[j].mode & ZT_WRITE);
    }
    if (sends && receives)
        return 0;
    char text[160];
    return zt_err_set(err, ZT_EVERIFY, "%s: no operand that it %s, %zu bytes or more, is declared",
                      zt_op_text(p, k, i, text, sizeof text), sends ? "receives" : "sends", bytes);
}

int zt_verify_ops(const struct zt_plan *p, enum zt_program_kind k, struct zt_err *err)
{
    const struct zt_program *prog = &p->programs[k];
    for (int i = 0; i < prog->n_ops; i++) {
        const struct zt_op *op = &prog->ops[i];
        if (op->stream >= ZT_N_STREAMS || op->n_accesses < 0 || op->first_access < 0 ||
            op->first_access > prog->n_accesses - op->n_accesses || op->n_waits < 0 ||
            op->first_wait < 0 || op->first_wait > prog->n_waits - op->n_waits)
            return zt_err_set(err, ZT_EVERIFY, "op %d of %s: bad stream, accesses or waits", i,
                              zt_program_name(k));
        const struct zt_access *a = zt_op_accesses(prog, i);
        for (int j = 0; j < op->n_accesses; j++)
            if (check_access(p, k, i, &a[j], err))
                return err->code;
        for (int j = 0; j < op->n_accesses; j++)
            for (int l = 0; l < j; l++)
                if (check_pair(p, k, i, &a[l], &a[j], err))
                    return err->code;
        for (int j = 0; j < op->n_waits; j++)
            if (check_wait(p, k, i, prog->waits[op->first_wait + j], err))
                return err->code;
        if (op->group && op->count > 0 && check_collective(p, k, i, err))
            return err->code;
    }
    return 0;
}
