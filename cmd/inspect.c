/*
 * inspect.c: `zerotrain inspect PATH`: what a file or folder is, by its content, and whether it is whole.
 */
#include "inspect.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/llmc.h"
#include "ckpt/export.h"
#include "ckpt/folder.h"
#include "cmd.h"
#include "exact.h"

static const char usage[] = "usage: zerotrain inspect [OPTIONS] PATH\n"
                            "\n"
                            "Print what PATH is and holds: a checkpoint, the folder of a run's "
                            "checkpoints, a Hugging Face\n"
                            "folder, a safetensors file, a model file of llm.c, or a token file "
                            "(llm.c, nanoGPT, Megatron,\n"
                            "text).\n"
                            "\n"
                            "  --verify  read all of it: checksums; values that are not finite\n"
                            "  --json    print JSON\n"
                            "  --help    print this help\n"
                            "\n"
                            "See zerotrain-inspect(1).\n";

void inspect_set(struct inspection *in, const char *key, json_t *value)
{
    ZT_ASSERT(value && json_object_set_new(in->root, key, value) == 0);
}

void inspect_int(struct inspection *in, const char *key, int64_t value)
{
    inspect_set(in, key, json_integer(value));
}

/* Names of files may be any bytes: those that are not UTF-8 become '?'. */
static json_t *text_json(const char *value)
{
    json_t *text = json_string(value);
    if (text)
        return text;
    char *plain = zt_xstrdup(value);
    for (char *p = plain; *p; p++)
        *p = (unsigned char)*p < 0x80 ? *p : '?';
    text = json_string(plain);
    free(plain);
    return text;
}

void inspect_str(struct inspection *in, const char *key, const char *value)
{
    inspect_set(in, key, text_json(value));
}

/* One fault may be found in two ways. */
void inspect_problem(struct inspection *in, const char *text)
{
    const json_t *known;
    json_t *new = text_json(text);
    size_t i;
    json_array_foreach(in->problems, i, known)
    {
        if (json_equal(known, new)) {
            json_decref(new);
            return;
        }
    }
    json_array_append_new(in->problems, new);
}

/* ---- what it is ---- */

static bool is_there(const char *dir, const char *name)
{
    struct zt_str path = {0};
    zt_str_printf(&path, "%s/%s", dir, name);
    bool there = access(path.buf, F_OK) == 0;
    zt_str_release(&path);
    return there;
}

static int inspect_folder(struct inspection *in, struct zt_err *err)
{
    static const char *const of_hf[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    if (zt_ckpt_is_one(in->path))
        return inspect_checkpoint(in, in->path, err);
    for (size_t i = 0; i < ZT_ARRAY_LEN(of_hf); i++) {
        if (is_there(in->path, of_hf[i]))
            return inspect_hf_folder(in, in->path, err);
    }
    if (zt_export_is_run(in->path))
        return inspect_run(in, in->path, err);
    return zt_err_set(
        err, ZT_EINPUT,
        "%s: neither a Hugging Face folder nor a checkpoint: it holds no config.json, "
        "no model.safetensors, no manifest.json and no folder step-N",
        in->path);
}

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && strcmp(s + n - k, suffix) == 0;
}

/* A file whose folder is what is meant. */
static bool names_its_folder(const char *path)
{
    return has_suffix(path, ".safetensors.index.json") || has_suffix(path, "config.json") ||
           has_suffix(path, ZT_CKPT_MANIFEST);
}

/* Known files that are none of ours: what they are, and what to do. NULL: not known. */
static const char *foreign(const struct zt_mapped *m)
{
    static const struct {
        const char *magic;
        size_t n;
        const char *what;
    } kinds[] = {
        {"PK\003\004", 4, "a zip archive, perhaps PyTorch's weights: convert them to safetensors"},
        {"GGUF", 4, "a GGUF file, which is not read: take the safetensors of the same model"},
        {"\200\002", 2, "a Python pickle, which is not read: convert it to safetensors"},
        {"\xc7\xd7\x34\x01", 4, "llm.c's debug state, not a model (gpt2_124M.bin)"},
        {"\xc8\xd7\x34\x01", 4, "llm.c's tokenizer, not a model (gpt2_124M.bin)"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(kinds); i++) {
        if (m->bytes >= kinds[i].n && memcmp(m->data, kinds[i].magic, kinds[i].n) == 0)
            return kinds[i].what;
    }
    return NULL;
}

static bool looks_like_safetensors(const char *path, const struct zt_mapped *m)
{
    return has_suffix(path, ".safetensors") || (m->bytes > 9 && m->data[8] == '{' && !m->data[7]);
}

static int inspect_file(struct inspection *in, struct zt_err *err)
{
    struct zt_mapped map;
    int rc = zt_map_file(in->path, &map, err);
    if (rc)
        return rc;
    const char *what = foreign(&map);
    if (what)
        rc = zt_err_set(err, ZT_EINPUT, "%s: %s", in->path, what);
    else if (zt_is_llmc_model(map.data, map.bytes))
        rc = inspect_llmc_model(in, &map, err);
    else if (looks_like_safetensors(in->path, &map))
        rc = inspect_safetensors(in, in->path, err);
    else
        rc = inspect_tokens(in, &map, err);
    zt_unmap_file(&map);
    return rc;
}

static int inspect_path(struct inspection *in, struct zt_err *err)
{
    struct stat st;
    if (stat(in->path, &st))
        return zt_err_errno(err, ZT_EINPUT, "%s", in->path);
    if (S_ISDIR(st.st_mode))
        return inspect_folder(in, err);
    if (!names_its_folder(in->path))
        return inspect_file(in, err);
    const char *slash = strrchr(in->path, '/');
    char *dir = slash ? zt_xstrdup(in->path) : zt_xstrdup(".");
    if (slash)
        dir[slash - in->path] = '\0';
    struct inspection of = *in;
    of.path = *dir ? dir : "/";
    int rc = inspect_folder(&of, err);
    free(dir);
    return rc;
}

/* ---- the command ---- */

static int print(struct inspection *in, bool json)
{
    const json_t *text;
    size_t i;
    bool valid = json_array_size(in->problems) == 0;
    inspect_set(in, "valid", json_boolean(valid));
    if (json) {
        json_object_set(in->root, "problems", in->problems);
        json_dumpf(in->root, stdout, JSON_INDENT(1));
        putchar('\n');
    } else {
        inspect_print(in->root, stdout);
    }
    fflush(stdout);
    json_array_foreach(in->problems, i, text) cmd_error("%s", json_string_value(text));
    return valid ? ZT_EXIT_OK : ZT_EXIT_INPUT;
}

static int inspect(struct inspection *in, bool json)
{
    struct zt_err err;
    in->root = json_object();
    in->problems = json_array();
    inspect_str(in, "path", in->path);
    int rc = inspect_path(in, &err), code = zt_exit_code(rc);
    if (rc)
        inspect_problem(in, err.msg);
    if (!rc || json) {
        int invalid = print(in, json);
        code = code ? code : invalid;
    } else {
        cmd_error("%s", err.msg);
    }
    json_decref(in->root);
    json_decref(in->problems);
    return code;
}

int cmd_inspect(int argc, char **argv)
{
    static const struct option longs[] = {{"verify", no_argument, NULL, 'v'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct inspection in = {0};
    bool json = false;
    static const struct cmd_optset set = {.command = "inspect", .longs = longs};
    struct zt_err err;
    int option;
    optind = 1;
    while ((option = cmd_getopt(&set, argc, argv, &err)) != -1) {
        switch (option) {
        case 'v':
            in.verify = true;
            break;
        case 'j':
            json = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return ZT_EXIT_OK;
        default:
            cmd_error("%s", err.msg);
            return ZT_EXIT_USAGE;
        }
    }
    if (argc - optind != 1) {
        cmd_error("inspect needs one argument, a file or a folder; see zerotrain inspect --help");
        return ZT_EXIT_USAGE;
    }
    in.path = argv[optind];
    return inspect(&in, json);
}
