#include "dev/cpu/isa.h"

#define SLOT(name, args) .name = ZT_ISA_FN(name),

const struct zt_cpu_kernels ZT_ISA_JOIN(zt_cpu_kernels, ZT_ISA) = {
    .isa = ZT_ISA_TEXT(ZT_ISA), ZT_CPU_ISA_KERNELS(SLOT) SLOT(matmul_native, zt_matmul)};
