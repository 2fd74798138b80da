#include "coll/shm.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"

/* A wake-up lost in zt_shm_abort() costs this much; peers wake a waiter themselves. */
enum { SLEEP_NS = 100 * 1000 * 1000 };

/* Epochs wrap around; two that are compared are never 2^31 apart. */
static inline bool reached(uint32_t epoch, uint32_t target)
{
    return (int32_t)(epoch - target) >= 0;
}

void zt_shm_gate_set(struct shm_gate *g, uint32_t epoch)
{
    /* Sequentially consistent here and in the wait: either we see the sleeper, or it the epoch. */
    atomic_store(&g->epoch, epoch);
    if (atomic_load(&g->sleepers))
        syscall(SYS_futex, &g->epoch, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool zt_shm_gate_wait(struct shm_coll *c, struct shm_gate *g, uint32_t epoch)
{
    for (int i = 0; i < c->n_spins; i++) {
        if (reached(atomic_load_explicit(&g->epoch, memory_order_acquire), epoch))
            return true;
        zt_cpu_relax();
    }
    const struct timespec limit = {.tv_nsec = SLEEP_NS};
    atomic_fetch_add(&g->sleepers, 1);
    for (;;) {
        uint32_t now = atomic_load(&g->epoch);
        if (reached(now, epoch) || atomic_load(&c->ctl->aborted))
            break;
        syscall(SYS_futex, &g->epoch, FUTEX_WAIT, now, &limit, NULL, 0);
    }
    atomic_fetch_sub(&g->sleepers, 1);
    /* Looked at after the abort word: a peer that arrived and then aborted has arrived. */
    return reached(atomic_load(&g->epoch), epoch);
}

void zt_shm_op_init(struct shm_op *op, const struct shm_task *task, struct zt_err *err)
{
    const struct zt_coll *base = &task->c->base;
    /* Host calls are made by the world, in slots that no stream uses. */
    zt_axes group = task->call.kind >= ZT_BARRIER ? ZT_GROUP_WORLD : task->call.group;
    int first = task->c->first, end = first + task->c->n_ranks;
    op->c = task->c;
    op->task = task;
    op->call = &task->call;
    op->err = err;
    op->who = base->rank;
    op->group_n = zt_group_size(&base->mesh, group);
    op->peer = zt_group_member(&base->mesh, group, base->rank, task->call.root);
    op->send_bytes = zt_call_send_bytes(&task->call, op->group_n);
    op->recv_bytes = zt_call_recv_bytes(&task->call, op->group_n);
    op->n = 0;
    for (int i = 0; i < op->group_n; i++) {
        int rank = zt_group_member(&base->mesh, group, base->rank, i);
        if (rank == base->rank)
            op->me = op->n;
        if (rank >= first && rank < end)
            op->ranks[op->n++] = rank;
    }
}

struct shm_slot *zt_shm_slot_of(const struct shm_op *op, int rank)
{
    return zt_shm_slot(op->c->ctl, op->call->group, rank - op->c->first);
}

const char *zt_shm_describe(char *buf, size_t buf_bytes, const struct shm_call *call)
{
    int n = snprintf(buf, buf_bytes, "%s #%llu", zt_call_name(call->kind),
                     (unsigned long long)call->seq);
    if (call->kind == ZT_NO_CALL || call->kind >= ZT_BARRIER || n < 0 || (size_t)n >= buf_bytes)
        return buf;
    buf_bytes -= (size_t)n;
    char *at = buf + n;
    if (call->kind == ZT_REDUCE_SCATTER)
        snprintf(at, buf_bytes, " of %lld elements, %s to %s", (long long)call->count,
                 zt_dtype_name(call->dtype), zt_dtype_name(call->recv_dtype));
    else if (call->kind == ZT_BROADCAST)
        snprintf(at, buf_bytes, " of %lld elements, %s, from member %d", (long long)call->count,
                 zt_dtype_name(call->dtype), call->root);
    else
        snprintf(at, buf_bytes, " of %lld elements, %s%s", (long long)call->count,
                 zt_dtype_name(call->dtype), call->redop == ZT_MAX ? ", maximum" : "");
    return buf;
}

int zt_shm_aborted(const struct shm_op *op, const char *where)
{
    char text[160];
    struct shm_call call;
    zt_shm_call_of(&call, op);
    return zt_err_set(op->err, ZT_EPEER, "%s: aborted %s",
                      zt_shm_describe(text, sizeof text, &call), where);
}

int zt_shm_mismatch(const struct shm_op *op, int rank, const struct shm_call *call, int other_rank,
                    const struct shm_call *other)
{
    char a[160], b[160];
    return zt_err_set(op->err, ZT_EPROTO,
                      "rank %d calls %s over the axes %#x where rank %d calls %s over %#x; all "
                      "members of a group must make the same calls in the same order",
                      rank, zt_shm_describe(a, sizeof a, call), call->group, other_rank,
                      zt_shm_describe(b, sizeof b, other), other->group);
}

bool zt_shm_source(const struct shm_op *op, int rank, const struct shm_call *call, size_t bytes,
                   const void **out)
{
    static const char nothing; /* an empty buffer may be anywhere */
    char text[160];
    *out = bytes ? zt_shm_at(op->c, rank, call->send, bytes) : &nothing;
    if (!*out)
        zt_err_set(op->err, ZT_EPROTO,
                   "%s: the send buffer of rank %d does not lie in memory from alloc_shared()",
                   zt_shm_describe(text, sizeof text, call), rank);
    return *out;
}

/*
 * What the one who asks other nodes has found. Another node, which has found it too, may end the job before
 * he has said so: then he is waited for a little.
 */
static enum shm_found verdict(const struct shm_verdict *v)
{
    enum { PATIENCE_MS = 300 };
    const struct timespec ms = {.tv_nsec = 1000 * 1000};
    uint32_t found = SHM_NOT_ASKED;
    for (int i = 0; i < PATIENCE_MS && found == SHM_NOT_ASKED; i++) {
        found = atomic_load_explicit(&v->found, memory_order_acquire);
        if (found == SHM_NOT_ASKED)
            nanosleep(&ms, NULL);
    }
    return (enum shm_found)found;
}

/*
 * The message of an aborted wait names the members that are not at `epoch`; or the calls that differed, when
 * it was for that that the one who asks other nodes has ended the job.
 */
static int aborted_wait(const struct shm_op *op, uint32_t epoch)
{
    const struct shm_verdict *v = &zt_shm_slot_of(op, op->ranks[0])->verdict;
    if (op->n < op->group_n && verdict(v) == SHM_MISMATCH)
        return zt_shm_mismatch(op, v->ranks[0], &v->calls[0], v->ranks[1], &v->calls[1]);
    char where[32 + 4 * ZT_SHM_MAX_RANKS] = "while waiting for rank";
    size_t n = strlen(where);
    const char *comma = "";
    for (int i = 0; i < op->n; i++) {
        struct shm_slot *slot = zt_shm_slot_of(op, op->ranks[i]);
        if (reached(atomic_load(&slot->gate.epoch), epoch))
            continue;
        n += (size_t)snprintf(where + n, sizeof where - n, "%s %d", comma, op->ranks[i]);
        comma = ",";
    }
    return zt_shm_aborted(op, *comma ? where : "when all had arrived");
}

static int arrive_and_wait(struct shm_op *op, uint32_t epoch)
{
    zt_shm_gate_set(&zt_shm_slot_of(op, op->c->base.rank)->gate, epoch);
    for (int i = 0; i < op->n; i++)
        if (i != op->me && !zt_shm_gate_wait(op->c, &zt_shm_slot_of(op, op->ranks[i])->gate, epoch))
            return aborted_wait(op, epoch);
    return ZT_OK;
}

void zt_shm_call_of(struct shm_call *call, const struct shm_op *op)
{
    const struct zt_call *own = op->call;
    *call = (struct shm_call){
        .kind = (uint8_t)own->kind,
        .dtype = (uint8_t)own->dtype,
        .recv_dtype = (uint8_t)own->recv_dtype,
        .redop = (uint8_t)own->redop,
        .root = (uint8_t)own->root,
        .group = (uint8_t)own->group,
        .seq = op->task->seq,
        .count = own->count,
        .send = zt_shm_locate(op->c, own->send, op->send_bytes),
        .recv = zt_shm_locate(op->c, own->recv, op->recv_bytes),
    };
}

bool zt_shm_same_call(const struct shm_call *a, const struct shm_call *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->recv_dtype == b->recv_dtype &&
           a->redop == b->redop && a->root == b->root && a->group == b->group && a->seq == b->seq &&
           a->count == b->count;
}

int zt_shm_meet(struct shm_op *op, int status)
{
    const struct shm_task *task = op->task;
    uint32_t epoch = ++task->channel->epoch;
    struct shm_slot *mine = zt_shm_slot_of(op, op->c->base.rank);
    zt_shm_call_of(&mine->calls[epoch & 1], op);
    mine->calls[epoch & 1].status = (int16_t)status;
    mine->calls[epoch & 1].who = op->who;
    int rc = arrive_and_wait(op, epoch);
    if (rc)
        return rc;
    for (int i = 0; i < op->n; i++)
        op->calls[i] = &zt_shm_slot_of(op, op->ranks[i])->calls[epoch & 1];
    for (int i = 1; i < op->n; i++)
        if (!zt_shm_same_call(op->calls[i], op->calls[0]))
            return zt_shm_mismatch(op, op->ranks[i], op->calls[i], op->ranks[0], op->calls[0]);
    return ZT_OK;
}

int zt_shm_part(struct shm_op *op)
{
    return arrive_and_wait(op, ++op->task->channel->epoch);
}
