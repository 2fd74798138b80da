/*
 * export.c: `zerotrain export FROM DIR`: a model as the folder that transformers loads.
 */
#include "cmd.h"

#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/folder.h"
#include "ckpt/hf.h"
#include "exact.h"
#include "model_in.h"

static const char usage[] =
    "usage: zerotrain export [OPTIONS] FROM DIR\n"
    "\n"
    "Write a model as the folder that Hugging Face's transformers loads. FROM is a checkpoint,\n"
    "the folder of a run's checkpoints, a Hugging Face folder, or a model file of llm.c.\n"
    "\n"
    "  --dtype=fp32|bf16|fp16  of the weights (default: fp32, which keeps every bit)\n"
    "  --max_shard_size=SIZE   the largest file, unless one tensor is larger (default: 5GB)\n"
    "  --vocab_size=N          leave out the rows from N on of embedding and head: padding\n"
    "  --step=N|latest         which checkpoint of a run (default: the newest valid one)\n"
    "  --force                 replace DIR if it holds an exported model and nothing else\n"
    "  --help                  print this help\n"
    "\n"
    "See zerotrain-export(1).\n";

struct options {
    const char *from, *dir;
    enum zt_dtype dtype;
    int64_t max_shard_bytes, step;
    int64_t vocab_size; /* 0: the model's */
    bool force;
};

static int take_option(struct options *o, int option, const char *value)
{
    static const enum zt_dtype dtypes[] = {ZT_F32, ZT_BF16, ZT_F16};
    switch (option) {
    case 'd':
        for (size_t i = 0; i < ZT_ARRAY_LEN(dtypes); i++) {
            if (strcmp(zt_dtype_name(dtypes[i]), value) != 0)
                continue;
            o->dtype = dtypes[i];
            return -1;
        }
        cmd_error("--dtype: \"%s\" is not fp32, bf16 or fp16", value);
        return ZT_EXIT_USAGE;
    case 'm':
        if (zt_parse_bytes(value, &o->max_shard_bytes))
            return -1;
        cmd_error("--max_shard_size: \"%s\" is not a size, such as 5GB or 500MB", value);
        return ZT_EXIT_USAGE;
    case 'v':
        if (zt_parse_i64(value, &o->vocab_size) && o->vocab_size > 0)
            return -1;
        cmd_error("--vocab_size: \"%s\" is not a whole number from 1", value);
        return ZT_EXIT_USAGE;
    case 's':
        o->step = ZT_EXPORT_NEWEST;
        if (strcmp(value, "latest") == 0 || (zt_parse_i64(value, &o->step) && o->step >= 0))
            return -1;
        cmd_error("--step: \"%s\" is neither latest nor a whole number from 0", value);
        return ZT_EXIT_USAGE;
    default:
        o->force = true;
        return -1;
    }
}

/* -1: go on; else an exit code. */
static int parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {{"dtype", required_argument, NULL, 'd'},
                                          {"max_shard_size", required_argument, NULL, 'm'},
                                          {"step", required_argument, NULL, 's'},
                                          {"vocab_size", required_argument, NULL, 'v'},
                                          {"force", no_argument, NULL, 'f'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    static const struct cmd_optset set = {.command = "export", .longs = longs};
    struct zt_err err;
    int option, code = -1;
    optind = 1;
    while (code < 0 && (option = cmd_getopt(&set, argc, argv, &err)) != -1) {
        if (option == 'h') {
            fputs(usage, stdout);
            return ZT_EXIT_OK;
        }
        if (option == '?') {
            cmd_error("%s", err.msg);
            return ZT_EXIT_USAGE;
        }
        code = take_option(o, option, optarg);
    }
    if (code < 0 && argc - optind != 2) {
        cmd_error("export needs two arguments, what to read and the folder to write; see zerotrain "
                  "export --help");
        return ZT_EXIT_USAGE;
    }
    if (code < 0) {
        o->from = argv[optind];
        o->dir = argv[optind + 1];
    }
    return code;
}

/* The folder that the weights came from first, where its tokenizer is. */
static const char *origin_folder(const struct model_in *in)
{
    struct stat st;
    const char *from = in->r->model.from;
    return from && stat(from, &st) == 0 && S_ISDIR(st.st_mode) ? from : NULL;
}

static void print_result(const struct options *o, const struct model_in *in,
                         const struct zt_hf_result *r)
{
    if (in->is_ckpt)
        printf("%s: step %lld of %s\n", o->dir, (long long)in->ckpt.m.at.step, in->ckpt.path);
    printf("%s: %d tensors, %lld parameters, %zu bytes in %s, %d file%s\n", o->dir, r->n_tensors,
           (long long)r->n_elems, r->bytes, zt_dtype_name(o->dtype), r->n_shards,
           r->n_shards == 1 ? "" : "s");
    if (r->n_copied)
        printf("%s: %d file%s of the tokenizer copied\n", o->dir, r->n_copied,
               r->n_copied == 1 ? "" : "s");
}

/*
 * The model with fewer tokens than it was trained with: its tensors begin as theirs do, since tokens are
 * rows.
 */
static int without_padding(const struct options *o, struct model_in *in, struct zt_model **model,
                           struct zt_err *err)
{
    struct zt_model_config cfg = in->model->cfg;
    if (o->vocab_size > cfg.vocab_size)
        return zt_err_set(err, ZT_EINPUT, "--vocab_size=%lld: the model has only %lld tokens",
                          (long long)o->vocab_size, (long long)cfg.vocab_size);
    cfg.vocab_size = o->vocab_size;
    return zt_model_build(&cfg, &in->arena, model, err);
}

static void take_window(const struct model_in *in, struct zt_hf_opts *opts)
{
    const char *size = model_in_value(in, "model.sliding_window");
    const char *used = model_in_value(in, "model.use_sliding_window");
    if (!size || !zt_parse_i64(size, &opts->sliding_window))
        opts->sliding_window = 0;
    opts->use_sliding_window = used && strcmp(used, "true") == 0;
}

static int export(const struct options *o, struct model_in *in, struct zt_err *err)
{
    struct zt_hf_result result;
    struct zt_hf_source source = {in, model_in_read};
    struct zt_model *model = in->model;
    int rc = o->vocab_size ? without_padding(o, in, &model, err) : 0;
    if (rc)
        return rc;
    struct zt_hf_opts opts = {
        .dir = o->dir,
        .model = model,
        .model_type = in->r->model.model_type,
        .dtype = o->dtype,
        .max_shard_bytes = (size_t)o->max_shard_bytes,
        .from = origin_folder(in),
        .force = o->force,
    };
    take_window(in, &opts);
    model_in_read_ahead(in, model);
    rc = zt_hf_write(&opts, &source, &result, err);
    if (!rc)
        print_result(o, in, &result);
    return rc;
}

/* What is wrong with the one that was read, if another of the run will do; NULL: nothing, or none will. */
static const char *why_another(const struct options *o, const struct model_in *in, int rc)
{
    if (!rc || !in->failed || o->step != ZT_EXPORT_NEWEST || zt_ckpt_is_one(o->from))
        return NULL;
    if (access(in->ckpt.path, F_OK))
        return "it was removed meanwhile";
    return rc == ZT_EINPUT ? "it is passed over" : NULL;
}

/* One try. *why: that of why_another(). */
static int try_export(const struct options *o, struct zt_export_tried *tried, const char **why,
                      struct zt_err *err)
{
    struct model_in in;
    struct zt_str notes = {0};
    int rc = model_in_open(o->from, o->step, tried, &in, &notes, err);
    *why = NULL;
    if (notes.len)
        cmd_error("%s", notes.buf);
    zt_str_release(&notes);
    if (rc)
        return rc;
    rc = export(o, &in, err);
    *why = why_another(o, &in, rc);
    model_in_close(&in);
    return rc;
}

/*
 * A checkpoint is read once, so that its damage is found when the most of it is written; and a run that goes on
 * may remove it meanwhile, for a newer one.
 */
static int run(const struct options *o, struct zt_err *err)
{
    struct zt_export_tried tried = {0};
    const char *why;
    int rc = zt_hf_check(o->dir, o->force, err);
    if (rc)
        return rc;
    while ((rc = try_export(o, &tried, &why, err)) && why)
        cmd_error("%s; %s", err->msg, why);
    free(tried.steps);
    return rc;
}

int cmd_export(int argc, char **argv)
{
    struct options o = {.dtype = ZT_F32, .max_shard_bytes = 5000000000, .step = ZT_EXPORT_NEWEST};
    struct zt_err err;
    int code = parse(argc, argv, &o);
    if (code >= 0)
        return code;
    int rc = run(&o, &err);
    if (rc)
        cmd_error("%s", err.msg);
    return zt_exit_code(rc);
}
