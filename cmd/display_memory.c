#include "display_memory.h"

#include <inttypes.h>

#include "base/arena.h"

/*
 * LEAST, MOST: planned to be touched. ON_DEVICE: of the touched. FILES, STAGING: of what is outside. ON_GPU:
 * outside our arena there; 0: nothing computes on one. OF_DISK, ON_DISK: planned and written of offload to
 * NVMe, which the others do not count; 0: none.
 */
enum {
    PREDICTED,
    TOUCHED,
    OUTSIDE,
    RSS_PEAK,
    PSS,
    LEAST,
    MOST,
    FILES,
    STAGING,
    ON_DEVICE,
    ON_GPU,
    OF_DISK,
    ON_DISK,
    N_MEASURES
};

/* What a rank reports at its end. */
struct rank_memory {
    bool there;
    int64_t bytes[N_MEASURES];
    uint64_t digest;
};

struct rank_memory *display_memory_create(int world)
{
    return zt_xcalloc((size_t)world, sizeof(struct rank_memory));
}

static int64_t integer(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key)); /* 0 when it is none */
}

/* What other ranks read, "shared", is memory of the device too. */
static int64_t sum_device(const json_t *o)
{
    return integer(o, "device") + integer(o, "shared");
}

static int64_t sum_arenas(const json_t *o)
{
    return sum_device(o) + integer(o, "host");
}

void display_memory_add(struct display *d, int rank, const json_t *o)
{
    if (rank < 0 || rank >= d->world)
        return;
    const char *digest = json_string_value(json_object_get(o, "digest"));
    d->n_memory += !d->memory[rank].there;
    d->memory[rank] = (struct rank_memory){
        .there = true,
        .bytes = {[PREDICTED] = sum_arenas(json_object_get(o, "predicted")),
                  [TOUCHED] = sum_arenas(json_object_get(o, "touched")),
                  [OUTSIDE] = integer(o, "outside_bytes"),
                  [RSS_PEAK] = integer(o, "rss_peak_bytes"),
                  [PSS] = integer(o, "pss_bytes"),
                  [LEAST] = sum_arenas(json_object_get(o, "least")),
                  [MOST] = sum_arenas(json_object_get(o, "most")),
                  [FILES] = integer(o, "outside_files_bytes"),
                  [STAGING] = integer(o, "staging_bytes"),
                  [ON_DEVICE] = sum_device(json_object_get(o, "touched")),
                  [ON_GPU] = integer(o, "device_outside_bytes"),
                  [OF_DISK] = integer(json_object_get(o, "predicted"), "disk"),
                  [ON_DISK] = integer(json_object_get(o, "touched"), "disk")},
        .digest = digest ? strtoull(digest, NULL, 16) : 0,
    };
}

static void print_memory_row(struct display *d, const char *label, const struct rank_memory *m,
                             double unit)
{
    zt_str_printf(&d->out.buf, "  %5s", label);
    for (int i = PREDICTED; i <= RSS_PEAK; i++)
        zt_str_printf(&d->out.buf, "%13.2f", (double)m->bytes[i] / unit);
    zt_str_puts(&d->out.buf, "\n");
}

/* The least or the most of each number over the ranks that reported. */
static struct rank_memory extreme(const struct display *d, bool most)
{
    struct rank_memory out = {0};
    for (int r = 0; r < d->world; r++) {
        const struct rank_memory *m = &d->memory[r];
        for (int i = 0; i < N_MEASURES && m->there; i++)
            if (!out.there || (most ? m->bytes[i] > out.bytes[i] : m->bytes[i] < out.bytes[i]))
                out.bytes[i] = m->bytes[i];
        out.there |= m->there;
    }
    return out;
}

static bool is_as_planned(const struct rank_memory *m)
{
    return m->bytes[LEAST] <= m->bytes[TOUCHED] && m->bytes[TOUCHED] <= m->bytes[MOST];
}

static bool as_planned(const struct display *d)
{
    for (int r = 0; r < d->world; r++)
        if (d->memory[r].there && !is_as_planned(&d->memory[r]))
            return false;
    return true;
}

static void print_unplanned(struct display *d, int rank)
{
    const struct rank_memory *m = &d->memory[rank];
    if (m->there && !is_as_planned(m))
        zt_str_printf(&d->out.buf,
                      "  Not as planned: rank %d touched %" PRId64 " bytes of its arenas, and the "
                      "plan says %" PRId64 " to %" PRId64 ". Please report this.\n",
                      rank, m->bytes[TOUCHED], m->bytes[LEAST], m->bytes[MOST]);
}

void display_memory_print(struct display *d)
{
    enum { MAX_ROWS = 8 };
    const struct rank_memory least = extreme(d, false), most = extreme(d, true);
    bool giga = most.bytes[PREDICTED] >= 1000 * 1000 * 1000;
    double unit = giga ? 1e9 : 1e6;
    char label[16];
    zt_str_printf(&d->out.buf, "\nmemory, %s: predicted by the plan beside measured\n",
                  giga ? "GB" : "MB");
    zt_str_printf(&d->out.buf, "  %5s%13s%13s%13s%13s\n", "rank", "predicted", "touched", "outside",
                  "peak RSS");
    for (int r = 0; r < d->world && d->world <= MAX_ROWS; r++) {
        snprintf(label, sizeof label, "%d", r);
        if (d->memory[r].there)
            print_memory_row(d, label, &d->memory[r], unit);
    }
    if (d->world > MAX_ROWS) {
        print_memory_row(d, "least", &least, unit);
        print_memory_row(d, "most", &most, unit);
    }
    zt_str_printf(
        &d->out.buf,
        "  touched: of the arenas, in blocks of 512 bytes%s. outside: of no arena at the "
        "end:\n  program, libraries, mapped data, heap, stacks%s. peak RSS counts what is "
        "mapped of\n  other ranks' arenas too.\n",
        as_planned(d) ? ", as planned" : "",
        most.bytes[STAGING] > 0 ? ", staging of collectives" : "");
    for (int r = 0; r < d->world; r++)
        print_unplanned(d, r);
    if (most.bytes[ON_GPU] > 0)
        zt_str_printf(&d->out.buf,
                      "  On the GPU, outside the arenas, at most: %.2f (CUDA's context, libraries, "
                      "other processes).\n",
                      (double)most.bytes[ON_GPU] / unit);
    if (most.bytes[OF_DISK] > 0)
        zt_str_printf(&d->out.buf, "  On NVMe, at most: %.2f predicted, %.2f written.\n",
                      (double)most.bytes[OF_DISK] / unit, (double)most.bytes[ON_DISK] / unit);
}

json_t *display_memory_json(const struct display *d, uint64_t *digest)
{
    static const char *const keys[N_MEASURES] = {
        "predicted_bytes",   "touched_bytes",        "outside_bytes",        "rss_peak_bytes",
        "pss_bytes",         "touched_least_bytes",  "touched_most_bytes",   "outside_files_bytes",
        "staging_bytes",     "device_touched_bytes", "device_outside_bytes", "nvme_predicted_bytes",
        "nvme_touched_bytes"};
    json_t *ranks = json_array();
    *digest = 0;
    for (int r = 0; r < d->world; r++) {
        const struct rank_memory *m = &d->memory[r];
        if (!m->there)
            continue;
        json_t *o = json_pack("{s:i}", "rank", r);
        for (int i = 0; i < N_MEASURES; i++)
            if (i < ON_GPU || m->bytes[i] > 0)
                json_object_set_new(o, keys[i], json_integer(m->bytes[i]));
        json_array_append_new(ranks, o);
        *digest ^= m->digest;
    }
    return ranks;
}

/* summary.json: how the run ended, for programs. */

/* ---- before the start ---- */

void display_ledger(const struct zt_plan *p, struct zt_str *out)
{
    const struct zt_ledger *l = &p->ledger;
    const size_t *on = l->device;
    size_t device = l->peak[ZT_AR_DEVICE] + l->peak[ZT_AR_SHARED], host = l->peak[ZT_AR_HOST];
    bool giga = device + host >= 1000 * 1000 * 1000;
    double unit = giga ? 1e9 : 1e6;
    char gb[32], gib[32];
    size_t state = on[ZT_CAT_MASTER] + on[ZT_CAT_OPT_M] + on[ZT_CAT_OPT_V];
    size_t rest = on[ZT_CAT_BATCH] + on[ZT_CAT_CONTROL] + on[ZT_CAT_STAGING] + on[ZT_CAT_PADDING] +
                  on[ZT_CAT_ALIGNMENT] + on[ZT_CAT_UNUSED];
    zt_str_printf(out, "memory of rank %d as planned, at the fullest moment, in %s:\n", p->rank,
                  giga ? "GB" : "MB");
    zt_str_printf(
        out,
        "  parameters %.2f, gradients %.2f, optimizer state %.2f, gather and reduce buffers "
        "%.2f,\n",
        (double)on[ZT_CAT_PARAM] / unit, (double)(on[ZT_CAT_GRAD] + on[ZT_CAT_GRAD_SHARD]) / unit,
        (double)state / unit, (double)(on[ZT_CAT_GATHER] + on[ZT_CAT_REDUCE]) / unit);
    zt_str_printf(out,
                  "  activations %.2f, workspace %.2f, batch, padding and unused %.2f; host %.2f\n",
                  (double)on[ZT_CAT_ACT] / unit, (double)on[ZT_CAT_WORKSPACE] / unit,
                  (double)rest / unit, (double)host / unit);
    zt_str_printf(out, "  = %s (%s)\n", zt_fmt_gb(gb, sizeof gb, (double)(device + host)),
                  zt_fmt_gib(gib, sizeof gib, (double)(device + host)));
}
