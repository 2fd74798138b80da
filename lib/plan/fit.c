#include "plan/fit.h"

#include "base/err.h"
#include "plan/fit_internal.h"

enum { MAX_RUNGS = 256 /* no number up to ZT_PLAN_MAX_SEQUENCES has more divisors */ };

static const double SAME_TIME = 1.02;

/*
 * The table. A new kind of recomputation or offload is one row, between what gives up less and what
 * gives up more. Whether two options go together is zt_plan_create()'s to say.
 */
/* clang-format off */
#define STAGE(n) {ZT_FIT_STAGE, n, 0, #n, {"zero_optimization.stage=" #n}}
#define RECOMPUTE(kind, word) {ZT_FIT_RECOMPUTE, kind, 0, word, {"activation_checkpointing.policy=" word}}
#define EVERY(n) \
    {ZT_FIT_RECOMPUTE, ZT_RECOMPUTE_EVERY, n, "every " #n, \
     {"activation_checkpointing.policy=every", "activation_checkpointing.every=" #n}}
#define INPUTS(on, word, place) \
    {ZT_FIT_CPU_CHECKPOINTING, on, 0, place, {"activation_checkpointing.cpu_checkpointing=" word}}
#define OPTIMIZER(kind, word, place) \
    {ZT_FIT_OFFLOAD_OPTIMIZER, kind, 0, place, {"zero_optimization.offload_optimizer.device=" word}}
#define PARAM(kind, word, place) \
    {ZT_FIT_OFFLOAD_PARAM, kind, 0, place, {"zero_optimization.offload_param.device=" word}}

const struct zt_fit_option zt_fit_options[] = {
    STAGE(0), STAGE(1), STAGE(2), STAGE(3),
    RECOMPUTE(ZT_RECOMPUTE_NONE, "none"),
    RECOMPUTE(ZT_RECOMPUTE_SELECTIVE, "selective"),
    RECOMPUTE(ZT_RECOMPUTE_BLOCK, "block"),
    EVERY(2), EVERY(4), EVERY(8),
    INPUTS(false, "false", "device"),
    INPUTS(true, "true", "cpu"),
    OPTIMIZER(ZT_OFFLOAD_NONE, "none", "device"),
    OPTIMIZER(ZT_OFFLOAD_CPU, "cpu", "cpu"),
    OPTIMIZER(ZT_OFFLOAD_NVME, "nvme", "nvme"),
    PARAM(ZT_OFFLOAD_NONE, "none", "device"),
    PARAM(ZT_OFFLOAD_CPU, "cpu", "cpu"),
    PARAM(ZT_OFFLOAD_NVME, "nvme", "nvme"),
};
/* clang-format on */
const int zt_n_fit_options = ZT_ARRAY_LEN(zt_fit_options);

/* Does the configuration stand on the row? */
static bool stands_on(const struct zt_plan_config *cfg, const struct zt_fit_option *o)
{
    switch (o->dim) {
    case ZT_FIT_STAGE:
        return cfg->stage == o->value;
    case ZT_FIT_RECOMPUTE:
        return (int)cfg->recompute == o->value &&
               (cfg->recompute != ZT_RECOMPUTE_EVERY || cfg->recompute_every == o->every);
    case ZT_FIT_CPU_CHECKPOINTING:
        return (int)cfg->cpu_checkpointing == o->value;
    case ZT_FIT_OFFLOAD_OPTIMIZER:
        return (int)cfg->offload_optimizer == o->value;
    case ZT_FIT_OFFLOAD_PARAM:
        return (int)cfg->offload_param == o->value;
    case ZT_FIT_MICRO_BATCH:
    case ZT_N_FIT_DIMS:
        break;
    }
    ZT_ASSERT_CMP(o->dim, <, ZT_N_FIT_DIMS);
    return false;
}

static void apply(struct zt_plan_config *cfg, const struct zt_fit_option *o)
{
    switch (o->dim) {
    case ZT_FIT_STAGE:
        cfg->stage = o->value;
        return;
    case ZT_FIT_RECOMPUTE:
        cfg->recompute = (enum zt_recompute)o->value;
        cfg->recompute_every = o->every;
        return;
    case ZT_FIT_CPU_CHECKPOINTING:
        cfg->cpu_checkpointing = o->value;
        return;
    case ZT_FIT_OFFLOAD_OPTIMIZER:
        cfg->offload_optimizer = (enum zt_offload)o->value;
        return;
    case ZT_FIT_OFFLOAD_PARAM:
        cfg->offload_param = (enum zt_offload)o->value;
        return;
    case ZT_FIT_MICRO_BATCH:
    case ZT_N_FIT_DIMS:
        break;
    }
    ZT_ASSERT_CMP(o->dim, <, ZT_N_FIT_DIMS);
}

const struct zt_fit_option *zt_fit_option_of(const struct zt_plan_config *cfg, enum zt_fit_dim dim)
{
    for (int i = 0; i < zt_n_fit_options; i++)
        if (zt_fit_options[i].dim == dim && stands_on(cfg, &zt_fit_options[i]))
            return &zt_fit_options[i];
    return NULL;
}

/* ---- ladders ---- */

struct ladder {
    int n;
    const struct zt_fit_option *option[MAX_RUNGS]; /* [0] NULL: as asked for */
    int64_t micro[MAX_RUNGS];                      /* of the micro-batch's ladder */
};

struct search {
    const struct zt_model *model;
    const struct zt_plan_config *cfg;
    const struct zt_fit_limits *limits;
    enum zt_fit_search what;
    struct ladder ladders[ZT_N_FIT_DIMS];
    struct zt_fit *out;
    struct zt_err ignored; /* why the last combination that cannot be planned cannot */
};

static bool is_nvme(const struct zt_fit_option *o)
{
    return (o->dim == ZT_FIT_OFFLOAD_OPTIMIZER || o->dim == ZT_FIT_OFFLOAD_PARAM) &&
           o->value == ZT_OFFLOAD_NVME;
}

static struct ladder ladder_of(const struct zt_plan_config *cfg, enum zt_fit_dim dim, bool nvme)
{
    struct ladder l = {.n = 1};
    const struct zt_fit_option *end = zt_fit_options + zt_n_fit_options;
    for (const struct zt_fit_option *o = zt_fit_option_of(cfg, dim); o && ++o < end;) {
        if (o->dim != dim)
            break;
        if (is_nvme(o) && !nvme)
            continue;
        ZT_ASSERT_CMP(l.n, <, MAX_RUNGS);
        l.option[l.n++] = o;
    }
    return l;
}

/*
 * Divisors of the micro-batch, largest first, as long as a step may have that many micro-batches; none of one
 * that no plan may have.
 */
static struct ladder micro_ladder(const struct zt_model *m, const struct zt_plan_config *cfg)
{
    struct ladder l = {.n = 1, .micro = {cfg->micro_batch}};
    const int64_t most = ZT_MIN(cfg->micro_batch, zt_plan_max_accum(m) / cfg->accum);
    if (cfg->micro_batch > ZT_PLAN_MAX_SEQUENCES)
        return l;
    for (int64_t d = 2; d <= most; d++) {
        if (cfg->micro_batch % d)
            continue;
        ZT_ASSERT_CMP(l.n, <, MAX_RUNGS);
        l.micro[l.n++] = cfg->micro_batch / d;
    }
    return l;
}

static struct zt_fit_choice choice_at(const struct search *s, const int rung[ZT_N_FIT_DIMS])
{
    struct zt_fit_choice c = {.cfg = *s->cfg, .nvme_path = s->limits->nvme_path};
    memcpy(c.rung, rung, sizeof c.rung);
    for (int d = 0; d < ZT_N_FIT_DIMS; d++)
        if (d != ZT_FIT_MICRO_BATCH && rung[d] > 0)
            apply(&c.cfg, s->ladders[d].option[rung[d]]);
    const int64_t micro = s->ladders[ZT_FIT_MICRO_BATCH].micro[rung[ZT_FIT_MICRO_BATCH]];
    if (c.cfg.eval_micro_batch == c.cfg.micro_batch)
        c.cfg.eval_micro_batch = micro;
    c.cfg.accum *= (int)(c.cfg.micro_batch / micro);
    c.cfg.micro_batch = micro;
    return c;
}

/* ---- sizes ---- */

static bool within(size_t device, size_t host, const struct zt_fit_limits *l)
{
    return device <= l->device.bytes && host <= l->host.bytes && device <= l->both.bytes &&
           host <= l->both.bytes - device;
}

bool zt_fit_fits(const struct zt_plan *p, const struct zt_fit_limits *limits)
{
    return within(zt_plan_device_bytes(p), p->ledger.peak[ZT_AR_HOST], limits);
}

/*
 * What is alive at one time by program order: no packing needs less, for it widens lifetimes. Found in no
 * time, beside the schedule that decides how far.
 */
static void count_live(const struct zt_plan *p, struct zt_fit_choice *c)
{
    struct zt_life *life = zt_xcalloc((size_t)p->n_bufs, sizeof *life);
    size_t most[ZT_N_ARENAS] = {0};
    for (int k = 0; k < ZT_N_PROGRAMS; k++) {
        if (p->programs[k].n_ops == 0)
            continue;
        zt_lifetimes_plain(p, (enum zt_program_kind)k, life);
        for (int a = 0; a < ZT_N_ARENAS; a++)
            most[a] = ZT_MAX(most[a],
                             zt_live_bound(p, (enum zt_program_kind)k, life, (enum zt_arena_id)a));
    }
    c->device = most[ZT_AR_DEVICE] + most[ZT_AR_SHARED];
    c->host = most[ZT_AR_HOST];
    free(life);
}

/* What lives at one time, which no plan needs less than; and if that fits and is to be `placed`, the plan's. */
static int size_choice(const struct zt_model *model, const struct zt_fit_limits *limits,
                       struct zt_fit_choice *c, bool placed, struct zt_err *err)
{
    struct zt_plan *p;
    int rc = zt_plan_outline(model, &c->cfg, 0, &p, err);
    if (rc)
        return rc;
    count_live(p, c);
    c->exact = placed && within(c->device, c->host, limits);
    if (c->exact) {
        zt_plan_arrange(p);
        c->device = zt_plan_device_bytes(p);
        c->host = p->ledger.peak[ZT_AR_HOST];
    }
    c->fits = within(c->device, c->host, limits);
    c->step_s = p->programs[ZT_PROG_TRAIN].time_s;
    zt_plan_free(p);
    return 0;
}

int zt_fit_size(const struct zt_model *model, const struct zt_fit_limits *limits,
                struct zt_fit_choice *c, struct zt_err *err)
{
    return size_choice(model, limits, c, true, err);
}

/* ---- search ---- */

static void keep(struct search *s, const struct zt_fit_choice *c)
{
    struct zt_fit *f = s->out;
    ZT_GROW(f->choices, f->n + 1, f->cap);
    f->choices[f->n++] = *c;
}

/* Does b give up all that a does? */
static bool gives_up_all_of(const int a[ZT_N_FIT_DIMS], const int b[ZT_N_FIT_DIMS])
{
    for (int d = 0; d < ZT_N_FIT_DIMS; d++)
        if (a[d] > b[d])
            return false;
    return true;
}

/* Is there no need to look, for a choice that gives up less was found to fit? */
static bool is_more_than_kept(const struct search *s, const int rung[ZT_N_FIT_DIMS])
{
    for (int i = 0; i < s->out->n; i++) {
        const struct zt_fit_choice *c = &s->out->choices[i];
        if (c->fits && gives_up_all_of(c->rung, rung) &&
            (s->what == ZT_FIT_CHANGES || c->rung[ZT_FIT_STAGE] == rung[ZT_FIT_STAGE]))
            return true;
    }
    return false;
}

/* Bytes beyond the limits, where one does not fit. */
static size_t beyond(const struct zt_fit_choice *c, const struct zt_fit_limits *l)
{
    const size_t device = c->device - ZT_MIN(c->device, l->device.bytes);
    const size_t host = c->host - ZT_MIN(c->host, l->host.bytes);
    const size_t left = l->both.bytes - ZT_MIN(c->device, l->both.bytes);
    return device + host + (c->host - ZT_MIN(c->host, left));
}

/* Is `a` nearer to what is allowed than `b`, or as near with less of the device? */
static bool is_less(const struct zt_fit_choice *a, const struct zt_fit_choice *b,
                    const struct zt_fit_limits *l)
{
    const size_t x = beyond(a, l), y = beyond(b, l);
    return x != y ? x < y : a->device < b->device;
}

static void note_least(struct search *s, const struct zt_fit_choice *c)
{
    struct zt_fit_choice *least = &s->out->least;
    if (least->cfg.stage < 0 || is_less(c, least, s->limits))
        *least = *c;
}

/* Plan the choice at `rung`; 0, or why it cannot be planned. */
static int size_at(struct search *s, const int rung[ZT_N_FIT_DIMS], struct zt_fit_choice *c)
{
    *c = choice_at(s, rung);
    int rc = zt_fit_size(s->model, s->limits, c, &s->ignored);
    s->out->n_outlined++;
    s->out->n_placed += !rc && c->exact;
    if (!rc)
        note_least(s, c);
    return rc;
}

/* What lives at one time on a rung of the micro-batch; 0, or why it cannot be planned. */
static int live_at(struct search *s, int rung[ZT_N_FIT_DIMS], int micro, struct zt_fit_choice *c)
{
    rung[ZT_FIT_MICRO_BATCH] = micro;
    *c = choice_at(s, rung);
    s->out->n_outlined++;
    return size_choice(s->model, s->limits, c, false, &s->ignored);
}

/*
 * The first smaller micro-batch that may fit; or how many there are, for none. What lives at one time falls with
 * it, and where there are many ranks grows again: a step has more partial norms, of every rank. If the smallest
 * fits, all below the first do, and bisection finds it. If not, others may only where it needs more than the one
 * before; then look at all.
 */
static int first_that_may_fit(struct search *s, int rung[ZT_N_FIT_DIMS])
{
    const int n = s->ladders[ZT_FIT_MICRO_BATCH].n;
    int lo = 0, hi = n - 1; /* lo does not fit, hi does */
    struct zt_fit_choice c, before;
    if (n == 1)
        return n;
    const int rc = live_at(s, rung, hi, &c);
    if (rc || !c.fits) {
        if (live_at(s, rung, hi - 1, &before) || c.device > before.device || c.host > before.host)
            return 1;
        if (!rc)
            note_least(s, &c);
        return n;
    }
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (live_at(s, rung, mid, &c) == 0 && c.fits)
            hi = mid;
        else
            lo = mid;
    }
    return hi;
}

/* Keep the largest smaller micro-batch that fits, if one does. */
static void try_micro_batches(struct search *s, int rung[ZT_N_FIT_DIMS])
{
    for (int i = first_that_may_fit(s, rung); i < s->ladders[ZT_FIT_MICRO_BATCH].n; i++) {
        struct zt_fit_choice c;
        rung[ZT_FIT_MICRO_BATCH] = i;
        if (size_at(s, rung, &c) == 0 && c.fits) {
            keep(s, &c);
            return;
        }
    }
}

/* The same with the micro-batch as asked for, and smaller ones if need be; kept as `what` says. */
static int visit(struct search *s, int rung[ZT_N_FIT_DIMS])
{
    struct zt_fit_choice c;
    if (is_more_than_kept(s, rung))
        return 0;
    int rc = size_at(s, rung, &c);
    if (rc)
        return rc;
    if (s->what == ZT_FIT_ALL || c.fits)
        keep(s, &c);
    else
        try_micro_batches(s, rung);
    rung[ZT_FIT_MICRO_BATCH] = 0;
    return 0;
}

/* Visit all rungs of the ladders of `dim` and below; how many can be planned. The stage varies fastest. */
static int visit_below(struct search *s, int dim, int rung[ZT_N_FIT_DIMS])
{
    int n = 0;
    if (dim < 0)
        return visit(s, rung) == 0;
    for (int i = 0; i < (dim == ZT_FIT_MICRO_BATCH ? 1 : s->ladders[dim].n); i++) {
        rung[dim] = i;
        n += visit_below(s, dim - 1, rung);
    }
    rung[dim] = 0;
    return n;
}

static int by_order(const void *pa, const void *pb)
{
    const struct zt_fit_choice *a = pa, *b = pb;
    for (int d = ZT_N_FIT_DIMS - 1; d >= 0; d--)
        if (a->rung[d] != b->rung[d])
            return a->rung[d] < b->rung[d] ? -1 : 1;
    return 0;
}

/* Leave out what gives up all that another one does, and more. */
static void keep_least(struct zt_fit *f)
{
    int n = 0;
    for (int i = 0; i < f->n; i++) {
        bool least = true;
        for (int k = 0; k < f->n; k++)
            least &= k == i || !gives_up_all_of(f->choices[k].rung, f->choices[i].rung);
        f->choices[i].fits = least; /* all of them fit; what is left out no longer counts */
    }
    for (int i = 0; i < f->n; i++)
        if (f->choices[i].fits)
            f->choices[n++] = f->choices[i];
    f->n = n;
}

/* Why nothing can be planned: at the last stage, which goes with every offload. */
static int why_not(const struct search *s, struct zt_err *err)
{
    const int rung[ZT_N_FIT_DIMS] = {[ZT_FIT_STAGE] = s->ladders[ZT_FIT_STAGE].n - 1};
    struct zt_fit_choice c = choice_at(s, rung);
    int rc = zt_fit_size(s->model, s->limits, &c, err);
    ZT_ASSERT_CMP(rc, !=, 0);
    return rc;
}

int zt_fit_search(const struct zt_model *model, const struct zt_plan_config *cfg,
                  const struct zt_fit_limits *limits, enum zt_fit_search what, struct zt_fit *out,
                  struct zt_err *err)
{
    struct search s = {.model = model, .cfg = cfg, .limits = limits, .what = what, .out = out};
    *out = (struct zt_fit){.least.cfg.stage = -1};
    for (int d = 0; d < ZT_N_FIT_DIMS; d++)
        s.ladders[d] = d == ZT_FIT_MICRO_BATCH
                           ? micro_ladder(model, cfg)
                           : ladder_of(cfg, (enum zt_fit_dim)d, limits->nvme_path);
    int rung[ZT_N_FIT_DIMS] = {0};
    if (visit_below(&s, ZT_N_FIT_DIMS - 1, rung) == 0)
        return why_not(&s, err);
    if (out->n > 0)
        qsort(out->choices, (size_t)out->n, sizeof *out->choices, by_order);
    if (what == ZT_FIT_CHANGES)
        keep_least(out);
    return out->least.exact ? 0 : zt_fit_size(model, &ZT_FIT_NO_LIMITS, &out->least, err);
}

void zt_fit_release(struct zt_fit *f)
{
    free(f->choices);
    *f = (struct zt_fit){0};
}

/* ---- the cheapest ---- */

int zt_fit_ranked(const struct zt_fit *f, const struct zt_fit_choice **out, int max)
{
    bool *taken = zt_xcalloc((size_t)f->n + 1, sizeof *taken);
    int n = 0;
    for (; n < max; n++) {
        double fastest = 0;
        int next = -1;
        for (int i = 0; i < f->n; i++)
            if (f->choices[i].fits && !taken[i] && (next < 0 || f->choices[i].step_s < fastest)) {
                fastest = f->choices[i].step_s;
                next = i;
            }
        if (next < 0)
            break;
        for (int i = next; i >= 0; i--)
            if (f->choices[i].fits && !taken[i] && f->choices[i].step_s <= SAME_TIME * fastest)
                next = i;
        taken[next] = true;
        out[n] = &f->choices[next];
    }
    free(taken);
    return n;
}

const struct zt_fit_choice *zt_fit_cheapest(const struct zt_fit *f)
{
    const struct zt_fit_choice *c;
    return zt_fit_ranked(f, &c, 1) ? c : NULL;
}

/* ---- how to ask for it ---- */

static int add_micro_batch(const struct zt_fit_choice *c, struct zt_arena *arena, const char **out)
{
    out[0] = zt_arena_printf(arena, "train_micro_batch_size_per_gpu=%lld",
                             (long long)c->cfg.micro_batch);
    out[1] = zt_arena_printf(arena, "gradient_accumulation_steps=%d", c->cfg.accum);
    return 2;
}

static int add_option(const struct zt_fit_choice *c, const struct zt_fit_option *o,
                      struct zt_arena *arena, const char **out)
{
    out[0] = o->set[0];
    out[1] = o->set[1];
    if (!is_nvme(o))
        return o->set[1] ? 2 : 1;
    out[1] = zt_arena_printf(arena, "zero_optimization.%s.nvme_path=%s",
                             o->dim == ZT_FIT_OFFLOAD_PARAM ? "offload_param" : "offload_optimizer",
                             c->nvme_path);
    return 2;
}

void zt_fit_sets(const struct zt_fit_choice *c, bool all, struct zt_arena *arena, int *n,
                 const char *const **sets)
{
    const char **out = zt_arena_alloc(arena, (size_t)2 * ZT_N_FIT_DIMS, sizeof *out);
    *n = 0;
    *sets = out;
    for (int d = 0; d < ZT_N_FIT_DIMS; d++) {
        if (c->rung[d] == 0 && !(all && d == ZT_FIT_STAGE))
            continue;
        *n += d == ZT_FIT_MICRO_BATCH
                  ? add_micro_batch(c, arena, out + *n)
                  : add_option(c, zt_fit_option_of(&c->cfg, (enum zt_fit_dim)d), arena, out + *n);
    }
}
