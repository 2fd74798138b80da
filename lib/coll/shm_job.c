#include "coll/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/io.h"
#include "base/size.h"

static size_t slots_at(int n_ranks)
{
    return sizeof(struct shm_control) + (size_t)n_ranks * sizeof(struct shm_member);
}

static size_t pairs_at(int n_ranks)
{
    return slots_at(n_ranks) + SHM_N_MASKS * (size_t)n_ranks * sizeof(struct shm_slot);
}

static size_t counts_at(int n_ranks)
{
    return pairs_at(n_ranks) + (size_t)n_ranks * (size_t)n_ranks * sizeof(struct shm_pair);
}

/* Counts of one rank, rounded up so that ranks never share a cache line. */
static size_t counts_stride(int n_ranks)
{
    return zt_align_size((size_t)n_ranks * sizeof(int64_t), SHM_LINE_BYTES);
}

size_t zt_shm_control_bytes(int n_ranks)
{
    return counts_at(n_ranks) + SHM_N_MASKS * (size_t)n_ranks * counts_stride(n_ranks);
}

struct shm_slot *zt_shm_slot(struct shm_control *ctl, zt_axes group, int rank)
{
    int n = (int)ctl->n_ranks;
    struct shm_slot *slots = (struct shm_slot *)((char *)ctl + slots_at(n));
    return &slots[group * (unsigned)n + (unsigned)rank];
}

struct shm_pair *zt_shm_pair(struct shm_control *ctl, int from, int to)
{
    int n = (int)ctl->n_ranks;
    struct shm_pair *pairs = (struct shm_pair *)((char *)ctl + pairs_at(n));
    return &pairs[from * n + to];
}

int64_t *zt_shm_counts(struct shm_control *ctl, zt_axes group, int rank)
{
    int n = (int)ctl->n_ranks;
    size_t i = group * (size_t)n + (size_t)rank;
    return (int64_t *)((char *)ctl + counts_at(n) + i * counts_stride(n));
}

static void wake_sleepers(struct shm_gate *g)
{
    if (atomic_load(&g->sleepers))
        syscall(SYS_futex, &g->epoch, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Who falls asleep just after its gate was passed over here wakes up by its own time-out. */
void zt_shm_abort(struct shm_control *ctl)
{
    int n = (int)ctl->n_ranks;
    atomic_store(&ctl->aborted, 1);
    for (zt_axes group = 0; group < SHM_N_MASKS; group++)
        for (int r = 0; r < n; r++)
            wake_sleepers(&zt_shm_slot(ctl, group, r)->gate);
    for (int from = 0; from < n; from++) {
        for (int to = 0; to < n; to++) {
            wake_sleepers(&zt_shm_pair(ctl, from, to)->posted);
            wake_sleepers(&zt_shm_pair(ctl, from, to)->taken);
        }
    }
}

/* An empty memfd that survives exec and can be sealed. */
static int make_memfd(const char *name, struct zt_err *err)
{
    int fd = memfd_create(name, MFD_ALLOW_SEALING);
    if (fd < 0)
        return zt_err_errno(err, ZT_ESYS, "shared memory: memfd_create");
    return fd;
}

static int make_control(int n_ranks, struct zt_err *err)
{
    size_t bytes = zt_shm_control_bytes(n_ranks);
    int fd = make_memfd("zerotrain-control", err);
    if (fd < 0)
        return fd;
    int rc = ZT_OK;
    /* Pages that are missing must show here, not as a SIGBUS later. */
    int no = zt_allocate(fd, 0, bytes);
    if (no) {
        errno = no;
        rc = zt_err_errno(err, ZT_ENOMEM, "shared memory: %zu bytes for the control block", bytes);
        goto fail;
    }
    struct shm_control head = {.magic = SHM_MAGIC, .n_ranks = (uint32_t)n_ranks};
    if (pwrite(fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        rc = zt_err_errno(err, ZT_ESYS, "shared memory: control block");
        goto fail;
    }
    return fd;
fail:
    close(fd);
    return rc;
}

int zt_shm_job_create(int n_ranks, int *control_fd, int *arena_fds, struct zt_err *err)
{
    if (n_ranks < 1 || n_ranks > ZT_SHM_MAX_RANKS)
        return zt_err_set(err, ZT_EUNSUPPORTED,
                          "shared memory joins 1 to %d ranks of one host, not %d", ZT_SHM_MAX_RANKS,
                          n_ranks);
    int control = make_control(n_ranks, err);
    if (control < 0)
        return control;
    for (int r = 0; r < n_ranks; r++) {
        arena_fds[r] = make_memfd("zerotrain-arena", err);
        if (arena_fds[r] < 0) {
            int rc = arena_fds[r];
            while (r > 0)
                close(arena_fds[--r]);
            close(control);
            return rc;
        }
    }
    *control_fd = control;
    return ZT_OK;
}

void zt_shm_job_abort(int control_fd)
{
    int saved = errno;
    struct stat st;
    size_t bytes = fstat(control_fd, &st) == 0 ? (size_t)st.st_size : 0;
    struct shm_control *ctl = MAP_FAILED;
    if (bytes >= sizeof *ctl)
        ctl = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
    if (ctl != MAP_FAILED) {
        if (ctl->magic == SHM_MAGIC && bytes == zt_shm_control_bytes((int)ctl->n_ranks))
            zt_shm_abort(ctl);
        munmap(ctl, bytes);
    }
    errno = saved;
}
