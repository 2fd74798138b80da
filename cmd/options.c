#include "cmd.h"

#include <getopt.h>
#include <limits.h>

enum {
    OPT_NUM_GPUS = 256,
    OPT_HOSTFILE,
    OPT_INCLUDE,
    OPT_EXCLUDE,
    OPT_NUM_NODES,
    OPT_LAUNCHER,
    OPT_SSH_PORT,
    OPT_REMOTE_PATH,
    OPT_DEVICE,
    OPT_COLLECTIVES,
    OPT_PER_GPU,
    OPT_SET,
    OPT_LOG_DIR,
    OPT_SEED,
    OPT_DEVICE_MEMORY,
    OPT_HOST_MEMORY,
    OPT_FIT,
    OPT_LARGEST,
    OPT_DS_ESTIMATE,
    OPT_LARGEST_LAYER,
    OPT_RANK_LOG,
    OPT_DS_CONFIG,
    OPT_RESUME,
    OPT_FRESH,
    OPT_ENV_FILE,
    OPT_RANK,
    OPT_SCHEDULE,
    OPT_PRINT_RECIPE,
    OPT_JSON,
    OPT_PROFILE,
    OPT_HELP,
    OPT_VERSION,
};

/* One row an option: what getopt needs, who has it, and its help. */
static const struct row {
    const char *name;
    int has_arg, val;
    bool train, plan;
    const char *arg, *help;
} rows[] = {
    {"num_gpus", required_argument, OPT_NUM_GPUS, true, true, "N",
     "workers: one per GPU, or N CPU workers with --device=cpu"},
    {"hostfile", required_argument, OPT_HOSTFILE, true, true, "FILE",
     "hosts and their slots; --num_gpus is then of each host"},
    {"include", required_argument, OPT_INCLUDE, true, true, "SPEC",
     "only these hosts and devices: NAME or NAME:0,2, joined by @"},
    {"exclude", required_argument, OPT_EXCLUDE, true, true, "SPEC", "all but these"},
    {"num_nodes", required_argument, OPT_NUM_NODES, true, true, "N", "the first N hosts"},
    {"launcher", required_argument, OPT_LAUNCHER, true, false, "openssh",
     "how other hosts are reached: by the ssh client"},
    {"ssh_port", required_argument, OPT_SSH_PORT, true, false, "N",
     "of other hosts (default: as ~/.ssh/config says, else 22)"},
    {"remote_path", required_argument, OPT_REMOTE_PATH, true, false, "PATH",
     "zerotrain on other hosts (default: where it is here)"},
    {"device", required_argument, OPT_DEVICE, true, true, "cpu|cuda|auto",
     "what to train on (default auto: the GPUs there are, else one CPU worker)"},
    {"collectives", required_argument, OPT_COLLECTIVES, true, false, "KIND",
     "of GPUs: nccl, staged or auto (default; NCCL where each worker has a GPU of its own)"},
    {"devices_per_gpu", required_argument, OPT_PER_GPU, true, false, "K",
     "for testing: K workers on each GPU"},
    {"set", required_argument, OPT_SET, true, true, "A.B=C",
     "override a key of the recipe; may be repeated"},
    {"deepspeed_config", required_argument, OPT_DS_CONFIG, true, true, "FILE",
     "merge a ds_config.json under the recipe"},
    {"seed", required_argument, OPT_SEED, true, true, "N", "same as --set train.seed=N"},
    {"device_memory", required_argument, OPT_DEVICE_MEMORY, true, true, "SIZE",
     "most that a rank may take of its device: 80GB, 1.5GiB"},
    {"host_memory", required_argument, OPT_HOST_MEMORY, true, true, "SIZE",
     "most that all ranks together may take of the host"},
    {"resume", required_argument, OPT_RESUME, true, false, "auto|never|PATH",
     "go on from the newest valid checkpoint in checkpoint.dir, or from PATH"},
    {"fresh", no_argument, OPT_FRESH, true, false, NULL,
     "begin anew: checkpoints of an earlier run are moved aside"},
    {"log_dir", required_argument, OPT_LOG_DIR, true, false, "DIR",
     "folder of this run (default runs/NAME-TIME)"},
    {"enable_each_rank_log", required_argument, OPT_RANK_LOG, true, false, "DIR",
     "write each rank's output to DIR/rank-N.log as well"},
    {"env_file", required_argument, OPT_ENV_FILE, true, false, "FILE",
     "NAME=VALUE lines for the environment of every worker"},
    {"rank", required_argument, OPT_RANK, false, true, "R", "plan of this rank (default 0)"},
    {"schedule", no_argument, OPT_SCHEDULE, false, true, NULL,
     "print the list of ops that the engine runs"},
    {"print_recipe", no_argument, OPT_PRINT_RECIPE, false, true, NULL,
     "print the resolved recipe, each value with where it came from"},
    {"json", no_argument, OPT_JSON, false, true, NULL, "print JSON"},
    {"profile", required_argument, OPT_PROFILE, false, true, "NAME",
     "rates for the simulated times: fast, slow or cpu"},
    {"fit", required_argument, OPT_FIT, false, true, "SIZE",
     "what to give up to fit into SIZE of each device"},
    {"largest", no_argument, OPT_LARGEST, false, true, NULL,
     "the largest models that fit, by stage and offload; takes no recipe"},
    {"deepspeed_estimate", no_argument, OPT_DS_ESTIMATE, false, true, NULL,
     "DeepSpeed's estimates of memory beside what is planned"},
    {"largest_layer", required_argument, OPT_LARGEST_LAYER, false, true, "N",
     "parameters of the largest layer, for --deepspeed_estimate of model.params"},
    {"help", no_argument, OPT_HELP, true, true, NULL, "print this help"},
    {"version", no_argument, OPT_VERSION, true, true, NULL, "print the version"},
};

static void print_usage(bool plan)
{
    printf("usage: zerotrain%s [OPTIONS] RECIPE.yaml\n\n", plan ? " plan" : "");
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++) {
        char left[64];
        if (plan ? !rows[i].plan : !rows[i].train)
            continue;
        snprintf(left, sizeof left, "--%s%s%s", rows[i].name, rows[i].arg ? "=" : "",
                 rows[i].arg ? rows[i].arg : "");
        printf("  %-28s %s\n", left, rows[i].help);
    }
    printf("\nSee zerotrain%s(1) and zerotrain-recipe(5).\n", plan ? "-plan" : "");
}

static bool parse_count(const char *name, const char *text, int64_t least, int64_t most, int *out)
{
    int64_t v;
    if (!zt_parse_i64(text, &v) || v < least || v > most) {
        cmd_error("--%s: \"%s\" is not a number from %lld to %lld", name, text, (long long)least,
                  (long long)most);
        return false;
    }
    *out = (int)v;
    return true;
}

static bool check_size(const char *name, const char *text)
{
    int64_t bytes;
    if (zt_parse_bytes(text, &bytes))
        return true;
    cmd_error("--%s: \"%s\" is not a size such as 80GB, 1.5GiB or 300MB", name, text);
    return false;
}

static bool parse_transport(const char *text, enum zt_transport *out)
{
    static const char *const names[ZT_N_TRANSPORTS] = {"auto", "nccl", "staged"};
    for (int i = 0; i < ZT_N_TRANSPORTS; i++) {
        if (strcmp(text, names[i]))
            continue;
        *out = (enum zt_transport)i;
        return true;
    }
    cmd_error("--collectives: \"%s\" is not nccl, staged or auto", text);
    return false;
}

static int take(int opt, bool plan, struct cmd_options *o)
{
    enum { MAX_PER_GPU = 64, MAX_PORT = 65535 };
    int64_t seed;
    switch (opt) {
    case OPT_NUM_GPUS:
        return parse_count("num_gpus", optarg, 1, CMD_MAX_RANKS, &o->num_gpus) ? -1 : ZT_EXIT_USAGE;
    case OPT_HOSTFILE:
        o->hostfile = optarg;
        return -1;
    case OPT_INCLUDE:
        o->hosts.include = optarg;
        return -1;
    case OPT_EXCLUDE:
        o->hosts.exclude = optarg;
        return -1;
    case OPT_NUM_NODES:
        return parse_count("num_nodes", optarg, 1, ZT_HOSTS_MAX, &o->hosts.num_nodes)
                   ? -1
                   : ZT_EXIT_USAGE;
    case OPT_LAUNCHER:
        o->launcher = optarg;
        if (strcmp(optarg, "openssh") == 0)
            return -1;
        cmd_error("--launcher: \"%s\" is not openssh, the only one so far", optarg);
        return ZT_EXIT_USAGE;
    case OPT_SSH_PORT:
        return parse_count("ssh_port", optarg, 1, MAX_PORT, &o->ssh_port) ? -1 : ZT_EXIT_USAGE;
    case OPT_REMOTE_PATH:
        o->remote_path = optarg;
        return -1;
    case OPT_RANK:
        return parse_count("rank", optarg, 0, CMD_MAX_RANKS - 1, &o->rank) ? -1 : ZT_EXIT_USAGE;
    case OPT_DEVICE:
        if (strcmp(optarg, "cpu") && strcmp(optarg, "cuda") && strcmp(optarg, "auto")) {
            cmd_error("--device: \"%s\" is not cpu, cuda or auto", optarg);
            return ZT_EXIT_USAGE;
        }
        o->device = optarg;
        return -1;
    case OPT_COLLECTIVES:
        return parse_transport(optarg, &o->transport) ? -1 : ZT_EXIT_USAGE;
    case OPT_PER_GPU:
        return parse_count("devices_per_gpu", optarg, 1, MAX_PER_GPU, &o->per_gpu) ? -1
                                                                                   : ZT_EXIT_USAGE;
    case OPT_SET:
        o->set.items[o->set.n++] = optarg;
        return -1;
    case OPT_DS_CONFIG:
        o->deepspeed_configs.items[o->deepspeed_configs.n++] = optarg;
        return -1;
    case OPT_SEED:
        if (!zt_parse_i64(optarg, &seed) || seed < 0) {
            cmd_error("--seed: \"%s\" is not a whole number from 0", optarg);
            return ZT_EXIT_USAGE;
        }
        o->seed = optarg;
        return -1;
    case OPT_DEVICE_MEMORY:
        o->device_memory = optarg;
        return check_size("device_memory", optarg) ? -1 : ZT_EXIT_USAGE;
    case OPT_HOST_MEMORY:
        o->host_memory = optarg;
        return check_size("host_memory", optarg) ? -1 : ZT_EXIT_USAGE;
    case OPT_FIT:
        o->fit = optarg;
        return check_size("fit", optarg) ? -1 : ZT_EXIT_USAGE;
    case OPT_LARGEST:
        o->largest = true;
        return -1;
    case OPT_DS_ESTIMATE:
        o->deepspeed_estimate = true;
        return -1;
    case OPT_LARGEST_LAYER:
        if (zt_parse_i64(optarg, &o->largest_layer) && o->largest_layer > 0)
            return -1;
        cmd_error("--largest_layer: \"%s\" is not a number of parameters", optarg);
        return ZT_EXIT_USAGE;
    case OPT_LOG_DIR:
        o->log_dir = optarg;
        return -1;
    case OPT_RESUME:
        o->resume = optarg;
        return -1;
    case OPT_FRESH:
        o->fresh = true;
        return -1;
    case OPT_RANK_LOG:
        o->rank_log_dir = optarg;
        return -1;
    case OPT_ENV_FILE:
        o->env_file = optarg;
        return -1;
    case OPT_SCHEDULE:
        o->schedule = true;
        return -1;
    case OPT_PRINT_RECIPE:
        o->print_recipe = true;
        return -1;
    case OPT_JSON:
        o->json = true;
        return -1;
    case OPT_PROFILE:
        o->profile = optarg;
        return -1;
    case OPT_HELP:
        print_usage(plan);
        return ZT_EXIT_OK;
    case OPT_VERSION:
        printf("zerotrain %s\n", ZT_VERSION);
        return ZT_EXIT_OK;
    default:
        ZT_ASSERT_CMP(opt, ==, OPT_HELP); /* every row has a case */
        return ZT_EXIT_USAGE;
    }
}

/* What getopt found wrong with `given`, "--name" or "--name=value". */
static int refuse(int what, const char *given, bool plan)
{
    const char *names[ZT_ARRAY_LEN(rows)];
    char name[64];
    size_t n = 0;
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++)
        if (plan ? rows[i].plan : rows[i].train)
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
        cmd_error("%s: no such option; see zerotrain %s --help", name, plan ? "plan" : "train");
    return ZT_EXIT_USAGE;
}

/* An option that is a key of the recipe. */
static void set_option(struct cmd_options *o, const char *key, const char *value)
{
    if (value)
        o->set.items[o->set.n++] = zt_arena_printf(&o->arena, "%s=%s", key, value);
}

int cmd_parse(int argc, char **argv, bool plan, struct cmd_options *o)
{
    struct option longopts[ZT_ARRAY_LEN(rows) + 1] = {{0}};
    enum { MAX_OWN_SETS = 2 }; /* of --fit, which is two keys */
    size_t n = 0, n_args = (size_t)argc + 1;
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++)
        if (plan ? rows[i].plan : rows[i].train)
            longopts[n++] = (struct option){rows[i].name, rows[i].has_arg, NULL, rows[i].val};
    *o = (struct cmd_options){.device = "auto"};
    o->set.items = zt_arena_alloc(&o->arena, n_args + MAX_OWN_SETS, sizeof *o->set.items);
    o->deepspeed_configs.items = zt_arena_alloc(&o->arena, n_args, sizeof *o->set.items);
    int opt;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        if (opt == '?' || opt == ':')
            return refuse(opt, argv[optind - 1], plan);
        int rc = take(opt == 'h' ? OPT_HELP : opt, plan, o);
        if (rc >= 0)
            return rc;
    }
    if (argc == optind && o->largest)
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

void cmd_options_release(struct cmd_options *o)
{
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
