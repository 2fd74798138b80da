#include "recipe/load.h"

#include <inttypes.h>

/*
 * activation_checkpointing: DeepSpeed's keys say how many inputs are kept and where, but leave it to the
 * model's code whether anything is computed again at all. So each of them implies a policy, unless one is
 * given.
 */

#define SECTION "activation_checkpointing"
#define POLICY SECTION ".policy"
#define EVERY SECTION ".every"
#define NUMBER SECTION ".number_checkpoints"
#define ON_HOST SECTION ".cpu_checkpointing"

static const char *const names[] = {"none", "block", "selective", "every"};

/* The policy that another key asks for, unless one is given. */
static void imply(struct zt_load *ld, enum zt_activation_policy policy)
{
    if (zt_load_given(ld, POLICY))
        return;
    ld->settings->policy = policy;
    zt_load_derived(ld, POLICY);
}

/* number_checkpoints: K runs of as many blocks as that takes. */
static void resolve_number(struct zt_load *ld)
{
    struct zt_settings *s = ld->settings;
    const int64_t n_layer = s->r.model.n_layer, number = s->number_checkpoints;
    const struct zt_pos at = zt_load_pos(ld, NUMBER);
    if (!zt_load_given(ld, NUMBER) || n_layer == 0)
        return;
    if (zt_load_given(ld, POLICY) && s->policy != ZT_KEEP_EVERY_NTH) {
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, at, NUMBER ": ignored: policy: %s says what is kept",
                    names[s->policy]);
        zt_load_unsaid(ld, NUMBER);
        return;
    }
    if (number > n_layer) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, at,
                    NUMBER ": %" PRId64 " is more than the model's %" PRId64 " blocks", number,
                    n_layer);
        return;
    }
    const int64_t every = (n_layer + number - 1) / number;
    if (zt_load_given(ld, EVERY) && s->recompute_every != every) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, at,
                    NUMBER ": %" PRId64 " of %" PRId64 " blocks is every: %" PRId64 ", not %" PRId64
                           "; give one of the two",
                    number, n_layer, every, s->recompute_every);
        return;
    }
    s->recompute_every = every;
    if (!zt_load_given(ld, EVERY))
        zt_load_derived(ld, EVERY);
    imply(ld, ZT_KEEP_EVERY_NTH);
}

static void resolve_every(struct zt_load *ld)
{
    struct zt_settings *s = ld->settings;
    const struct zt_pos at = zt_load_pos(ld, EVERY);
    if (zt_load_given(ld, EVERY)) {
        if (zt_load_given(ld, POLICY) && s->policy != ZT_KEEP_EVERY_NTH)
            zt_diag_add(&ld->errors, ZT_DIAG_WRONG, at, EVERY ": goes with policy: every, not %s",
                        names[s->policy]);
        else if (s->r.model.n_layer > 0 && s->recompute_every > s->r.model.n_layer)
            zt_diag_add(&ld->errors, ZT_DIAG_WRONG, at,
                        EVERY ": %" PRId64 " is more than the model's %" PRId64 " blocks",
                        s->recompute_every, s->r.model.n_layer);
        imply(ld, ZT_KEEP_EVERY_NTH);
    } else if (s->policy == ZT_KEEP_EVERY_NTH && s->recompute_every == 0 &&
               !zt_load_given(ld, NUMBER)) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, POLICY),
                    POLICY ": every: give " EVERY ", the number of blocks computed again together");
    }
}

void zt_load_activations(struct zt_load *ld)
{
    struct zt_settings *s = ld->settings;
    struct zt_recipe_activations *a = &s->r.activations;
    if (zt_load_any_bad(ld, SECTION))
        return;
    resolve_number(ld);
    resolve_every(ld);
    if (a->on_host && s->policy == ZT_KEEP_ALL) {
        if (zt_load_given(ld, POLICY))
            zt_diag_add(&ld->errors, ZT_DIAG_WRONG, zt_load_pos(ld, ON_HOST),
                        ON_HOST ": with policy: none nothing is computed again; choose another "
                                "policy, such as block");
        imply(ld, ZT_KEEP_BLOCK_INPUTS);
    }
    a->policy = (enum zt_activation_policy)s->policy;
    a->every = (int)s->recompute_every;
}
