#include "recipe/load.h"

#include <inttypes.h>

/* Shortest text that reads back as the same number. */
const char *zt_yaml_f64(struct zt_arena *a, double x)
{
    char buf[40];
    for (int digits = 1; digits <= 17; digits++) {
        double back;
        snprintf(buf, sizeof buf, "%.*g", digits, x);
        if (zt_parse_f64(buf, &back) && back == x)
            break;
    }
    return zt_arena_strdup(a, buf);
}

static const char *absolute(struct zt_arena *a, const char *cwd, const char *path)
{
    return path[0] == '/' || !cwd ? path : zt_arena_printf(a, "%s/%s", cwd, path);
}

/* `weights` NULL: paths alone. */
static const char *paths_text(struct zt_arena *a, const char *cwd, const struct zt_str_list *l,
                              const double *weights)
{
    const char *out = "[";
    for (int i = 0; i < l->n; i++) {
        const char *item = zt_yaml_string(a, absolute(a, cwd, l->items[i]));
        if (weights)
            item = zt_arena_printf(a, "{path: %s, weight: %s}", item, zt_yaml_f64(a, weights[i]));
        out = zt_arena_printf(a, "%s%s%s", out, i ? ", " : "", item);
    }
    return zt_arena_printf(a, "%s]", out);
}

static const char *word_text(struct zt_arena *a, const struct zt_key *k, int i)
{
    int n_ok = zt_word_count(k->ok);
    return i < n_ok ? zt_word_at(k->ok, i, a) : zt_word_at(k->known, i - n_ok, a);
}

static const char *value_text(struct zt_load *ld, const struct zt_key *k, const char *cwd)
{
    struct zt_arena *a = ld->arena;
    const char *from = (const char *)ld->settings + k->dest;
    const char *const *str = (const void *)from;
    const int64_t *i64 = (const void *)from;
    const double *f64 = (const void *)from;
    switch (k->type) {
    case ZT_KEY_BOOL:
        return *(const bool *)from ? "true" : "false";
    case ZT_KEY_INT:
    case ZT_KEY_SIZE:
        if (k->auto_is_value && *i64 == -1)
            return "auto";
        return zt_arena_printf(a, "%" PRId64, *i64);
    case ZT_KEY_FLOAT:
        return zt_yaml_f64(a, *f64);
    case ZT_KEY_ENUM:
        return word_text(a, k, *(const int *)(const void *)from);
    case ZT_KEY_WORD:
    case ZT_KEY_STR:
        return zt_yaml_string(a, *str);
    case ZT_KEY_PATH:
        return zt_yaml_string(a, absolute(a, cwd, *str));
    case ZT_KEY_PATHS:
        return paths_text(a, cwd, (const void *)from, NULL);
    case ZT_KEY_SOURCES:
        return paths_text(a, cwd, (const void *)from, ld->settings->r.data.train_weights);
    case ZT_KEY_RANGE:
        return zt_arena_printf(a, "[%" PRId64 ", %" PRId64 "]", i64[0], i64[1]);
    case ZT_KEY_PAIR:
        return zt_arena_printf(a, "[%s, %s]", zt_yaml_f64(a, f64[0]), zt_yaml_f64(a, f64[1]));
    case ZT_KEY_GROUPS:
        return zt_recipe_groups_text(a, (const void *)from);
    case ZT_KEY_SECTION:
    case ZT_KEY_ANY:
        break;
    }
    return "";
}

/* Is the row one that the printed recipe says? */
static bool is_said(const struct zt_load *ld, int i)
{
    const char *path = zt_keys[i].path;
    if (zt_keys[i].dest == ZT_NO_DEST || !ld->given[i].origin)
        return false;
    if (strcmp(path, "model.config") == 0)
        return false; /* its keys are all here: nobody need read it again */
    /* A number of parameters alone has no shape, and defaults would look like one. */
    return ld->settings->r.model.model_type || strncmp(path, "model.", 6) != 0 ||
           strcmp(path, "model.params") == 0;
}

void zt_load_values(struct zt_load *ld)
{
    char *cwd = realpath(".", NULL);
    struct zt_recipe_value *values = zt_arena_alloc(ld->arena, (size_t)zt_n_keys, sizeof *values);
    int n = 0;
    for (int i = 0; i < zt_n_keys; i++) {
        const struct zt_key *k = &zt_keys[i];
        if (is_said(ld, i))
            values[n++] =
                (struct zt_recipe_value){k->path, value_text(ld, k, cwd), ld->given[i].origin};
    }
    ld->settings->r.values = values;
    ld->settings->r.n_values = n;
    free(cwd);
}

/* Length of the sections that two dotted paths share, with the dot. */
static size_t shared_sections(const char *a, const char *b)
{
    size_t len = 0;
    for (size_t i = 0; a[i] && a[i] == b[i]; i++) {
        if (a[i] == '.')
            len = i + 1;
    }
    return len;
}

/* It begins with a file's name, which may be any bytes; YAML is UTF-8, in comments too. */
static void put_origin(const char *origin, struct zt_str *out)
{
    const bool plain = zt_is_utf8(origin);
    for (const char *p = origin; *p; p++)
        zt_str_add(out, plain || (unsigned char)*p < 0x80 ? p : "?", 1);
}

void zt_recipe_print(const struct zt_recipe *r, struct zt_str *out)
{
    const char *before = "";
    zt_str_printf(out, "# resolved for %d rank%s\n", r->n_ranks, r->n_ranks == 1 ? "" : "s");
    for (int i = 0; i < r->n_values; i++) {
        const struct zt_recipe_value *v = &r->values[i];
        const char *p = v->key + shared_sections(before, v->key);
        int indent = 0;
        for (const char *q = v->key; q < p; q++)
            indent += *q == '.' ? 2 : 0;
        for (const char *dot; (dot = strchr(p, '.')); p = dot + 1, indent += 2)
            zt_str_printf(out, "%*s%.*s:\n", indent, "", (int)(dot - p), p);
        zt_str_printf(out, "%*s%s: %s # ", indent, "", p, v->value);
        put_origin(v->origin, out);
        zt_str_puts(out, "\n");
        before = v->key;
    }
}

int zt_recipe_check_print(const struct zt_recipe *r, struct zt_err *err)
{
    for (int i = 0; i < r->n_values; i++) {
        const struct zt_recipe_value *v = &r->values[i];
        if (!zt_is_utf8(v->value))
            return zt_err_set(
                err, ZT_EINPUT,
                "%s: %s: %s is not UTF-8 text, which a recipe must be; give the file or "
                "folder another name",
                v->origin, v->key, v->value);
    }
    return 0;
}

const char *zt_recipe_origin(const struct zt_recipe *r, const char *key)
{
    for (int i = 0; i < r->n_values; i++) {
        const char *at = r->values[i].origin;
        if (strcmp(r->values[i].key, key) == 0 && strcmp(at, "default") && strcmp(at, "derived"))
            return at;
    }
    return r->path;
}
