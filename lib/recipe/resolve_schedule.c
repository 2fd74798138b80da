#include "recipe/load.h"

#include <inttypes.h>

/*
 * scheduler: {type, params} -> struct zt_schedule. Each parameter belongs to some of the types; with
 * another type it is an error, as in DeepSpeed, and the resolved recipe does not say it.
 */

#define PARAMS "scheduler.params."
#define ON(kind) (1u << ZT_SCHED_##kind)
#define OURS (ON(CONSTANT) | ON(COSINE))
#define WARMUPS (ON(WARMUP) | ON(WARMUP_DECAY) | ON(WARMUP_COSINE))

static const struct param {
    const char *path;
    unsigned kinds;
    bool needed; /* by its types */
} params[] = {
    {PARAMS "warmup_steps", OURS, false},
    {PARAMS "total_steps", ON(COSINE), false},
    {PARAMS "min_lr", ON(COSINE), false},
    {PARAMS "warmup_min_lr", ON(WARMUP) | ON(WARMUP_DECAY), false},
    {PARAMS "warmup_max_lr", ON(WARMUP) | ON(WARMUP_DECAY), false},
    {PARAMS "warmup_num_steps", WARMUPS, false},
    {PARAMS "warmup_type", WARMUPS, false},
    {PARAMS "total_num_steps", ON(WARMUP_DECAY) | ON(WARMUP_COSINE), false},
    {PARAMS "warmup_min_ratio", ON(WARMUP_COSINE), false},
    {PARAMS "cos_min_ratio", ON(WARMUP_COSINE), false},
    {PARAMS "lr_range_test_min_lr", ON(RANGE_TEST), false},
    {PARAMS "lr_range_test_step_size", ON(RANGE_TEST), false},
    {PARAMS "lr_range_test_step_rate", ON(RANGE_TEST), false},
    {PARAMS "lr_range_test_staircase", ON(RANGE_TEST), false},
    {PARAMS "cycle_min_lr", ON(ONE_CYCLE), true},
    {PARAMS "cycle_max_lr", ON(ONE_CYCLE), true},
    {PARAMS "cycle_first_step_size", ON(ONE_CYCLE), false},
    {PARAMS "cycle_first_stair_count", ON(ONE_CYCLE), false},
    {PARAMS "cycle_second_step_size", ON(ONE_CYCLE), false},
    {PARAMS "cycle_second_stair_count", ON(ONE_CYCLE), false},
    {PARAMS "cycle_momentum", ON(ONE_CYCLE), false},
    {PARAMS "cycle_min_mom", ON(ONE_CYCLE), false},
    {PARAMS "cycle_max_mom", ON(ONE_CYCLE), false},
    {PARAMS "decay_step_size", ON(ONE_CYCLE), false},
    {PARAMS "decay_lr_rate", ON(ONE_CYCLE), false},
    {PARAMS "decay_mom_rate", ON(ONE_CYCLE), false},
};

/* A type's name; kinds have the order of the key's words. */
static const char *kind_name(const struct zt_load *ld, int kind)
{
    return zt_word_at(zt_keys[zt_key_find("scheduler.type")].ok, kind, ld->arena);
}

/* "WarmupLR, WarmupDecayLR" */
static const char *kind_names(const struct zt_load *ld, unsigned kinds)
{
    const char *out = "";
    for (int k = 0; k <= ZT_SCHED_ONE_CYCLE; k++)
        if (kinds & 1u << k)
            out = zt_arena_printf(ld->arena, "%s%s%s", out, out[0] ? ", " : "", kind_name(ld, k));
    return out;
}

/* Constant is what no type means, and resolved recipes of earlier versions say Cosine's settings with it. */
static void say_foreign(struct zt_load *ld, const struct param *p, const struct zt_node *given,
                        int kind)
{
    if (kind == ZT_SCHED_CONSTANT && p->kinds == ON(COSINE))
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, given->at,
                    "%s: not used: belongs to %s, and scheduler.type is %s", p->path,
                    kind_names(ld, p->kinds), kind_name(ld, kind));
    else
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, given->at, "%s: belongs to %s, not to %s", p->path,
                    kind_names(ld, p->kinds), kind_name(ld, kind));
}

static void check_params(struct zt_load *ld, int kind)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(params); i++) {
        const struct param *p = &params[i];
        const struct zt_node *given = zt_load_given(ld, p->path);
        bool belongs = p->kinds & 1u << kind;
        if (!belongs) {
            zt_load_unsaid(ld, p->path);
            if (given)
                say_foreign(ld, p, given, kind);
        } else if (p->needed && !given && !zt_load_any_bad(ld, p->path)) {
            zt_diag_add(&ld->errors, ZT_DIAG_MISSING, zt_load_pos(ld, "scheduler.type"),
                        "scheduler.type: %s needs %s", kind_name(ld, kind), p->path);
        }
    }
}

/* What is not given and follows from something else. */
static void derive(struct zt_load *ld, int kind)
{
    struct zt_schedule_keys *k = &ld->settings->schedule;
    const struct zt_recipe *r = &ld->settings->r;
    const struct {
        const char *path;
        int64_t *to, from;
    } whole[] = {
        {PARAMS "total_steps", &k->total_steps, r->train.steps},
        {PARAMS "total_num_steps", &k->total_num_steps, r->train.steps},
        {PARAMS "cycle_second_step_size", &k->cycle_second_step_size, k->cycle_first_step_size},
        {PARAMS "cycle_second_stair_count", &k->cycle_second_stair_count,
         k->cycle_first_stair_count},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(whole); i++) {
        if (zt_load_given(ld, whole[i].path))
            continue;
        *whole[i].to = whole[i].from;
        zt_load_derived(ld, whole[i].path);
    }
    if (!zt_load_given(ld, PARAMS "warmup_max_lr")) {
        k->warmup_max_lr = r->optimizer.lr;
        zt_load_derived(ld, PARAMS "warmup_max_lr");
        if (kind == ZT_SCHED_WARMUP_DECAY && zt_load_given(ld, "optimizer.params.lr"))
            zt_diag_add(&ld->notes, ZT_DIAG_WRONG, zt_load_pos(ld, "scheduler.type"),
                        PARAMS "warmup_max_lr: not given: optimizer.params.lr, %g, is taken, where "
                               "DeepSpeed takes 0.001",
                        r->optimizer.lr);
    }
}

static void set_cycle(struct zt_load *ld, struct zt_schedule *s)
{
    const struct zt_schedule_keys *k = &ld->settings->schedule;
    s->lr = k->cycle_max_lr;
    s->min_lr = k->cycle_min_lr;
    s->cycle = (struct zt_one_cycle){
        .first_size = k->cycle_first_step_size,
        .second_size = k->cycle_second_step_size,
        .first_stairs = k->cycle_first_stair_count,
        .second_stairs = k->cycle_second_stair_count,
        .decay_size = k->decay_step_size,
        .decay_lr_rate = k->decay_lr_rate,
        .decay_mom_rate = k->decay_mom_rate,
        .min_mom = k->cycle_min_mom,
        .max_mom = k->cycle_max_mom,
        .cycle_momentum = k->cycle_momentum,
    };
}

static void set_schedule(struct zt_load *ld, struct zt_schedule *s)
{
    const struct zt_schedule_keys *k = &ld->settings->schedule;
    const double lr = ld->settings->r.optimizer.lr;
    s->lr = lr;
    if (1u << s->kind & WARMUPS) {
        s->log_warmup = k->warmup_type == 0;
        s->warmup_steps = ZT_MAX(k->warmup_num_steps, (int64_t)2); /* log 1 would divide by 0 */
        s->total_steps = k->total_num_steps;
    }
    switch ((enum zt_schedule_kind)s->kind) {
    case ZT_SCHED_CONSTANT:
        s->warmup_steps = k->warmup_steps;
        break;
    case ZT_SCHED_COSINE:
        s->warmup_steps = k->warmup_steps;
        s->total_steps = k->total_steps;
        s->min_lr = k->min_lr;
        break;
    case ZT_SCHED_WARMUP:
    case ZT_SCHED_WARMUP_DECAY:
        s->start_lr = k->warmup_min_lr;
        s->lr = k->warmup_max_lr;
        break;
    case ZT_SCHED_WARMUP_COSINE:
        s->start_lr = lr * k->warmup_min_ratio;
        s->min_lr = lr * k->cos_min_ratio;
        break;
    case ZT_SCHED_RANGE_TEST:
        s->lr = s->start_lr = k->range_min_lr;
        s->range =
            (struct zt_range_test){k->range_step_size, k->range_step_rate, k->range_staircase, 0};
        break;
    case ZT_SCHED_ONE_CYCLE:
        set_cycle(ld, s);
        break;
    }
}

/* The rates must stand in order: `low` <= `high`, keys as given. */
static void check_order(struct zt_load *ld, const char *low, double x, const char *high, double y)
{
    if (x > y)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, low), "%s: %g is above %s %g", low,
                    x, high, y);
}

/* A short trial of a long schedule: DeepSpeed too goes on with a warning. */
static void check_steps(struct zt_load *ld, const struct zt_schedule *s)
{
    if (s->warmup_steps <= s->total_steps)
        return;
    const char *path =
        s->kind == ZT_SCHED_COSINE ? PARAMS "warmup_steps" : PARAMS "warmup_num_steps";
    zt_diag_add(&ld->notes, ZT_DIAG_WRONG, zt_load_pos(ld, path),
                "%s: %" PRId64 " is more than the %" PRId64
                " steps of the schedule: it ends in its warm-up",
                path, s->warmup_steps, s->total_steps);
}

/* The schedule says what the optimizer's settings say too: tell who wins. */
static void note_overruled(struct zt_load *ld, const struct zt_schedule *s)
{
    bool rate_is_its_own = s->kind != ZT_SCHED_CONSTANT && s->kind != ZT_SCHED_COSINE &&
                           s->kind != ZT_SCHED_WARMUP_COSINE;
    const struct zt_node *lr = zt_load_given(ld, "optimizer.params.lr");
    if (rate_is_its_own && lr && ld->settings->r.optimizer.lr != s->lr)
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, lr->at,
                    "optimizer.params.lr: %s is not used: %s has rates of its own", lr->text,
                    kind_name(ld, s->kind));
}

/* DeepSpeed's OneCycle sets both betas: the first moves, the second is 0.99. */
static void take_momentum(struct zt_load *ld, const struct zt_schedule *s)
{
    struct zt_settings *st = ld->settings;
    const double betas[2] = {s->cycle.min_mom, 0.99};
    const struct zt_node *given = zt_load_given(ld, "optimizer.params.betas");
    check_order(ld, PARAMS "cycle_min_mom", s->cycle.min_mom, PARAMS "cycle_max_mom",
                s->cycle.max_mom);
    if (s->cycle.max_mom >= 1)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, PARAMS "cycle_max_mom"),
                    PARAMS "cycle_max_mom: must be below 1");
    else if (zt_schedule_beta1_end(s) < st->r.train.steps)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, PARAMS "decay_mom_rate"),
                    PARAMS "decay_mom_rate: beta1 would reach 1 in update %" PRId64 " of %" PRId64
                           "; lower it, or train.steps",
                    zt_schedule_beta1_end(s), st->r.train.steps);
    if (given && memcmp(st->betas, betas, sizeof betas) != 0)
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, given->at,
                    "optimizer.params.betas: not used: OneCycle moves beta1 and takes 0.99 for "
                    "beta2, as in DeepSpeed; " PARAMS "cycle_momentum: false keeps them");
    memcpy(st->betas, betas, sizeof betas);
    zt_load_derived(ld, "optimizer.params.betas");
}

static void check_schedule(struct zt_load *ld, const struct zt_schedule *s)
{
    if (s->kind == ZT_SCHED_COSINE)
        check_order(ld, PARAMS "min_lr", s->min_lr, "the learning rate", s->lr);
    if (s->kind == ZT_SCHED_COSINE || s->kind == ZT_SCHED_WARMUP_DECAY ||
        s->kind == ZT_SCHED_WARMUP_COSINE)
        check_steps(ld, s);
    if (s->kind == ZT_SCHED_WARMUP || s->kind == ZT_SCHED_WARMUP_DECAY)
        check_order(ld, PARAMS "warmup_min_lr", s->start_lr, PARAMS "warmup_max_lr", s->lr);
    if (s->kind == ZT_SCHED_ONE_CYCLE)
        check_order(ld, PARAMS "cycle_min_lr", s->min_lr, PARAMS "cycle_max_lr", s->lr);
}

void zt_load_schedule(struct zt_load *ld)
{
    struct zt_schedule *s = &ld->settings->r.schedule;
    if (zt_load_any_bad(ld, "scheduler") || zt_load_any_bad(ld, "optimizer"))
        return;
    s->kind = ld->settings->scheduler;
    derive(ld, s->kind);
    check_params(ld, s->kind);
    set_schedule(ld, s);
    check_schedule(ld, s);
    note_overruled(ld, s);
    if (zt_schedule_moves_beta1(s))
        take_momentum(ld, s);
}
