#include "train/times.h"

enum { NO_PART = -1 };

static int part_of(const struct zt_program *prog, const struct zt_op *op)
{
    switch (op->kind) {
    case ZT_OP_FORWARD:
        return ZT_PART_FORWARD;
    case ZT_OP_RECOMPUTE:
    case ZT_OP_BACKWARD:
    case ZT_OP_CAST:
        return ZT_PART_BACKWARD;
    case ZT_OP_UPDATE:
    case ZT_OP_STEP:
        return ZT_PART_UPDATE;
    case ZT_OP_REDUCE:
        return ZT_PART_REDUCE;
    case ZT_OP_GATHER:
        return ZT_PART_GATHER;
    case ZT_OP_ALLGATHER: /* of parameters; or of gradients, the second half of an all-reduce */
        return zt_op_operand(prog, op, ZT_R_PARAM, 0) ? ZT_PART_GATHER : ZT_PART_REDUCE;
    default:
        return NO_PART;
    }
}

/* An op begins (+1) or ends (-1). */
struct edge {
    int64_t at_ns;
    int part, step;
};

static int by_time(const void *a, const void *b)
{
    int64_t x = ((const struct edge *)a)->at_ns, y = ((const struct edge *)b)->at_ns;
    return (x > y) - (x < y);
}

/* The edges of a run's ops inside [begin, end). */
static size_t add_edges(const struct zt_program *prog, const struct zt_op_time *times,
                        int64_t begin_ns, int64_t end_ns, struct edge *edges, size_t n)
{
    for (int i = 0; i < prog->n_ops; i++) {
        int part = part_of(prog, &prog->ops[i]);
        int64_t lo = ZT_MAX(times[i].begin_ns, begin_ns), hi = ZT_MIN(times[i].end_ns, end_ns);
        if (part == NO_PART || lo >= hi)
            continue;
        edges[n++] = (struct edge){lo, part, 1};
        edges[n++] = (struct edge){hi, part, -1};
    }
    return n;
}

/* Each moment goes to the first part that runs then. */
static void sweep(struct edge *edges, size_t n, int64_t begin_ns, int64_t end_ns,
                  struct zt_breakdown *out)
{
    int running[ZT_N_PARTS] = {0};
    int64_t at = begin_ns;
    qsort(edges, n, sizeof *edges, by_time);
    for (size_t i = 0; i <= n; i++) {
        int64_t next = i < n ? edges[i].at_ns : end_ns;
        int part = 0;
        while (part < ZT_PART_WAIT && !running[part])
            part++;
        out->exposed_ms[part] += (double)(next - at) * 1e-6;
        at = next;
        if (i < n)
            running[edges[i].part] += edges[i].step;
    }
    out->busy_ms[ZT_PART_WAIT] = out->exposed_ms[ZT_PART_WAIT];
}

int64_t zt_times_breakdown(const struct zt_program *prog, const struct zt_op_time *before,
                           const struct zt_op_time *times, int64_t begin_ns,
                           struct zt_breakdown *out)
{
    int64_t first_ns = INT64_MAX, end_ns = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < prog->n_ops; i++) {
        const struct zt_op *op = &prog->ops[i];
        int part = part_of(prog, op);
        first_ns = ZT_MIN(first_ns, times[i].begin_ns);
        if (op->stream == ZT_ST_COMPUTE)
            end_ns = ZT_MAX(end_ns, times[i].end_ns);
        if (part != NO_PART)
            out->busy_ms[part] += (double)(times[i].end_ns - times[i].begin_ns) * 1e-6;
    }
    if (!before)
        begin_ns = first_ns;
    struct edge *edges = zt_xcalloc(4 * (size_t)prog->n_ops, sizeof *edges);
    size_t n = add_edges(prog, times, begin_ns, end_ns, edges, 0);
    if (before)
        n = add_edges(prog, before, begin_ns, end_ns, edges, n);
    sweep(edges, n, begin_ns, end_ns, out);
    free(edges);
    out->total_ms = (double)(end_ns - begin_ns) * 1e-6;
    return end_ns;
}

void zt_breakdown_add(struct zt_breakdown *sum, const struct zt_breakdown *b)
{
    for (int p = 0; p < ZT_N_PARTS; p++) {
        sum->busy_ms[p] += b->busy_ms[p];
        sum->exposed_ms[p] += b->exposed_ms[p];
    }
    sum->total_ms += b->total_ms;
}

void zt_breakdown_scale(struct zt_breakdown *b, double factor)
{
    for (int p = 0; p < ZT_N_PARTS; p++) {
        b->busy_ms[p] *= factor;
        b->exposed_ms[p] *= factor;
    }
    b->total_ms *= factor;
}
