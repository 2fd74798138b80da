#include "cmd.h"

#include <getopt.h>
#include <limits.h>
#include <stddef.h>

#include "launch/ssh_keys.h"

/* An option: who has it, its help, and what takes its value to where. */
struct row {
    const char *name;
    bool train, plan;
    const char *arg, *help; /* arg NULL: takes no value */
    /* false after a message; the row's is NULL: it tells something and ends */
    bool (*take)(const struct row *r, const char *text, void *out);
    size_t at;       /* of `out` in cmd_options */
    int least, most; /* take_count */
    bool doctor;     /* has it too */
};

/* ---- what takes a value ---- */

static bool take_text(const struct row *r, const char *text, void *out)
{
    (void)r;
    *(const char **)out = text;
    return true;
}

static bool take_flag(const struct row *r, const char *text, void *out)
{
    (void)r, (void)text;
    *(bool *)out = true;
    return true;
}

static bool take_item(const struct row *r, const char *text, void *out)
{
    struct zt_str_list *list = out;
    (void)r;
    list->items[list->n++] = text;
    return true;
}

static bool take_size(const struct row *r, const char *text, void *out)
{
    int64_t bytes;
    if (zt_parse_bytes(text, &bytes))
        return take_text(r, text, out);
    cmd_error("--%s: \"%s\" is not a size such as 80GB, 1.5GiB or 300MB", r->name, text);
    return false;
}

static bool take_count(const struct row *r, const char *text, void *out)
{
    int64_t v;
    if (!zt_parse_i64(text, &v) || v < r->least || v > r->most) {
        cmd_error("--%s: \"%s\" is not a number from %d to %d", r->name, text, r->least, r->most);
        return false;
    }
    *(int *)out = (int)v;
    return true;
}

static bool take_seed(const struct row *r, const char *text, void *out)
{
    int64_t seed;
    if (zt_parse_i64(text, &seed) && seed >= 0)
        return take_text(r, text, out);
    cmd_error("--%s: \"%s\" is not a whole number from 0", r->name, text);
    return false;
}

static bool take_layer(const struct row *r, const char *text, void *out)
{
    if (zt_parse_i64(text, out) && *(int64_t *)out > 0)
        return true;
    cmd_error("--%s: \"%s\" is not a number of parameters", r->name, text);
    return false;
}

static bool take_device(const struct row *r, const char *text, void *out)
{
    if (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0 || strcmp(text, "auto") == 0)
        return take_text(r, text, out);
    cmd_error("--%s: \"%s\" is not cpu, cuda or auto", r->name, text);
    return false;
}

static bool take_launcher(const struct row *r, const char *text, void *out)
{
    if (strcmp(text, "ssh") == 0 || strcmp(text, "openssh") == 0 || strcmp(text, "slurm") == 0)
        return take_text(r, text, out);
    cmd_error("--%s: \"%s\" is not ssh, openssh or slurm", r->name, text);
    return false;
}

static bool take_transport(const struct row *r, const char *text, void *out)
{
    static const char *const names[ZT_N_TRANSPORTS] = {"auto", "nccl", "staged"};
    for (int i = 0; i < ZT_N_TRANSPORTS; i++) {
        if (strcmp(text, names[i]))
            continue;
        *(enum zt_transport *)out = (enum zt_transport)i;
        return true;
    }
    cmd_error("--%s: \"%s\" is not nccl, staged or auto", r->name, text);
    return false;
}

/* ---- the table ---- */

#define TO(taker, field) .take = taker, .at = offsetof(struct cmd_options, field)

static const struct row rows[] = {
    {"num_gpus", true, true, "N", "workers: one per GPU, or N CPU workers with --device=cpu",
     TO(take_count, num_gpus), .least = 1, .most = CMD_MAX_RANKS, .doctor = true},
    {"hostfile", true, true, "FILE", "hosts and their slots; --num_gpus is then of each host",
     TO(take_text, hostfile), .doctor = true},
    {"include", true, true, "SPEC", "only these hosts and devices: NAME or NAME:0,2, joined by @",
     TO(take_text, hosts.include), .doctor = true},
    {"exclude", true, true, "SPEC", "all but these", TO(take_text, hosts.exclude), .doctor = true},
    {"num_nodes", true, true, "N", "the first N hosts", TO(take_count, hosts.num_nodes), .least = 1,
     .most = ZT_HOSTS_MAX, .doctor = true},
    {"launcher", true, false, "ssh|openssh|slurm",
     "how other hosts are reached: by libssh2 (default), by the ssh client, or by srun",
     TO(take_launcher, launcher), .doctor = true},
    {"ssh_port", true, false, "N", "of other hosts (default: as ~/.ssh/config says, else 22)",
     TO(take_count, ssh_port), .least = 1, .most = UINT16_MAX, .doctor = true},
    {"remote_path", true, false, "PATH", "zerotrain on other hosts (default: where it is here)",
     TO(take_text, remote_path), .doctor = true},
    {"device", true, true, "cpu|cuda|auto",
     "what to train on (default auto: the GPUs there are, else one CPU worker)",
     TO(take_device, device), .doctor = true},
    {"collectives", true, false, "KIND",
     "of GPUs: nccl, staged or auto (default; NCCL where each worker has a GPU of its own)",
     TO(take_transport, transport)},
    {"devices_per_gpu", true, false, "K", "for testing: K workers on each GPU",
     TO(take_count, per_gpu), .least = 1, .most = 64},
    {"set", true, true, "A.B=C", "override a key of the recipe; may be repeated",
     TO(take_item, set), .doctor = true},
    {"deepspeed_config", true, true, "FILE", "merge a ds_config.json under the recipe",
     TO(take_item, deepspeed_configs)},
    {"seed", true, true, "N", "same as --set train.seed=N", TO(take_seed, seed)},
    {"device_memory", true, true, "SIZE", "most that a rank may take of its device: 80GB, 1.5GiB",
     TO(take_size, device_memory)},
    {"host_memory", true, true, "SIZE", "most that all ranks together may take of the host",
     TO(take_size, host_memory)},
    {"resume", true, false, "auto|never|PATH",
     "go on from the newest valid checkpoint in checkpoint.dir, or from PATH",
     TO(take_text, resume)},
    {"fresh", true, false, NULL, "begin anew: checkpoints of an earlier run are moved aside",
     TO(take_flag, fresh)},
    {"max_restarts", true, false, "N",
     "when a worker, an agent or a host fails, go on from the newest checkpoint, N times at most",
     TO(take_count, max_restarts), .least = 0, .most = CMD_MAX_RESTARTS},
    {"elastic", true, false, NULL,
     "with --max_restarts: on the hosts and devices that remain, with the same global batch",
     TO(take_flag, elastic)},
    {"log_dir", true, false, "DIR", "folder of this run (default runs/NAME-TIME)",
     TO(take_text, log_dir)},
    {"enable_each_rank_log", true, false, "DIR",
     "write each rank's output to DIR/rank-N.log as well", TO(take_text, rank_log_dir)},
    {"env_file", true, false, "FILE", "NAME=VALUE lines for the environment of every worker",
     TO(take_text, env_file)},
    {"rank", false, true, "R", "plan of this rank (default 0)", TO(take_count, rank), .least = 0,
     .most = CMD_MAX_RANKS - 1},
    {"schedule", false, true, NULL, "print the list of ops that the engine runs",
     TO(take_flag, schedule)},
    {"print_recipe", false, true, NULL,
     "print the resolved recipe, each value with where it came from", TO(take_flag, print_recipe)},
    {"json", false, true, NULL, "print JSON", TO(take_flag, json), .doctor = true},
    {"profile", false, true, "NAME", "rates for the simulated times: fast, slow or cpu",
     TO(take_text, profile)},
    {"fit", false, true, "SIZE", "what to give up to fit into SIZE of each device",
     TO(take_size, fit)},
    {"largest", false, true, NULL,
     "the largest models that fit, by stage and offload; takes no recipe", TO(take_flag, largest)},
    {"deepspeed_estimate", false, true, NULL,
     "DeepSpeed's estimates of memory beside what is planned", TO(take_flag, deepspeed_estimate)},
    {"largest_layer", false, true, "N",
     "parameters of the largest layer, for --deepspeed_estimate of model.params",
     TO(take_layer, largest_layer)},
    {"help", true, true, NULL, "print this help", .take = NULL, .doctor = true},
    {"version", true, true, NULL, "print the version", .take = NULL, .doctor = true},
};

#undef TO

static const char *const name_of[] = {
    [CMD_TRAIN] = "train", [CMD_PLAN] = "plan", [CMD_DOCTOR] = "doctor"};

static bool has(enum cmd_command command, const struct row *r)
{
    return command == CMD_TRAIN ? r->train : command == CMD_PLAN ? r->plan : r->doctor;
}

static void print_usage(enum cmd_command command)
{
    static const char *const usage[] = {[CMD_TRAIN] = " [OPTIONS] RECIPE.yaml",
                                        [CMD_PLAN] = " plan [OPTIONS] RECIPE.yaml",
                                        [CMD_DOCTOR] = " doctor [OPTIONS] [RECIPE.yaml]"};
    printf("usage: zerotrain%s\n\n", usage[command]);
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++) {
        char left[64];
        if (!has(command, &rows[i]))
            continue;
        snprintf(left, sizeof left, "--%s%s%s", rows[i].name, rows[i].arg ? "=" : "",
                 rows[i].arg ? rows[i].arg : "");
        printf("  %-28s %s\n", left, rows[i].help);
    }
    printf("\nSee zerotrain%s%s(1) and zerotrain-%s(5).\n", command ? "-" : "",
           command ? name_of[command] : "", command == CMD_DOCTOR ? "hostfile" : "recipe");
}

/* ---- the command line ---- */

/* --help and --version, by their first letter. */
static int tell(char what, enum cmd_command command)
{
    if (what == 'h')
        print_usage(command);
    else
        printf("zerotrain %s\n", ZT_VERSION);
    return ZT_EXIT_OK;
}

/* What getopt found wrong with `given`, "--name" or "--name=value". */
static int refuse(int what, const char *given, enum cmd_command command)
{
    const char *names[ZT_ARRAY_LEN(rows)];
    char name[64];
    size_t n = 0;
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++)
        if (has(command, &rows[i]))
            names[n++] = rows[i].name;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(given, "="), given);
    const char *near = zt_nearest(name + strspn(name, "-"), names, n);
    if (what == ':')
        cmd_error("%s: needs a value", name);
    else if (optopt > UCHAR_MAX)
        cmd_error("%s: takes no value", name);
    else if (near)
        cmd_error("%s: no such option; did you mean --%s?", name, near);
    else
        cmd_error("%s: no such option; see zerotrain %s --help", name, name_of[command]);
    return ZT_EXIT_USAGE;
}

/* An option that is a key of the recipe. */
static void set_option(struct cmd_options *o, const char *key, const char *value)
{
    if (value)
        o->set.items[o->set.n++] = zt_arena_printf(&o->arena, "%s=%s", key, value);
}

int cmd_parse(int argc, char **argv, enum cmd_command command, struct cmd_options *o)
{
    struct option longopts[ZT_ARRAY_LEN(rows) + 1] = {{0}};
    enum { MAX_OWN_SETS = 2 /* of --fit, which is two keys */, FIRST_VAL = UCHAR_MAX + 1 };
    size_t n = 0, n_args = (size_t)argc + 1;
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++)
        if (has(command, &rows[i]))
            longopts[n++] =
                (struct option){rows[i].name, rows[i].arg ? required_argument : no_argument, NULL,
                                FIRST_VAL + (int)i};
    *o = (struct cmd_options){.device = "auto"};
    o->set.items = zt_arena_alloc(&o->arena, n_args + MAX_OWN_SETS, sizeof *o->set.items);
    o->deepspeed_configs.items = zt_arena_alloc(&o->arena, n_args, sizeof *o->set.items);
    int opt;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        if (opt == '?' || opt == ':')
            return refuse(opt, argv[optind - 1], command);
        const struct row *r = opt == 'h' ? NULL : &rows[opt - FIRST_VAL];
        if (!r || !r->take)
            return tell(r ? r->name[0] : 'h', command);
        if (!r->take(r, optarg, (char *)o + r->at))
            return ZT_EXIT_USAGE;
    }
    if (argc == optind && (o->largest || command == CMD_DOCTOR))
        return -1;
    if (argc == optind) {
        cmd_error("which recipe? Give one YAML file");
        return ZT_EXIT_USAGE;
    }
    if (argc > optind + 1) {
        cmd_error("\"%s\" and \"%s\": only one recipe can be given (include: merges files), and "
                  "a command comes first",
                  argv[optind], argv[optind + 1]);
        return ZT_EXIT_USAGE;
    }
    o->recipe_path = argv[optind];
    set_option(o, "train.seed", o->seed);
    set_option(o, "parallel.device_memory", o->fit ? o->fit : o->device_memory);
    set_option(o, "parallel.host_memory", o->host_memory);
    set_option(o, "zero_optimization.stage", o->fit ? "auto" : NULL);
    if (o->resume) /* "auto" in a recipe means: not given */
        set_option(o, "checkpoint.resume", strcmp(o->resume, "auto") ? o->resume : "newest");
    return -1;
}

void cmd_list_add(struct zt_arena *arena, struct zt_str_list *list, const char *text)
{
    const char **items = zt_arena_alloc(arena, (size_t)list->n + 1, sizeof *items);
    if (list->n)
        memcpy(items, list->items, (size_t)list->n * sizeof *items);
    items[list->n++] = zt_arena_strdup(arena, text);
    list->items = items;
}

void cmd_options_release(struct cmd_options *o)
{
    zt_hosts_release(&o->listed);
    zt_ssh_keys_free(o->ssh_keys);
    zt_arena_release(&o->arena);
}

int cmd_load_recipe(const struct cmd_options *o, int n_ranks, bool for_plan, int64_t epoch_steps,
                    struct zt_recipe **out)
{
    struct zt_recipe_opts opts = {
        .path = o->recipe_path,
        .set = o->set,
        .deepspeed_configs = o->deepspeed_configs,
        .chosen = o->chosen,
        .n_ranks = n_ranks,
        .epoch_steps = epoch_steps,
        .for_plan = for_plan,
    };
    struct zt_err err = {0};
    int rc = zt_recipe_load(&opts, out, &err);
    if (!rc)
        return 0;
    cmd_error("%s", err.msg);
    return zt_exit_code(rc);
}
