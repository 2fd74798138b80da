#include "plan/plan.h"

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

int zt_plan_build(const struct zt_model *model, const struct zt_plan_config *cfg, int rank,
                  struct zt_plan **out, struct zt_err *err)
{
    struct zt_plan *p;
    *out = NULL;
    int rc = zt_plan_outline(model, cfg, rank, &p, err);
    if (rc)
        return rc;
    zt_plan_arrange(p);
    zt_plan_ledger(p);
    zt_plan_unfold(p);
    rc = zt_verify(p, err);
    if (rc) {
        zt_plan_free(p);
        return rc;
    }
    *out = p;
    return 0;
}
