#include "plan/plan.h"

#include "plan/passes.h"

int zt_plan_outline(const struct zt_model *model, const struct zt_plan_config *cfg, int rank,
                    struct zt_plan **out, struct zt_err *err)
{
    struct zt_plan *p;
    *out = NULL;
    int rc = zt_plan_create(model, cfg, rank, &p, err);
    if (rc)
        return rc;
    rc = zt_plan_emit(p, err);
    if (rc) {
        zt_plan_free(p);
        return rc;
    }
    zt_plan_layout(p, p->ledger.peak);
    *out = p;
    return 0;
}

void zt_plan_arrange(struct zt_plan *p)
{
    size_t base[ZT_N_ARENAS];
    memcpy(base, p->ledger.peak, sizeof base);
    for (int k = 0; k < ZT_N_PROGRAMS; k++)
        if (p->programs[k].n_ops > 0)
            zt_schedule_program(p, (enum zt_program_kind)k, p->cfg.backlog, base, p->ledger.peak);
}

static int build(const struct zt_model *model, const struct zt_plan_config *cfg, int rank,
                 struct zt_plan **out, struct zt_err *err)
{
    int rc = zt_plan_outline(model, cfg, rank, out, err);
    if (rc)
        return rc;
    zt_plan_arrange(*out);
    zt_plan_ledger(*out);
    return 0;
}

/* The whole program, proven; frees the plan if it is not. */
static int prove_whole(struct zt_plan **p, struct zt_err *err)
{
    zt_plan_unroll(*p, (*p)->fold.n_repeats);
    int rc = zt_verify(*p, err);
    if (rc) {
        zt_plan_free(*p);
        *p = NULL;
    }
    return rc;
}

int zt_plan_build(const struct zt_model *model, const struct zt_plan_config *cfg, int rank,
                  struct zt_plan **out, struct zt_err *err)
{
    int rc = build(model, cfg, rank, out, err);
    return rc ? rc : prove_whole(out, err);
}

int zt_plan_build_folded(const struct zt_model *model, const struct zt_plan_config *cfg, int rank,
                         struct zt_plan **out, struct zt_err *err)
{
    struct zt_err not_alike = {0};
    int rc = build(model, cfg, rank, out, err);
    if (rc)
        return rc;
    zt_plan_unroll(*out, ZT_FOLD_SETTLED);
    if ((*out)->fold.n_repeats > 0 && zt_verify(*out, &not_alike) == 0)
        return 0;
    return prove_whole(out, err);
}
