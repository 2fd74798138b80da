#include "train/run.h"

#include "base/size.h"

/*
 * Memory at the end of a run, measured: what was touched of the arenas, and how this process's share of
 * the host's memory falls to arenas and to what lies outside them.
 */

int zt_run_arena_use(struct zt_engine *e, enum zt_arena_id a, struct zt_arena_use *out,
                     struct zt_err *err)
{
    struct zt_touched t;
    *out = (struct zt_arena_use){.peak = e->plan->ledger.peak[a]};
    if (!e->base[a])
        return 0;
    zt_plan_touched(e->plan, a, e->ran, &t);
    out->least = zt_extent_blocks(t.written, t.n_written, ZT_BUF_ALIGN);
    out->most = zt_extent_blocks(t.touchable, t.n_touchable, ZT_BUF_ALIGN);
    zt_touched_release(&t);
    return zt_engine_touched(e, a, &out->touched, err);
}

/* Bytes of [begin, end) in any of the ranges. */
static size_t overlap(const struct zt_extent *ranges, int n, size_t begin, size_t end)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        const size_t lo = ZT_MAX(begin, ranges[i].begin), hi = ZT_MIN(end, ranges[i].end);
        bytes += hi > lo ? hi - lo : 0;
    }
    return bytes;
}

/* The share of a mapping, "begin-end perms offset device inode [path]", goes where it belongs. */
static void add_mapping(const char *path, size_t begin, size_t end, int64_t share,
                        const struct zt_extent *arenas, int n, struct zt_pss *out)
{
    const double inside = (double)overlap(arenas, n, begin, end) / (double)(end - begin);
    const int64_t ours = (int64_t)((double)share * inside); /* the kernel may join mappings */
    out->arenas += ours;
    if (strstr(path, "memfd:zerotrain-arena"))
        out->shared += share - ours;
    else if (path[0] == '/')
        out->files += share - ours;
    else
        out->rest += share - ours;
}

void zt_pss_read(FILE *smaps, const struct zt_extent *arenas, int n, struct zt_pss *out)
{
    char line[4096], path[4096] = "";
    unsigned long long lo, hi, begin = 0, end = 0;
    long long kb;
    int at;
    *out = (struct zt_pss){0};
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%llx-%llx %*s %*s %*s %*s %n", &lo, &hi, &at) == 2) {
            begin = lo;
            end = hi;
            snprintf(path, sizeof path, "%s", line + at);
        } else if (sscanf(line, "Pss: %lld", &kb) == 1 && end > begin) {
            add_mapping(path, (size_t)begin, (size_t)end, kb * 1024, arenas, n, out);
        }
    }
}

void zt_run_pss(const struct zt_engine *e, struct zt_pss *out)
{
    struct zt_extent arenas[ZT_N_ARENAS];
    int n = 0;
    *out = (struct zt_pss){0};
    for (int a = 0; a < ZT_AR_DISK; a++) {
        const size_t begin = (size_t)(uintptr_t)e->base[a];
        if (begin && a != ZT_AR_SHARED) /* the CPU's arenas are whole huge pages */
            arenas[n++] = (struct zt_extent){
                begin, begin + zt_align_size(e->plan->ledger.peak[a], ZT_HUGE_PAGE_BYTES)};
    }
    FILE *f = fopen("/proc/self/smaps", "re");
    if (!f)
        return;
    zt_pss_read(f, arenas, n, out);
    fclose(f);
}

int64_t zt_process_rss_peak(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    long long kb = 0;
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lld", &kb) == 1)
            break;
    fclose(f);
    return kb * 1024;
}
