#include "plan_memory.h"

#include "fit.h"
#include "plan/largest.h"
#include "train/train.h"

static void put(struct zt_str *out)
{
    fwrite(zt_str_get(out), 1, out->len, stdout);
    zt_str_release(out);
}

void plan_print_chosen(const struct cmd_options *o)
{
    if (o->json)
        return; /* the document says it */
    printf("\nTo ask for it:\n ");
    for (int i = 0; i < o->chosen.n; i++)
        printf(" --set %s", o->chosen.items[i]);
    printf("\n");
}

/* ---- --largest ---- */

static int check_largest(const struct cmd_options *o)
{
    if (o->recipe_path)
        cmd_error("%s: --largest takes no recipe: its models grow by a rule", o->recipe_path);
    else if (o->fit)
        cmd_error("--largest and --fit: give one of them; --largest takes --device_memory");
    else if (!o->device_memory)
        cmd_error("--largest: of how much memory? Give --device_memory, such as 80GB");
    else if (o->schedule || o->print_recipe || o->deepspeed_estimate || o->rank)
        cmd_error("--largest goes with --num_gpus, --device_memory, --host_memory, --device, "
                  "--profile and --json only");
    else
        return 0;
    return ZT_EXIT_USAGE;
}

/* What the table's models are trained with: the papers' tables have the same. */
static struct zt_plan_config largest_config(const struct cmd_options *o, int n_ranks)
{
    const bool cpu = strcmp(o->device, "cpu") == 0;
    return (struct zt_plan_config){
        .mesh = {{1, 1, n_ranks, 1, 1}},
        .dtype = ZT_BF16,
        .micro_batch = 1,
        .seq_len = 1024,
        .accum = 1,
        .recompute = ZT_RECOMPUTE_BLOCK,
        .optimizer = ZT_ADAMW,
        .overlap_comm = true,
        .comm_dtype = -1,
        .dev_kind = cpu ? ZT_DEV_CPU : ZT_DEV_CUDA,
        .n_threads = 1,
        .shared_arena = cpu,
        .profile = zt_profile_find(o->profile ? o->profile
                                   : cpu      ? "cpu"
                                              : "fast"),
        .profile_known = true,
    };
}

int plan_largest(const struct cmd_options *o)
{
    const int n_ranks = o->num_gpus ? o->num_gpus : 1;
    struct zt_fit_limits limits = ZT_FIT_NO_LIMITS;
    struct zt_largest_table table;
    struct zt_str out = {0};
    struct zt_err err = {0};
    int64_t bytes;
    int code = check_largest(o);
    if (code)
        return code;
    if (zt_parse_bytes(o->device_memory, &bytes))
        limits.device = (struct zt_fit_limit){(size_t)bytes, "--device_memory"};
    if (o->host_memory && zt_parse_bytes(o->host_memory, &bytes))
        limits.host = (struct zt_fit_limit){(size_t)bytes / (size_t)n_ranks, "--host_memory"};
    const struct zt_plan_config cfg = largest_config(o, n_ranks);
    if (zt_largest_search(&cfg, &limits, &table, &err)) {
        cmd_error("--largest: %s", err.msg);
        return zt_exit_code(err.code);
    }
    if (o->json)
        zt_largest_print_json(&table, &out);
    else
        zt_largest_print(&table, &out);
    put(&out);
    const bool none = zt_largest_is_empty(&table);
    zt_largest_release(&table);
    if (!none)
        return 0;
    fflush(stdout);
    cmd_error("--largest: not even a model of one layer fits into %s of device memory%s%s%s; give "
              "more, or more ranks (--num_gpus)",
              o->device_memory, o->host_memory ? " and " : "", o->host_memory ? o->host_memory : "",
              o->host_memory ? " of host memory" : "");
    return zt_exit_code(ZT_ENOMEM);
}

/* ---- --deepspeed_estimate ---- */

static int estimate_model(const struct zt_recipe *r, const struct cmd_devices *dev,
                          struct zt_str *out, struct zt_err *err)
{
    struct zt_arena arena = {0};
    struct zt_model *m;
    struct zt_plan_config cfg;
    int rc = zt_train_model(r, &arena, &m, err);
    if (!rc)
        rc = cmd_plan_config(r, m, dev, 0, &cfg, err);
    if (!rc)
        rc = zt_deepspeed_print(m, &cfg, (double)m->n_elems, (double)zt_deepspeed_largest_layer(m),
                                dev->n_workers, dev->on_a_host, out, err);
    zt_arena_release(&arena);
    return rc;
}

int plan_deepspeed_estimate(const struct cmd_options *o, const struct zt_recipe *r,
                            const struct cmd_devices *dev)
{
    struct zt_str out = {0};
    struct zt_err err = {0};
    const bool alone = r->model.params > 0;
    if (o->json || alone != (o->largest_layer > 0)) {
        cmd_error(o->json ? "--deepspeed_estimate prints no JSON"
                  : alone
                      ? "%s: model.params alone: give --largest_layer too, the parameters of the "
                        "largest layer"
                      : "%s: --largest_layer goes with model.params alone: the model says what "
                        "its largest layer is",
                  o->recipe_path);
        return ZT_EXIT_USAGE;
    }
    int rc = alone ? zt_deepspeed_print(NULL, NULL, r->model.params, (double)o->largest_layer,
                                        dev->n_workers, dev->on_a_host, &out, &err)
                   : estimate_model(r, dev, &out, &err);
    if (rc)
        cmd_error("%s: %s", o->recipe_path, err.msg);
    else
        put(&out);
    return zt_exit_code(rc);
}
