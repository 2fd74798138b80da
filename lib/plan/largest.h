/*
 * largest.h: the largest models that fit, and what DeepSpeed's estimators say.
 *
 * Largest. Models of a family grow by one rule. GPT-2 has heads of 64 and a width of 64 times its
 * depth, as its smallest (12 x 768); Llama heads of 128, a width of 128 times its depth, as 7B (32 x
 * 4096), and 8/3 of that inside the feed-forward layer, rounded up to 256. Of these the largest is
 * found by bisection, then as many more layers at its width as fit. Every size is that of a plan, to the
 * byte. A disk is large enough for anything; the search ends at a number of layers.
 */
#ifndef ZT_PLAN_LARGEST_H
#define ZT_PLAN_LARGEST_H

#include "plan/fit.h"

enum zt_largest_family { ZT_LARGEST_GPT2, ZT_LARGEST_LLAMA, ZT_N_LARGEST_FAMILIES };

enum { ZT_LARGEST_LAYERS = 1024 };

struct zt_largest {
    struct zt_model_config model;
    int64_t n_params;            /* 0: none fits; of ZT_LARGEST_LAYERS: larger ones may fit, too */
    struct zt_fit_choice choice; /* its size, planned */
};

/* A row: what is offloaded at a stage, and the largest of each family. */
struct zt_largest_row {
    int stage;
    enum zt_offload offload_optimizer, offload_param;
    struct zt_largest largest[ZT_N_LARGEST_FAMILIES];
};

struct zt_largest_table {
    struct zt_plan_config cfg; /* what all rows have in common */
    struct zt_fit_limits limits;
    int n;
    struct zt_largest_row *rows;
};

/* The family's model of a depth and a width, which is a multiple of its heads. */
struct zt_model_config zt_largest_shape(enum zt_largest_family f, int depth, int64_t width);

/*
 * Fill in a table for `cfg` (its stage and offload are not read). ZT_EINPUT: cfg cannot be planned.
 * Release `out` after success.
 */
int zt_largest_search(const struct zt_plan_config *cfg, const struct zt_fit_limits *limits,
                      struct zt_largest_table *out, struct zt_err *err) ZT_MUST_CHECK;
bool zt_largest_is_empty(const struct zt_largest_table *t); /* no model fits anywhere */
void zt_largest_release(struct zt_largest_table *t);

void zt_largest_print(const struct zt_largest_table *t, struct zt_str *out);
void zt_largest_print_json(const struct zt_largest_table *t, struct zt_str *out);

/* ---- DeepSpeed's estimators (deepspeed.c) ---- */

/*
 * What estimate_zero2_ and estimate_zero3_model_states_mem_needs of DeepSpeed 0.19.8 answer, in bytes: of a
 * host's memory for all of its ranks, and of each GPU. They know only numbers of parameters, all of
 * them and of the largest layer, and count host buffers 1.5-fold.
 */
struct zt_deepspeed_estimate {
    double host, gpu;
};

struct zt_deepspeed_case {
    int stage; /* 2 or 3 */
    bool offload_optimizer, offload_param;
    bool zero_init; /* stage 3: parameters are split while the model is made */
    bool older;     /* stage 2: as releases that counted 4 bytes and 16 over the ranks */
};

struct zt_deepspeed_estimate zt_deepspeed_estimate(const struct zt_deepspeed_case *c,
                                                   double n_params, double largest_layer,
                                                   int n_ranks, int on_a_host);

/* Parameters of the largest layer as DeepSpeed counts it: a module's own weight and bias. */
int64_t zt_deepspeed_largest_layer(const struct zt_model *m);

/*
 * The table of all cases, of the host with most of the ranks, `on_a_host`; beside them what is planned for `cfg`, at its micro-batch, where there is a
 * model (else `model` NULL, and n_params and largest_layer are given).
 */
int zt_deepspeed_print(const struct zt_model *model, const struct zt_plan_config *cfg,
                       double n_params, double largest_layer, int n_ranks, int on_a_host,
                       struct zt_str *out, struct zt_err *err) ZT_MUST_CHECK;

#endif
