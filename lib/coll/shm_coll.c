#include "coll/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "base/size.h"
#include "base/str.h"
#include "coll/tcp_net.h"

enum {
    PAGE_BYTES = 64 * 1024,       /* a multiple of every page size in use */
    HUGE_BYTES = 2 * 1024 * 1024, /* segments start at multiples, in the file and in memory */
    SPINS_ALONE = 1000,           /* 30 to 50 us: about what falling asleep and waking cost */
    SPINS_CROWDED = 50,           /* more ranks than cores: the peer needs our core to arrive */
};

/*
 * Map [at, at + bytes) of fd at a multiple of HUGE_BYTES, so that huge pages can be used where the
 * system has them for shared memory.
 */
static void *map_aligned(void *ctx, int fd, size_t at, size_t bytes)
{
    (void)ctx;
    char *hole = mmap(NULL, bytes + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (hole == MAP_FAILED)
        return NULL;
    size_t head = -(uintptr_t)hole & (HUGE_BYTES - 1);
    char *p =
        mmap(hole + head, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)at);
    if (p == MAP_FAILED) {
        int saved = errno;
        munmap(hole, bytes + HUGE_BYTES);
        errno = saved;
        return NULL;
    }
    if (head)
        munmap(hole, head);
    size_t used = zt_align_size(bytes, (size_t)sysconf(_SC_PAGESIZE)); /* so was the hole */
    munmap(p + used, HUGE_BYTES - head);
    return p;
}

static void unmap(void *ctx, void *p, size_t bytes)
{
    (void)ctx;
    munmap(p, bytes);
}

static const struct zt_shm_vm usual_vm = {.map = map_aligned, .unmap = unmap};

/* Size of a descriptor that no peer can shrink under our mapping, which would give us SIGBUS. */
static int sealed_bytes(int fd, const char *what, int rank, size_t *bytes, struct zt_err *err)
{
    struct stat st;
    if (fstat(fd, &st))
        return zt_err_errno(err, ZT_ESYS, "shared memory: %s of rank %d", what, rank);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return zt_err_set(err, ZT_EPROTO,
                          "shared memory: %s of rank %d is not sealed against shrinking", what,
                          rank);
    *bytes = (size_t)st.st_size;
    return ZT_OK;
}

static int map_control(struct shm_coll *c, const struct zt_shm_job *job, struct zt_err *err)
{
    size_t bytes = 0;
    int rc = sealed_bytes(job->control_fd, "the control block", c->base.rank, &bytes, err);
    if (rc)
        return rc;
    if (bytes != zt_shm_control_bytes(c->n_ranks))
        return zt_err_set(err, ZT_EPROTO,
                          "shared memory: a control block of %zu bytes where %d ranks have %zu",
                          bytes, c->n_ranks, zt_shm_control_bytes(c->n_ranks));
    c->ctl = c->vm.map(c->vm.ctx, job->control_fd, 0, bytes);
    if (!c->ctl)
        return zt_err_errno(err, ZT_ESYS, "shared memory: mapping the control block");
    c->ctl_bytes = bytes;
    if (c->ctl->magic != SHM_MAGIC || c->ctl->n_ranks != (uint32_t)c->n_ranks)
        return zt_err_set(err, ZT_EPROTO,
                          "shared memory: the control block is another version's, or for another "
                          "number of ranks than %d",
                          c->n_ranks);
    return ZT_OK;
}

/* `status` of the first rank of this node that met an error, as the group of a host call has it. */
static int first_failed(const struct shm_op *op, int *rank)
{
    for (int i = 0; i < op->n; i++) {
        if (op->calls[i]->status) {
            *rank = op->ranks[i];
            return op->calls[i]->status;
        }
    }
    return ZT_OK;
}

/* The same over all nodes: the first rank of each asks the others, and tells its own. */
static int first_failed_anywhere(struct shm_op *op, int *status, int *rank)
{
    struct shm_coll *c = op->c;
    *status = first_failed(op, rank);
    if (c->base.rank == c->first) {
        int rc = zt_tcp_agree(op, status, rank);
        if (rc)
            return rc;
    }
    op->who = *rank;
    int rc = zt_shm_meet(op, *status);
    if (rc)
        return rc;
    *status = op->calls[0]->status;
    *rank = op->calls[0]->who;
    return ZT_OK;
}

static uint32_t next_seq(struct shm_coll *c)
{
    return atomic_fetch_add(&c->host.enqueued, 1) + 1;
}

/*
 * A blocking call of all ranks: everybody learns whether anybody met an error in `status`. seq from
 * next_seq().
 */
static int agree(struct shm_coll *c, enum zt_call_kind kind, uint32_t seq, int status,
                 struct zt_err *err)
{
    struct shm_task task = {
        .c = c,
        .channel = &c->host,
        .seq = seq,
        .call = {.kind = kind, .group = SHM_HOST_MASK},
    };
    struct shm_op op;
    struct zt_err met;
    zt_shm_op_init(&op, &task, &met);
    int rc = zt_shm_meet(&op, status), all = ZT_OK, rank = -1;
    if (!rc && c->net)
        rc = first_failed_anywhere(&op, &all, &rank);
    else if (!rc)
        all = first_failed(&op, &rank);
    if (rc) {
        zt_shm_abort(c->ctl);
        if (status)
            return status;
        *err = met;
        return rc;
    }
    if (all && !status)
        return zt_err_set(err, all, "%s: rank %d failed: %s", zt_call_name(kind), rank,
                          zt_code_name(all));
    return status;
}

static int join(struct shm_coll *c, struct zt_err *err)
{
    struct shm_member *me = &c->ctl->members[c->base.rank - c->first];
    if (atomic_exchange(&me->joined, 1))
        return zt_err_set(err, ZT_EPROTO, "shared memory: rank %d has joined already",
                          c->base.rank);
    for (int a = 0; a < ZT_N_AXES; a++)
        me->mesh[a] = c->base.mesh.size[a];
    int rc = agree(c, ZT_JOIN, next_seq(c), ZT_OK, err);
    for (int r = 0; r < c->n_ranks && !rc; r++)
        if (memcmp(c->ctl->members[r].mesh, c->ctl->members[0].mesh, sizeof me->mesh) != 0)
            rc = zt_err_set(err, ZT_EPROTO, "shared memory: rank %d has another mesh than rank 0",
                            c->first + r);
    return rc;
}

/*
 * Two spinning ranks on one core only keep each other from arriving. The whole machine is counted,
 * as the launcher may have bound each rank to cores of its own.
 */
static int spins(int n_ranks)
{
    return n_ranks > sysconf(_SC_NPROCESSORS_ONLN) ? SPINS_CROWDED : SPINS_ALONE;
}

int zt_shm_node_create(const struct zt_shm_job *job, struct zt_dev *dev, const struct zt_mesh *mesh,
                       int rank, int first, const struct zt_shm_vm *vm, struct shm_coll **out,
                       struct zt_err *err)
{
    int n = job->n_ranks;
    if (n < 1 || n > ZT_SHM_MAX_RANKS || rank < first || rank >= first + n)
        return zt_err_set(
            err, ZT_EINPUT,
            "shared memory: rank %d is none of the %d ranks from %d on (at most %d are possible)",
            rank, n, first, ZT_SHM_MAX_RANKS);
    /* Its gates fill whole cache lines, and malloc does not promise that alignment. */
    struct shm_coll *c = aligned_alloc(SHM_LINE_BYTES, sizeof *c);
    if (!c)
        return zt_err_set(err, ZT_ENOMEM, "shared memory: %zu bytes", sizeof *c);
    memset(c, 0, sizeof *c);
    c->base = (struct zt_coll){.ops = &zt_shm_ops, .dev = dev, .mesh = *mesh, .rank = rank};
    c->vm = vm ? *vm : usual_vm;
    c->combine = zt_combine_build(zt_isa_best());
    c->n_ranks = n;
    c->first = first;
    c->n_spins = spins(n);
    memcpy(c->arena_fds, job->arena_fds, (size_t)n * sizeof *job->arena_fds);
    int rc = map_control(c, job, err);
    if (!rc)
        rc = join(c, err);
    if (rc)
        zt_shm_coll_free(&c->base);
    else
        *out = c;
    return rc;
}

int zt_shm_coll_create_vm(const struct zt_shm_job *job, struct zt_dev *dev,
                          const struct zt_mesh *mesh, int rank, const struct zt_shm_vm *vm,
                          struct zt_coll **out, struct zt_err *err)
{
    struct shm_coll *c;
    int n = zt_mesh_world(mesh);
    if (n != job->n_ranks)
        return zt_err_set(err, ZT_EINPUT,
                          "shared memory: a mesh of %d does not fit a job of %d ranks", n,
                          job->n_ranks);
    int rc = zt_shm_node_create(job, dev, mesh, rank, 0, vm, &c, err);
    if (!rc)
        *out = &c->base;
    return rc;
}

int zt_shm_coll_create(const struct zt_shm_job *job, struct zt_dev *dev, const struct zt_mesh *mesh,
                       int rank, struct zt_coll **out, struct zt_err *err)
{
    return zt_shm_coll_create_vm(job, dev, mesh, rank, NULL, out, err);
}

void zt_shm_coll_free(struct zt_coll *base)
{
    struct shm_coll *c = (struct shm_coll *)base;
    if (!c)
        return;
    zt_tcp_net_free(c);
    for (uint32_t k = 0; k < SHM_MAX_SEGMENTS; k++)
        for (int r = 0; r < c->n_ranks; r++)
            if (c->segments[k].base[r])
                c->vm.unmap(c->vm.ctx, c->segments[k].base[r], c->segments[k].bytes[r]);
    if (c->ctl)
        c->vm.unmap(c->vm.ctx, c->ctl, c->ctl_bytes);
    free(c);
}

void zt_shm_coll_abort(struct zt_coll *base)
{
    zt_shm_abort(((struct shm_coll *)base)->ctl);
}

int zt_shm_barrier(struct zt_coll *base, struct zt_err *err)
{
    struct shm_coll *c = (struct shm_coll *)base;
    return agree(c, ZT_BARRIER, next_seq(c), ZT_OK, err);
}

struct shm_range zt_shm_locate(const struct shm_coll *c, const void *p, size_t bytes)
{
    uint32_t n = atomic_load_explicit(&c->n_segments, memory_order_acquire);
    int me = c->base.rank - c->first;
    for (uint32_t k = 0; k < n; k++) {
        uintptr_t base = (uintptr_t)c->segments[k].base[me], at = (uintptr_t)p;
        size_t size = c->segments[k].bytes[me];
        if (at >= base && at - base <= size && bytes <= size - (at - base))
            return (struct shm_range){.segment = k + 1, .at_bytes = at - base};
    }
    return (struct shm_range){0};
}

void *zt_shm_at(const struct shm_coll *c, int rank, struct shm_range range, size_t bytes)
{
    uint32_t n = atomic_load_explicit(&c->n_segments, memory_order_acquire);
    if (range.segment < 1 || range.segment > n)
        return NULL;
    const struct shm_segment *s = &c->segments[range.segment - 1];
    int i = rank - c->first;
    if (range.at_bytes > s->bytes[i] || bytes > s->bytes[i] - range.at_bytes)
        return NULL;
    return s->base[i] + range.at_bytes;
}

/* All ranks allocate at once from the memory of one host: what all of them want must be free. */
static int check_free(const struct shm_coll *c, const struct shm_segment *s, struct zt_err *err)
{
    size_t want = 0, have = 0, total = 0;
    bool fits = true;
    for (int r = 0; r < c->n_ranks; r++)
        fits = fits && zt_add_size(want, s->bytes[r], &want);
    int rc = c->base.dev->ops->memory(c->base.dev, &have, &total, err);
    if (rc || (fits && want <= have))
        return rc;
    char all[32], own[32], left[32];
    zt_fmt_gib(own, sizeof own, (double)s->bytes[c->base.rank - c->first]);
    zt_fmt_gib(left, sizeof left, (double)have);
    zt_fmt_gib(all, sizeof all, fits ? (double)want : (double)SIZE_MAX);
    return zt_err_set(
        err, ZT_ENOMEM,
        "shared memory: %d ranks need %s (this one %s), but only %s are free; run fewer "
        "ranks on this host, or end what else holds its memory",
        c->n_ranks, all, own, left);
}

/* Size this rank's arena, seal it, map it and fill it with pages. */
static int make_own(const struct shm_coll *c, struct shm_segment *s, struct zt_err *err)
{
    int me = c->base.rank - c->first, fd = c->arena_fds[me];
    size_t at = c->arena_ends[me], bytes = s->bytes[me];
    char text[32];
    zt_fmt_gib(text, sizeof text, (double)bytes);
    if (ftruncate(fd, (off_t)(at + bytes)) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
        return zt_err_errno(err, ZT_ESYS, "shared memory: sizing an arena of %s%s", text,
                            errno == EFBIG ? ", which `ulimit -f` limits too" : "");
    void *p = c->vm.map(c->vm.ctx, fd, at, bytes);
    if (!p)
        return zt_err_errno(err, ZT_ENOMEM, "shared memory: mapping %s", text);
    s->base[me] = p;
    /* Only hints: huge pages where shared memory may have them, and our page table filled. */
    madvise(p, bytes, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    madvise(p, bytes, MADV_POPULATE_WRITE);
#endif
    /* This decides: memory that is missing must show here, not as a SIGBUS in a peer. */
    int no = zt_allocate(fd, at, bytes);
    if (no) {
        errno = no;
        return zt_err_errno(err, ZT_ENOMEM, "shared memory: allocating %s", text);
    }
    return ZT_OK;
}

static int map_peer(const struct shm_coll *c, struct shm_segment *s, int i, struct zt_err *err)
{
    size_t at = c->arena_ends[i], bytes = s->bytes[i], size = 0;
    int rank = c->first + i;
    int rc = sealed_bytes(c->arena_fds[i], "the arena", rank, &size, err);
    if (rc)
        return rc;
    if (at > size || bytes > size - at)
        return zt_err_set(
            err, ZT_EPROTO,
            "shared memory: the arena of rank %d has %zu bytes, not the %zu more than "
            "%zu that it announced",
            rank, size, bytes, at);
    s->base[i] = c->vm.map(c->vm.ctx, c->arena_fds[i], at, bytes);
    if (!s->base[i])
        return zt_err_errno(err, ZT_ENOMEM, "shared memory: mapping %zu bytes of rank %d", bytes,
                            rank);
    madvise(s->base[i], bytes, MADV_HUGEPAGE);
    return ZT_OK;
}

/* Map what the peers made. From here on calls may name the segment. */
static int open_segment(struct shm_coll *c, uint32_t k, struct zt_err *err)
{
    struct shm_segment *s = &c->segments[k];
    for (int r = 0; r < c->n_ranks; r++) {
        int rc = c->first + r == c->base.rank ? ZT_OK : map_peer(c, s, r, err);
        if (rc)
            return rc;
        c->arena_ends[r] = zt_align_size(c->arena_ends[r] + s->bytes[r], HUGE_BYTES);
    }
    atomic_store_explicit(&c->n_segments, k + 1, memory_order_release);
    return ZT_OK;
}

/*
 * Every step ends in agreement: sizes known; enough found free by all, before any takes some; taken;
 * mapped by all.
 */
static int alloc_steps(struct shm_coll *c, uint32_t k, uint32_t seq, int status, struct zt_err *err)
{
    struct shm_segment *s = &c->segments[k];
    int rc = agree(c, ZT_ALLOC_SHARED, seq, status, err);
    if (rc)
        return rc;
    for (int r = 0; r < c->n_ranks; r++)
        s->bytes[r] = c->ctl->members[r].alloc_bytes;
    rc = agree(c, ZT_ALLOC_SHARED, seq, check_free(c, s, err), err);
    if (!rc)
        rc = agree(c, ZT_ALLOC_SHARED, seq, make_own(c, s, err), err);
    if (!rc)
        rc = agree(c, ZT_ALLOC_SHARED, seq, open_segment(c, k, err), err);
    return rc;
}

static int alloc(struct shm_coll *c, size_t bytes, int status, void **out, struct zt_err *err)
{
    uint32_t k = atomic_load(&c->n_segments), seq = next_seq(c);
    int me = c->base.rank - c->first;
    c->ctl->members[me].alloc_bytes = status ? 0 : zt_align_size(bytes, PAGE_BYTES);
    int rc = alloc_steps(c, k, seq, status, err);
    if (rc)
        zt_shm_abort(c->ctl);
    else
        *out = c->segments[k].base[me];
    return rc;
}

int zt_shm_alloc_shared(struct zt_coll *base, size_t bytes, void **out, struct zt_err *err)
{
    struct shm_coll *c = (struct shm_coll *)base;
    uint32_t own = c->net ? 1 : 0; /* segments that callers do not know of */
    int status = ZT_OK;
    if (atomic_load(&c->n_segments) - own == SHM_MAX_ALLOCS)
        status =
            zt_err_set(err, ZT_EUNSUPPORTED, "alloc_shared: more than %d calls", SHM_MAX_ALLOCS);
    else if (bytes == 0 || bytes > SIZE_MAX / 4)
        status = zt_err_set(err, ZT_EINPUT, "alloc_shared: cannot be %zu bytes", bytes);
    return alloc(c, bytes, status, out, err);
}

int zt_shm_alloc_node(struct shm_coll *c, size_t bytes, void **out, struct zt_err *err)
{
    return alloc(c, bytes, ZT_OK, out, err);
}
