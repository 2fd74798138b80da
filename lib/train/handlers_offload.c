/* READ and WRITE: between host memory and the disk. */
#include "offload/disk.h"
#include "train/handlers.h"

/* Operands come in pairs, the source first; one of a pair lies on the disk. All of them move at once. */
void zt_do_disk(const struct zt_op_ctx *c)
{
    const struct zt_access *a = &c->prog->accesses[c->op->first_access];
    const bool read = c->op->kind == ZT_OP_READ;
    struct zt_disk_range ranges[ZT_DISK_MAX_RANGES];
    const int n = c->op->n_accesses / 2;
    ZT_ASSERT_CMP(c->op->n_accesses % 2, ==, 0);
    ZT_ASSERT_CMP(n, <=, ZT_DISK_MAX_RANGES);
    for (int i = 0; i < n; i++, a += 2) {
        const struct zt_access *disk = read ? &a[0] : &a[1], *host = read ? &a[1] : &a[0];
        ZT_ASSERT_CMP(zt_op_buf(c, disk)->arena, ==, ZT_AR_DISK);
        ZT_ASSERT_CMP(disk->end - disk->begin, ==, host->end - host->begin);
        ranges[i] =
            (struct zt_disk_range){(size_t)(zt_engine_at(c->e, disk) - c->e->base[ZT_AR_DISK]),
                                   zt_engine_at(c->e, host), disk->end - disk->begin};
    }
    zt_disk_enqueue(c->e->disk, c->s, read ? ZT_DISK_READ : ZT_DISK_WRITE, ranges, n);
}
