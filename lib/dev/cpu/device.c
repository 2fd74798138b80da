#include "dev/dev.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>

#include "base/arena.h"
#include "dev/cpu/kernels.h"
#include "dev/cpu/onednn.h"
#include "dev/queue.h"
#include "dev/sanitize.h"

struct cpu_dev {
    struct zt_dev base;
    struct zt_cpu_kernels kernels;
};

static const struct zt_cpu_kernels *kernels_of(const struct zt_stream *s)
{
    return &((const struct cpu_dev *)s->dev)->kernels;
}

/* One entry of the table and the task behind it, for each kernel. */
#define ENQUEUE(name, args)                                                                        \
    _Static_assert(sizeof(struct args) <= ZT_TASK_ARG_BYTES, #args " fits a task");                \
    static void enqueue_##name(struct zt_stream *s, const struct args *a)                          \
    {                                                                                              \
        zt_stream_push(s, run_##name, a, sizeof *a);                                               \
    }
#define ISA_ENTRY(name, args)                                                                      \
    static int run_##name(struct zt_stream *s, void *arg, struct zt_err *err)                      \
    {                                                                                              \
        return kernels_of(s)->name(arg, s->n_threads, err);                                        \
    }                                                                                              \
    ENQUEUE(name, args)
#define CONTROL_ENTRY(name, args)                                                                  \
    static int run_##name(struct zt_stream *s, void *arg, struct zt_err *err)                      \
    {                                                                                              \
        return zt_cpu_##name(arg, s->n_threads, err);                                              \
    }                                                                                              \
    ENQUEUE(name, args)

ZT_CPU_ISA_KERNELS(ISA_ENTRY)
ZT_CPU_CONTROL_KERNELS(CONTROL_ENTRY)

/*
 * oneDNN takes its team size from OpenMP's setting for the calling thread. The library brings
 * OpenMP along even where we are compiled without it (ThreadSanitizer builds), hence the lookup by
 * name.
 */
static int set_team_size(struct zt_stream *s, void *arg, struct zt_err *err)
{
    (void)arg;
    void (*set_num_threads)(int);
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (!symbol)
        return zt_err_set(err, ZT_EDEVICE, "no OpenMP library is loaded");
    memcpy(&set_num_threads, &symbol, sizeof symbol);
    set_num_threads(ZT_TSAN ? 1 : s->n_threads);
    return 0;
}

static int stream_create(struct zt_dev *d, const char *name, int n_threads, struct zt_stream **out,
                         struct zt_err *err)
{
    int rc = zt_stream_create(d, name, n_threads, out, err);
    if (!rc)
        zt_stream_push(*out, set_team_size, NULL, 0);
    return rc;
}

#define ENTRY(name, args) .name = enqueue_##name,

static const struct zt_dev_ops cpu_ops = {.abi = ZT_DEV_ABI,
                                          .struct_bytes = sizeof(struct zt_dev_ops),
                                          .kind = ZT_DEV_CPU,
                                          .alloc = zt_cpu_alloc,
                                          .free = zt_cpu_free,
                                          .alloc_host = zt_cpu_alloc,
                                          .free_host = zt_cpu_free,
                                          .memory = zt_cpu_memory,
                                          .stream_create = stream_create,
                                          .stream_free = zt_stream_free,
                                          .record = zt_stream_record,
                                          .wait = zt_stream_wait,
                                          .sync = zt_stream_sync,
                                          .host_call = zt_stream_host_call,
                                          ZT_CPU_ISA_KERNELS(ENTRY) ZT_CPU_CONTROL_KERNELS(ENTRY)};

/* ---- which kernels ---- */

static const struct zt_cpu_kernels *kernels_for(enum zt_isa isa)
{
#define ADDRESS(isa) &zt_cpu_kernels_##isa,
    static const struct zt_cpu_kernels *const builds[ZT_N_ISAS] = {ZT_ISAS(ADDRESS)};
    return builds[isa];
}

/* The best set that the CPU has, or the one that ZT_CPU_ISA (for tests) names. */
static int choose_isa(enum zt_isa *out, struct zt_err *err)
{
    const char *forced = getenv("ZT_CPU_ISA");
    int isa = zt_isa_best();
    for (int i = 0; forced && i < ZT_N_ISAS; i++)
        if (strcmp(forced, kernels_for((enum zt_isa)i)->isa) == 0)
            isa = i;
    *out = (enum zt_isa)isa;
    if (forced && strcmp(forced, kernels_for(*out)->isa) != 0)
        return zt_err_set(err, ZT_EINPUT, "ZT_CPU_ISA=%s: unknown; the best one here is %s", forced,
                          kernels_for(*out)->isa);
    if (forced && !zt_isa_supported(*out))
        return zt_err_set(err, ZT_EUNSUPPORTED, "ZT_CPU_ISA=%s: this CPU has no %s", forced,
                          zt_isa_what(*out));
    if (!zt_isa_supported(*out))
        return zt_err_set(err, ZT_EUNSUPPORTED, "this CPU is too old: it has no %s",
                          zt_isa_what(*out));
    return 0;
}

/*
 * Whether a product of bf16 matrices is faster than one of fp32. With AMX, and with AVX512_BF16 where a
 * dot product instruction is issued as often as a fused multiply-add (AMD; measured on Zen 5: 465
 * GF/s a core, fp32 236). Intel's cores without AMX issue it half as often: measured on Emerald
 * Rapids 86 GF/s, fp32 175. By feature, never by timing: results must not change from run to run.
 */
static bool has_fast_bf16(void)
{
#if defined(__x86_64__)
    enum { AMX_BF16 = 1 << 22, AVX512_BF16 = 1 << 5 }; /* leaf 7: 0 edx, 1 eax */
    unsigned int eax, ebx, ecx, edx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & AMX_BF16))
        return true;
    return __builtin_cpu_is("amd") && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) &&
           (eax & AVX512_BF16);
#else
    return false;
#endif
}

static const char *choose_products(struct zt_cpu_kernels *k, bool avx512)
{
    if (!avx512 || !has_fast_bf16())
        return "in fp32, 16-bit operands widened on the way";
    if (!dnnl_gemm_bf16bf16f32)
        return "in fp32, 16-bit operands widened on the way: this oneDNN has no product of bf16";
    k->matmul = k->matmul_native;
    return "in bf16 where both operands are, else in fp32";
}

int zt_cpu_dev_create(struct zt_dev **out, char *log, size_t log_bytes, struct zt_err *err)
{
    enum zt_isa isa;
    int rc = choose_isa(&isa, err);
    if (rc)
        return rc;
    struct cpu_dev *d = zt_xcalloc(1, sizeof *d);
    d->base.ops = &cpu_ops;
    d->kernels = *kernels_for(isa);
    const char *products = choose_products(&d->kernels, ZT_N_ISAS > 1 && isa == ZT_N_ISAS - 1);
    if (log && log_bytes)
        snprintf(log, log_bytes,
                 "cpu: kernels %s (%s, %s); matrix products by oneDNN %s; fp16 converted by %s",
                 d->kernels.isa, zt_isa_what(isa),
                 getenv("ZT_CPU_ISA") ? "by ZT_CPU_ISA" : "the best this CPU has", products,
                 d->kernels.half);
    *out = &d->base;
    return 0;
}

void zt_cpu_dev_free(struct zt_dev *d)
{
    free(d);
}
