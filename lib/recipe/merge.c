#include "recipe/load.h"

#include <inttypes.h>
#include <sys/stat.h>

#include "base/io.h"
#include "base/llmc.h"

enum { MAX_INCLUDE_DEPTH = 8, MAX_SOURCES = 64, MAX_SET_KEY = 200 };

/* The files that are being included, innermost first. */
struct chain {
    const char *real_path;
    const struct chain *outer;
    int depth;
};

static struct zt_node *load_file(struct zt_load *ld, const char *path, struct zt_pos from,
                                 const struct chain *outer);

static const struct zt_source *new_source(struct zt_load *ld, enum zt_source_kind kind,
                                          const char *name, bool is_file)
{
    struct zt_source *s = zt_arena_alloc(ld->arena, 1, sizeof *s);
    const char *slash = is_file ? strrchr(name, '/') : NULL;
    char *shown = zt_arena_strdup(ld->arena, name);
    for (char *p = shown; *p; p++) { /* messages and origins are one line */
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    }
    *s = (struct zt_source){kind, shown, "", ld->n_sources++};
    if (slash)
        s->dir = zt_arena_printf(ld->arena, "%.*s/", (int)(slash - name), name);
    return s;
}

static struct zt_node *new_map(struct zt_load *ld)
{
    struct zt_node *n = zt_arena_alloc(ld->arena, 1, sizeof *n);
    n->kind = ZT_NODE_MAP;
    return n;
}

static void drop_child(struct zt_node *map, const struct zt_node *child)
{
    struct zt_node **at = &map->children;
    while (*at && *at != child)
        at = &(*at)->next;
    if (*at)
        *at = child->next;
}

/* Call n, a child of map, by the table's name; of two names of one key, one may say nothing. */
static void rename_key(struct zt_load *ld, struct zt_node *map, struct zt_node *n, const char *key)
{
    const struct zt_node *twin = zt_node_find(map, key);
    n->key = key;
    if (!twin)
        return;
    if (zt_node_not_given(twin))
        drop_child(map, twin);
    else if (zt_node_not_given(n))
        drop_child(map, n);
    else
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, n->key_at,
                    "\"%s\" and \"%s\" (line %d) are one key by two names", n->spelled,
                    twin->spelled, twin->key_at.line);
}

static bool takes_auto(const char *path)
{
    const int i = zt_key_find(path);
    return i >= 0 && zt_keys[i].auto_is_value;
}

/* Call every key by the table's name, and see that none stands there by two names. */
static void use_canonical_names(struct zt_load *ld, struct zt_node *map, const char *path)
{
    for (struct zt_node *n = map->children; n; n = n->next) {
        const char *full = zt_arena_printf(ld->arena, "%s%s%s", path, path[0] ? "." : "", n->key);
        const char *canonical = zt_key_canonical(full);
        if (canonical != full) {
            const char *dot = strrchr(canonical, '.');
            rename_key(ld, map, n, dot ? dot + 1 : canonical);
        }
        if (n->kind == ZT_NODE_MAP)
            use_canonical_names(ld, n, canonical);
        else if (n->kind == ZT_NODE_SCALAR && strcmp(n->text, "auto") == 0)
            n->auto_is_value = takes_auto(canonical);
    }
}

static struct zt_node *parse_map(struct zt_load *ld, const struct zt_source *src, const char *text,
                                 size_t len, const char *prefix)
{
    int before = ld->errors.n_total;
    struct zt_node *root = zt_tree_parse(src, text, len, ld->arena, &ld->errors);
    struct zt_pos at = root ? root->at : (struct zt_pos){src, 0, 0};
    bool is_map = root && root->kind == ZT_NODE_MAP;
    if (!is_map && ld->errors.n_total == before)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, at,
                    root ? "must be a mapping of keys to values" : "is empty");
    if (!is_map) {
        ld->incomplete = true;
        return new_map(ld);
    }
    use_canonical_names(ld, root, prefix);
    return root;
}

static void include_one(struct zt_load *ld, struct zt_node *base, const struct zt_node *file,
                        const struct chain *chain)
{
    if (file->kind != ZT_NODE_SCALAR || !file->text[0]) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, file->at,
                    "include: must be a path or a list of paths");
        return;
    }
    const char *path = zt_node_path(file, ld->arena);
    zt_node_merge(base, load_file(ld, path, file->at, chain), false, ld->arena);
}

/* `root` over the files that it includes. */
static struct zt_node *over_included(struct zt_load *ld, struct zt_node *root,
                                     const struct chain *chain)
{
    const struct zt_node *inc = zt_node_find(root, "include");
    if (!inc || zt_node_not_given(inc))
        return root;
    struct zt_node *base = new_map(ld);
    if (inc->kind == ZT_NODE_LIST) {
        for (const struct zt_node *f = inc->children; f; f = f->next)
            include_one(ld, base, f, chain);
    } else {
        include_one(ld, base, inc, chain);
    }
    zt_node_merge(base, root, false, ld->arena);
    return base;
}

/* What is wrong with including `path` here, or NULL. */
static const char *include_problem(const struct zt_load *ld, const char *real_path,
                                   const struct chain *outer)
{
    for (const struct chain *c = outer; c; c = c->outer) {
        if (strcmp(c->real_path, real_path) == 0)
            return "includes itself";
    }
    if (outer && outer->depth >= MAX_INCLUDE_DEPTH)
        return "files include each other too deep";
    return ld->n_sources >= MAX_SOURCES ? "too many files" : NULL;
}

/* A file and what it includes, as one map; an empty one after an error. */
static struct zt_node *load_file(struct zt_load *ld, const char *path, struct zt_pos from,
                                 const struct chain *outer)
{
    char *real = realpath(path, NULL);
    struct chain chain = {real ? real : path, outer, outer ? outer->depth + 1 : 0};
    const char *problem = include_problem(ld, chain.real_path, outer);
    struct zt_node *root = NULL;
    struct zt_str text = {0};
    struct zt_err err;

    if (problem)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, from, "%s: %s", path, problem);
    else if (zt_read_file(path, ZT_TREE_MAX_BYTES, &text, &err) != 0)
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, from, "%s", err.msg);
    else
        root = parse_map(ld, new_source(ld, ZT_SOURCE_RECIPE, path, true), zt_str_get(&text),
                         text.len, "");
    if (root)
        root = over_included(ld, root, &chain);
    else
        ld->incomplete = true;
    zt_str_release(&text);
    free(real);
    return root ? root : new_map(ld);
}

static struct zt_node *load_main(struct zt_load *ld)
{
    const struct zt_recipe_opts *o = ld->opts;
    const char *name = o->path ? o->path : "recipe";
    if (o->text) {
        ld->main = new_source(ld, ZT_SOURCE_RECIPE, name, false);
        return over_included(ld, parse_map(ld, ld->main, o->text, strlen(o->text), ""), NULL);
    }
    const struct zt_source command_line = {ZT_SOURCE_SET, "cannot load the recipe", "", 0};
    struct zt_source *copy = zt_arena_alloc(ld->arena, 1, sizeof *copy);
    *copy = command_line;
    struct zt_source *main = zt_arena_alloc(ld->arena, 1, sizeof *main);
    *main = (struct zt_source){ZT_SOURCE_RECIPE, name, "", 0};
    ld->main = main;
    return load_file(ld, name, (struct zt_pos){copy, 0, 0}, NULL);
}

/*
 * The value of --set: YAML, but text where the table wants text, so that it needs no quotes twice.
 */
static struct zt_node *set_value(struct zt_load *ld, const struct zt_source *src, const char *path,
                                 const char *text)
{
    int i = zt_key_find(zt_key_canonical(path));
    enum zt_key_type type = i < 0 ? ZT_KEY_ANY : zt_keys[i].type;
    bool is_paths = type == ZT_KEY_PATHS || type == ZT_KEY_SOURCES;
    bool is_text = type == ZT_KEY_STR || type == ZT_KEY_PATH || is_paths;
    bool is_yaml = !text[0] || strchr("'\"", text[0]) || (is_paths && text[0] == '[');
    if (!is_text || is_yaml)
        return zt_tree_parse(src, text, strlen(text), ld->arena, &ld->errors);
    const char *quoted = zt_yaml_string(ld->arena, text); /* the parser checks that it is UTF-8 */
    struct zt_node *n = zt_tree_parse(src, quoted, strlen(quoted), ld->arena, &ld->errors);
    if (n)
        n->quoted = false;
    return n;
}

/* Wrap `value` into maps along the dotted path. */
static struct zt_node *set_tree(struct zt_load *ld, const char *path, struct zt_node *value)
{
    struct zt_node *root = new_map(ld), *map = root;
    for (const char *p = path;; p += strcspn(p, ".") + 1) {
        size_t n = strcspn(p, ".");
        bool last = p[n] == '\0';
        struct zt_node *child = last ? value : new_map(ld);
        child->key = child->spelled = zt_arena_printf(ld->arena, "%.*s", (int)n, p);
        child->key_at = value->at;
        if (!last)
            child->at = value->at;
        map->children = child;
        map = child;
        if (last)
            return root;
    }
}

/* "a.b=c" from `src`. */
static void merge_set(struct zt_load *ld, struct zt_node *root, const struct zt_source *src,
                      const char *arg)
{
    const char *eq = strchr(arg, '=');
    struct zt_pos at = {src, 1, 1};
    size_t n = eq ? (size_t)(eq - arg) : 0;
    const char *path = zt_arena_printf(ld->arena, "%.*s", (int)ZT_MIN(n, MAX_SET_KEY), arg);
    if (!eq || !n || n > MAX_SET_KEY || path[0] == '.' || path[n - 1] == '.' ||
        strstr(path, "..")) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, at, "must be KEY=VALUE, such as a.b=c");
        return;
    }
    if (strcmp(path, "include") == 0 || strncmp(path, "include.", 8) == 0) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, at,
                    "include cannot be set; use --deepspeed_config");
        return;
    }
    int before = ld->errors.n_total;
    struct zt_node *value = set_value(ld, src, path, eq + 1);
    if (!value) {
        if (ld->errors.n_total == before)
            zt_diag_add(&ld->errors, ZT_DIAG_WRONG, at, "no value; write auto for the default");
        return;
    }
    struct zt_node *tree = set_tree(ld, path, value);
    use_canonical_names(ld, tree, "");
    zt_node_merge(root, tree, true, ld->arena);
}

/* The header of a file of llm.c, as a config.json would say it. */
static int read_llmc_config(const char *path, struct zt_str *out, struct zt_err *err)
{
    struct zt_mapped map;
    struct zt_llmc_header h;
    int rc = zt_map_file(path, &map, err);
    if (rc)
        return rc;
    if (zt_is_llmc_model(map.data, map.bytes))
        rc = zt_llmc_header(path, map.data, map.bytes, &h, err);
    else
        rc = zt_err_set(
            err, ZT_EINPUT,
            "%s: is neither a folder nor a model file of llm.c; of safetensors, name the "
            "folder",
            path);
    zt_unmap_file(&map);
    if (!rc)
        zt_str_printf(out,
                      "{\"model_type\": \"gpt2\", \"n_layer\": %" PRId64 ", \"n_head\": %" PRId64
                      ", \"n_embd\": %" PRId64 ", \"n_positions\": %" PRId64
                      ", \"vocab_size\": %" PRId64
                      ", \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}",
                      h.n_layer, h.n_head, h.n_embd, h.n_positions, h.vocab_size);
    return rc;
}

/*
 * What describes the model of `from`, a folder of Hugging Face or a file of llm.c; *path becomes the file
 * it comes from.
 */
static int read_from(struct zt_load *ld, const char **path, struct zt_str *out, struct zt_err *err)
{
    struct stat st;
    if (stat(*path, &st) == 0 && S_ISREG(st.st_mode))
        return read_llmc_config(*path, out, err);
    *path = zt_arena_printf(ld->arena, "%s/config.json", *path);
    int rc = zt_read_file(*path, ZT_TREE_MAX_BYTES, out, err);
    if (rc) {
        size_t len = strlen(err->msg);
        snprintf(err->msg + len, sizeof err->msg - len,
                 "; it must be a folder that is already here");
    }
    return rc;
}

/* model.config or model.from: the keys of that config.json below the recipe's own. */
static void merge_model_config(struct zt_load *ld, struct zt_node *root)
{
    struct zt_node *model = zt_node_find(root, "model");
    const struct zt_node *config = zt_node_find(model, "config"),
                         *from = zt_node_find(model, "from");
    config = config && !zt_node_not_given(config) ? config : NULL;
    from = from && !zt_node_not_given(from) ? from : NULL;
    const struct zt_node *n = config ? config : from;
    if (!n || n->kind != ZT_NODE_SCALAR || !n->text[0] || ld->opts->resolved)
        return; /* of another type: bind.c says so */
    if (config && from) {
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, config->at,
                    "model.config and model.from both given; model.from reads its own config.json");
        return;
    }
    const char *path = zt_node_path(n, ld->arena);
    struct zt_str text = {0};
    struct zt_err err;
    if (from ? read_from(ld, &path, &text, &err)
             : zt_read_file(path, ZT_TREE_MAX_BYTES, &text, &err)) {
        ld->incomplete = true;
        zt_diag_add(&ld->errors, ZT_DIAG_WRONG, n->at, "model.%s: %s", config ? "config" : "from",
                    err.msg);
    } else {
        ld->config = new_source(ld, ZT_SOURCE_CONFIG, path, true);
        struct zt_node *base = parse_map(ld, ld->config, zt_str_get(&text), text.len, "model");
        zt_node_merge(base, model, false, ld->arena);
        model->children = base->children;
    }
    zt_str_release(&text);
}

struct zt_node *zt_load_tree(struct zt_load *ld)
{
    struct zt_node *root = new_map(ld);
    struct zt_node *main = load_main(ld);
    struct zt_pos option = {new_source(ld, ZT_SOURCE_SET, "--deepspeed_config", false), 0, 0};
    for (int i = 0; i < ld->opts->deepspeed_configs.n; i++)
        zt_node_merge(root, load_file(ld, ld->opts->deepspeed_configs.items[i], option, NULL),
                      false, ld->arena);
    zt_node_merge(root, main, false, ld->arena);
    for (int i = 0; i < ld->opts->set.n; i++) {
        const char *arg = ld->opts->set.items[i];
        const char *name = zt_arena_printf(ld->arena, "--set %s", arg);
        merge_set(ld, root, new_source(ld, ZT_SOURCE_SET, name, false), arg);
    }
    for (int i = 0; i < ld->opts->chosen.n; i++)
        merge_set(ld, root, new_source(ld, ZT_SOURCE_CHOSEN, "stage: auto", false),
                  ld->opts->chosen.items[i]);
    merge_model_config(ld, root);
    return root;
}
