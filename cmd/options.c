#include "cmd.h"

#include <limits.h>
#include <stddef.h>

#include "exact.h"
#include "foreign.h"
#include "launch/ssh_keys.h"

/* An option: who has it, its help, and what takes its value to where. */
struct row {
    const char *name;
    unsigned commands;      /* that have it: 1 << enum cmd_command */
    const char *arg, *help; /* arg NULL: takes no value */
    /* false after a message; the row's is NULL: it tells something and ends */
    bool (*take)(const struct row *r, const char *text, void *out);
    size_t at;            /* of `out` in cmd_options */
    int least, most;      /* take_count */
    const char *words[4]; /* what the value may be, then NULL: take_word, take_transport */
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

static bool take_set(const struct row *r, const char *text, void *out)
{
    if (strchr(text, '=') > text)
        return take_item(r, text, out);
    cmd_error("--set %s: must be KEY=VALUE, such as a.b=c", text);
    return false;
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

/* Which of the row's words that is; -1 after a message. */
static int which_word(const struct row *r, const char *text)
{
    struct zt_str all = {0};
    for (int i = 0; r->words[i]; i++) {
        if (strcmp(text, r->words[i]) == 0) {
            zt_str_release(&all);
            return i;
        }
        zt_str_printf(&all, "%s%s", i == 0 ? "" : r->words[i + 1] ? ", " : " or ", r->words[i]);
    }
    cmd_error("--%s: \"%s\" is not %s", r->name, text, zt_str_get(&all));
    zt_str_release(&all);
    return -1;
}

static bool take_word(const struct row *r, const char *text, void *out)
{
    return which_word(r, text) >= 0 && take_text(r, text, out);
}

static bool take_transport(const struct row *r, const char *text, void *out)
{
    static const enum zt_transport of_word[] = {ZT_TRANSPORT_NCCL, ZT_TRANSPORT_STAGED,
                                                ZT_TRANSPORT_AUTO};
    const int i = which_word(r, text);
    if (i < 0)
        return false;
    ZT_ASSERT_CMP(i, <, ZT_ARRAY_LEN(of_word));
    *(enum zt_transport *)out = of_word[i];
    return true;
}

/* ---- the table ---- */

#define TO(taker, field) .take = taker, .at = offsetof(struct cmd_options, field)

enum {
    TRAIN = 1 << CMD_TRAIN,
    PLAN = 1 << CMD_PLAN,
    DOCTOR = 1 << CMD_DOCTOR,
    ALL = TRAIN | PLAN | DOCTOR,
};

static const struct row rows[] = {
    {"num_gpus", ALL, "N", "workers: one per GPU, or N CPU workers with --device=cpu",
     TO(take_count, num_gpus), .least = 1, .most = CMD_MAX_RANKS},
    {"hostfile", ALL, "FILE", "hosts and their slots; --num_gpus is then of each host",
     TO(take_text, hostfile)},
    {"include", ALL, "SPEC", "only these hosts and devices: NAME or NAME:0,2, joined by @",
     TO(take_text, hosts.include)},
    {"exclude", ALL, "SPEC", "all but these", TO(take_text, hosts.exclude)},
    {"num_nodes", ALL, "N", "the first N hosts", TO(take_count, hosts.num_nodes), .least = 1,
     .most = ZT_HOSTS_MAX},
    {"launcher", TRAIN | DOCTOR, "ssh|openssh|slurm",
     "how other hosts are reached: by libssh2 (default), by the ssh client, or by srun",
     TO(take_word, launcher), .words = {"ssh", "openssh", "slurm"}},
    {"ssh_port", TRAIN | DOCTOR, "N", "of other hosts (default: as ~/.ssh/config says, else 22)",
     TO(take_count, ssh_port), .least = 1, .most = UINT16_MAX},
    {"remote_path", TRAIN | DOCTOR, "PATH", "zerotrain on other hosts (default: where it is here)",
     TO(take_text, remote_path)},
    {"device", ALL, "cpu|cuda|auto",
     "what to train on (default auto: the GPUs there are, else one CPU worker)",
     TO(take_word, device), .words = {"cpu", "cuda", "auto"}},
    {"collectives", TRAIN, "KIND",
     "of GPUs: nccl, staged or auto (default; NCCL where each worker has a GPU of its own)",
     TO(take_transport, transport), .words = {"nccl", "staged", "auto"}},
    {"devices_per_gpu", TRAIN, "K", "for testing: K workers on each GPU", TO(take_count, per_gpu),
     .least = 1, .most = 64},
    {"set", ALL, "A.B=C", "override a key of the recipe; may be repeated", TO(take_set, set)},
    {"deepspeed_config", TRAIN | PLAN, "FILE", "merge a ds_config.json under the recipe",
     TO(take_item, deepspeed_configs)},
    {"seed", TRAIN | PLAN, "N", "same as --set train.seed=N", TO(take_seed, seed)},
    {"device_memory", TRAIN | PLAN, "SIZE", "most that a rank may take of its device: 80GB, 1.5GiB",
     TO(take_size, device_memory)},
    {"host_memory", TRAIN | PLAN, "SIZE", "most that all ranks together may take of the host",
     TO(take_size, host_memory)},
    {"resume", TRAIN, "auto|never|PATH",
     "go on from the newest valid checkpoint in checkpoint.dir, or from PATH",
     TO(take_text, resume)},
    {"fresh", TRAIN, NULL, "begin anew: checkpoints of an earlier run are moved aside",
     TO(take_flag, fresh)},
    {"max_restarts", TRAIN, "N",
     "when a worker, an agent or a host fails, go on from the newest checkpoint, N times at most",
     TO(take_count, max_restarts), .least = 0, .most = CMD_MAX_RESTARTS},
    {"elastic", TRAIN, NULL,
     "with --max_restarts: on the hosts and devices that remain, with the same global batch",
     TO(take_flag, elastic)},
    {"log_dir", TRAIN, "DIR", "folder of this run (default runs/NAME-TIME)",
     TO(take_text, log_dir)},
    {"enable_each_rank_log", TRAIN, "DIR", "write each rank's output to DIR/rank-N.log as well",
     TO(take_text, rank_log_dir)},
    {"env_file", TRAIN, "FILE", "NAME=VALUE lines for the environment of every worker",
     TO(take_text, env_file)},
    {"rank", PLAN, "R", "plan of this rank (default 0)", TO(take_count, rank), .least = 0,
     .most = CMD_MAX_RANKS - 1},
    {"schedule", PLAN, NULL, "print the list of ops that the engine runs", TO(take_flag, schedule)},
    {"print_recipe", PLAN, NULL, "print the resolved recipe, each value with where it came from",
     TO(take_flag, print_recipe)},
    {"json", PLAN | DOCTOR, NULL, "print JSON", TO(take_flag, json)},
    {"profile", PLAN, "NAME", "rates for the simulated times: fast, slow or cpu",
     TO(take_text, profile)},
    {"fit", PLAN, "SIZE", "what to give up to fit into SIZE of each device", TO(take_size, fit)},
    {"largest", PLAN, NULL, "the largest models that fit, by stage and offload; takes no recipe",
     TO(take_flag, largest)},
    {"deepspeed_estimate", PLAN, NULL, "DeepSpeed's estimates of memory beside what is planned",
     TO(take_flag, deepspeed_estimate)},
    {"largest_layer", PLAN, "N",
     "parameters of the largest layer, for --deepspeed_estimate of model.params",
     TO(take_layer, largest_layer)},
    {"help", ALL, NULL, "print this help", .take = NULL},
    {"version", ALL, NULL, "print the version", .take = NULL},
};

#undef TO

/* The commands themselves; page: of the manual, beside the command's own. */
static const struct {
    const char *name, *usage, *own_page, *page;
} commands[] = {
    [CMD_TRAIN] = {"train", "zerotrain [OPTIONS] RECIPE.yaml", "zerotrain", "zerotrain-recipe"},
    [CMD_PLAN] = {"plan", "zerotrain plan [OPTIONS] RECIPE.yaml", "zerotrain-plan",
                  "zerotrain-recipe"},
    [CMD_DOCTOR] = {"doctor", "zerotrain doctor [OPTIONS] [RECIPE.yaml]", "zerotrain-doctor",
                    "zerotrain-hostfile"},
};

static bool has(enum cmd_command command, const struct row *r)
{
    return r->commands & 1u << command;
}

/* What `text` begins with that fits into `width` columns, whole words. */
static size_t line_len(const char *text, size_t width)
{
    size_t len = strlen(text);
    if (len <= width)
        return len;
    for (len = width; len > 0 && text[len] != ' ';)
        len--;
    return len ? len : strcspn(text, " ");
}

static void print_usage(enum cmd_command command)
{
    enum { LEFT = 31, WIDTH = 80 };
    printf("usage: %s\n\n", commands[command].usage);
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++) {
        char left[64];
        if (!has(command, &rows[i]))
            continue;
        snprintf(left, sizeof left, "--%s%s%s", rows[i].name, rows[i].arg ? "=" : "",
                 rows[i].arg ? rows[i].arg : "");
        printf("  %-*s", LEFT - 2, left);
        for (const char *text = rows[i].help; *text; text += strspn(text, " ")) {
            const size_t n = line_len(text, WIDTH - LEFT);
            printf("%*s%.*s\n", text == rows[i].help ? 0 : LEFT, "", (int)n, text);
            text += n;
        }
    }
    printf("\nSee %s(1) and %s(5).\n", commands[command].own_page, commands[command].page);
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

/* An option that is a key of the recipe. */
static void set_option(struct cmd_options *o, const char *key, const char *value)
{
    if (value)
        o->set.items[o->set.n++] = zt_arena_printf(&o->arena, "%s=%s", key, value);
}

enum { MAX_OWN_SETS = 5 }; /* of the options below; --fit is two of them */

static void set_options(struct cmd_options *o)
{
    set_option(o, "train.seed", o->seed);
    set_option(o, "parallel.device_memory", o->fit ? o->fit : o->device_memory);
    set_option(o, "parallel.host_memory", o->host_memory);
    set_option(o, "zero_optimization.stage", o->fit ? "auto" : NULL);
    if (o->resume) /* "auto" in a recipe means: not given */
        set_option(o, "checkpoint.resume", strcmp(o->resume, "auto") ? o->resume : "newest");
}

/* getopt's val of an option is its row's, after all characters. */
enum { FIRST_VAL = UCHAR_MAX + 1 };

static void list_options(enum cmd_command command, struct option *out)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++)
        if (has(command, &rows[i]))
            *out++ = (struct option){rows[i].name, rows[i].arg ? required_argument : no_argument,
                                     NULL, FIRST_VAL + (int)i};
    *out = (struct option){0};
}

/* Those before the recipe. -1, or an exit code. */
static int take_options(int argc, char **argv, enum cmd_command command, struct cmd_options *o)
{
    struct option longs[ZT_ARRAY_LEN(rows) + 1];
    const struct cmd_optset set = {
        .command = commands[command].name, .longs = longs, .instead = cmd_foreign_option};
    struct zt_err err;
    int opt;
    list_options(command, longs);
    while ((opt = cmd_getopt(&set, argc, argv, &err)) != -1) {
        if (opt == '?') {
            cmd_error("%s", err.msg);
            return ZT_EXIT_USAGE;
        }
        const struct row *r = opt == 'h' ? NULL : &rows[opt - FIRST_VAL];
        if (!r || !r->take)
            return tell(r ? r->name[0] : 'h', command);
        if (r->arg && !*optarg) {
            cmd_error("--%s: needs a value", r->name);
            return ZT_EXIT_USAGE;
        }
        if (!r->take(r, optarg, (char *)o + r->at))
            return ZT_EXIT_USAGE;
    }
    return -1;
}

/* As DeepSpeed's launcher takes one; options behind it are the script's. */
static bool refuse_script(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *dot = strrchr(argv[i], '.');
        if (!dot || strcmp(dot, ".py") != 0 || argv[i][0] == '-' || strchr(argv[i], '='))
            continue;
        cmd_error("%s: zerotrain takes a recipe, not a script: model, data and settings stand in a "
                  "YAML file, and a "
                  "ds_config.json is merged by --deepspeed_config=FILE; `zerotrain launch` runs "
                  "other programs",
                  argv[i]);
        return true;
    }
    return false;
}

static bool is_recipe_name(const char *value)
{
    const char *dot = value ? strrchr(value, '.') : NULL;
    return dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

int cmd_parse(int argc, char **argv, enum cmd_command command, struct cmd_options *o)
{
    const size_t n_args = (size_t)argc;
    *o = (struct cmd_options){.device = "auto"};
    o->set.items = zt_arena_alloc(&o->arena, n_args + MAX_OWN_SETS, sizeof *o->set.items);
    o->deepspeed_configs.items = zt_arena_alloc(&o->arena, n_args, sizeof *o->set.items);
    if (refuse_script(argc, argv))
        return ZT_EXIT_USAGE;
    const int code = take_options(argc, argv, command, o);
    if (code >= 0)
        return code;
    if (argc == optind && (o->largest || command == CMD_DOCTOR))
        return -1;
    if (argc == optind) {
        if (is_recipe_name(o->resume))
            cmd_error("which recipe? --resume has taken \"%s\" for its value: write --resume=auto, "
                      "never or PATH",
                      o->resume);
        else
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
    set_options(o);
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
