/*
 * kernels.h: the CPU kernels as plain functions: carried out at once, by a team of n_threads. Those
 * of struct zt_cpu_kernels are compiled once per instruction set (isa_*.c) and chosen when the
 * device is made; the small ones of control.c are not.
 */
#ifndef ZT_DEV_CPU_KERNELS_H
#define ZT_DEV_CPU_KERNELS_H

#include "base/isa.h"
#include "dev/dev.h"

/* X(name, struct of the arguments) */
#define ZT_CPU_ISA_KERNELS(X)                                                                      \
    X(copy, zt_copy)                                                                               \
    X(zero, zt_zero)                                                                               \
    X(embed_fwd, zt_embed_fwd)                                                                     \
    X(embed_bwd, zt_embed_bwd)                                                                     \
    X(norm_fwd, zt_norm_fwd)                                                                       \
    X(norm_bwd, zt_norm_bwd)                                                                       \
    X(matmul, zt_matmul)                                                                           \
    X(col_sum, zt_col_sum)                                                                         \
    X(attention_fwd, zt_attention)                                                                 \
    X(attention_bwd, zt_attention)                                                                 \
    X(drop_add, zt_drop_add)                                                                       \
    X(cross_entropy, zt_cross_entropy)                                                             \
    X(update, zt_update)                                                                           \
    X(sum_sq, zt_sum_sq)                                                                           \
    X(cast, zt_cast)                                                                               \
    X(rope, zt_rope)                                                                               \
    X(swiglu_fwd, zt_swiglu_fwd)                                                                   \
    X(swiglu_bwd, zt_swiglu_bwd)

#define ZT_CPU_CONTROL_KERNELS(X)                                                                  \
    X(count_targets, zt_count_targets)                                                             \
    X(count_finish, zt_count_finish)                                                               \
    X(norm_finish, zt_norm_finish)                                                                 \
    X(vote_begin, zt_vote_begin)                                                                   \
    X(vote_finish, zt_vote_finish)                                                                 \
    X(step_advance, zt_step_advance)

#define ZT_CPU_KERNEL_SLOT(name, args)                                                             \
    int (*name)(const struct args *a, int n_threads, struct zt_err *err);

/* matmul_native: as matmul, but multiplies two bf16 matrices as they are; only with AVX-512. */
struct zt_cpu_kernels {
    const char *isa, *half; /* half: what converts fp16 */
    ZT_CPU_ISA_KERNELS(ZT_CPU_KERNEL_SLOT)
    ZT_CPU_KERNEL_SLOT(matmul_native, zt_matmul)
};

#define ZT_CPU_KERNELS_OF(isa) extern const struct zt_cpu_kernels zt_cpu_kernels_##isa;
ZT_ISAS(ZT_CPU_KERNELS_OF)

#define ZT_CPU_CONTROL_PROTO(name, args)                                                           \
    int zt_cpu_##name(const struct args *a, int n_threads, struct zt_err *err);
ZT_CPU_CONTROL_KERNELS(ZT_CPU_CONTROL_PROTO)

/* memory.c: what the table's memory entries do. */
int zt_cpu_alloc(struct zt_dev *d, size_t bytes, void **out, struct zt_err *err) ZT_MUST_CHECK;
void zt_cpu_free(struct zt_dev *d, void *p, size_t bytes);
int zt_cpu_memory(struct zt_dev *d, size_t *free_bytes, size_t *total_bytes,
                  struct zt_err *err) ZT_MUST_CHECK;

#endif
