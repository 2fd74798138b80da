#include "dev/cpu/isa.h"

#define SLOT(name, args) .name = ZT_ISA_FN(name),

const struct zt_cpu_kernels ZT_ISA_JOIN(zt_cpu_kernels, ZT_ISA) = {
    .isa = ZT_ISA_TEXT(ZT_ISA),
    .half = ZT_HALF_BY,
    ZT_CPU_ISA_KERNELS(SLOT) SLOT(matmul_native, zt_matmul)};
