#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

enum { MAX_BACKLOG = 8 };

static const double NEAR_UNLIMITED = 1.03; /* what reuse of bytes may cost */

/* One try: offsets, waits and time for a backlog; peak[] is raised from base[]. */
static void try_backlog(struct zt_plan *p, enum zt_program_kind k,
                        const struct zt_wait_list *unlimited, int backlog,
                        const size_t base[ZT_N_ARENAS], size_t peak[ZT_N_ARENAS])
{
    struct zt_program *prog = &p->programs[k];
    struct zt_life *life = zt_xcalloc(p->n_bufs, sizeof *life);
    struct zt_sim sim;
    memcpy(peak, base, ZT_N_ARENAS * sizeof *peak);
    zt_lifetimes_by_waits(p, k, unlimited, backlog, life);
    zt_pack(p, k, life, base, peak);
    zt_derive_waits(p, k);
    zt_simulate(p, k, p->cfg.profile, NULL, &sim);
    prog->backlog = backlog;
    prog->time_s = sim.step_s;
    prog->critical_path_s = sim.critical_path_s;
    prog->busiest_s = 0;
    for (int s = 0; s < ZT_N_STREAMS; s++)
        prog->busiest_s = ZT_MAX(prog->busiest_s, sim.busy_s[s]);
    zt_sim_release(&sim);
    free(life);
}

static bool reduces_gradients(const struct zt_program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        if (prog->ops[i].kind == ZT_OP_REDUCE)
            return true;
    return false;
}

void zt_schedule_program(struct zt_plan *p, enum zt_program_kind k, int backlog,
                         const size_t base[ZT_N_ARENAS], size_t peak[ZT_N_ARENAS])
{
    struct zt_program *prog = &p->programs[k];
    struct zt_wait_list unlimited, windowed;
    struct zt_sim sim;
    size_t own_peak[ZT_N_ARENAS];
    zt_derive_waits_unlimited(p, k, &unlimited);
    zt_windowed_waits(p, k, &unlimited, 0, &windowed);
    zt_simulate(p, k, p->cfg.profile, &windowed, &sim);
    prog->time_unlimited_s = sim.step_s;

    /* Only a known profile and gradients to reduce make the backlog matter. */
    bool choose = !backlog && p->cfg.profile_known && reduces_gradients(prog);
    int best = backlog ? backlog : 1;
    try_backlog(p, k, &unlimited, best, base, own_peak);
    double best_s = prog->time_s;
    for (int d = 2; choose && d <= MAX_BACKLOG; d *= 2) {
        if (best_s <= NEAR_UNLIMITED * prog->time_unlimited_s)
            break;
        try_backlog(p, k, &unlimited, d, base, own_peak);
        if (prog->time_s < best_s) {
            best = d;
            best_s = prog->time_s;
        }
    }
    if (prog->backlog != best)
        try_backlog(p, k, &unlimited, best, base, own_peak);
    for (int a = 0; a < ZT_N_ARENAS; a++)
        peak[a] = ZT_MAX(peak[a], own_peak[a]);
    zt_sim_release(&sim);
    zt_wait_list_release(&windowed);
    zt_wait_list_release(&unlimited);
}
