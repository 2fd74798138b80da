#include "recipe/load.h"

#include <math.h>
#include <stdarg.h>

/* A value under way into the settings. */
struct value {
    struct zt_load *ld;
    const struct zt_key *key;
    const char *path; /* as the person wrote it */
    const struct zt_node *node;
    struct zt_pos at;
};

static void *dest_of(const struct value *v)
{
    return v->key->dest == ZT_NO_DEST ? NULL : (char *)v->ld->settings + v->key->dest;
}

/* The value is not what it `must` be. */
static void wrong(const struct value *v, const char *must)
{
    static const char *const kinds[] = {"", "a list", "a mapping"};
    struct zt_diags *errors = &v->ld->errors;
    enum zt_key_type t = v->key->type;
    bool list_is_fine =
        t == ZT_KEY_PAIR || t == ZT_KEY_RANGE || t == ZT_KEY_PATHS || t == ZT_KEY_SOURCES;
    if (v->node->kind == ZT_NODE_SCALAR)
        zt_diag_add(errors, ZT_DIAG_WRONG, v->at, "%s: must be %s, not \"%s\"", v->path, must,
                    v->node->text);
    else if (v->node->kind == ZT_NODE_LIST && list_is_fine)
        zt_diag_add(errors, ZT_DIAG_WRONG, v->at, "%s: must be %s", v->path, must);
    else
        zt_diag_add(errors, ZT_DIAG_WRONG, v->at, "%s: must be %s, not %s", v->path, must,
                    kinds[v->node->kind]);
}

static bool in_range(const struct value *v, double x)
{
    const struct zt_key *k = v->key;
    const bool low = k->above ? x <= k->min : x < k->min;
    const bool high = k->below ? x >= k->max : x > k->max;
    if ((k->min == 0 && k->max == 0) || !(low || high))
        return true;
    const char *must = low ? (k->above ? "above" : "at least") : (k->below ? "below" : "at most");
    zt_diag_add(&v->ld->errors, ZT_DIAG_WRONG, v->at, "%s: %s is out of range; it must be %s %.16g",
                v->path, v->node->text, must, low ? k->min : k->max);
    return false;
}

static const int64_t EXACT = (int64_t)1 << 53; /* all whole numbers up to here are doubles */

/* A whole number: 12, 010 (ten), 5e8; with `cut`, a fraction is cut off. */
static bool parse_whole(const struct value *v, const struct zt_node *n, bool cut, int64_t *out)
{
    double x;
    if (n->kind != ZT_NODE_SCALAR)
        return false;
    if (zt_parse_i64(n->text, out))
        return true;
    if (!zt_parse_f64(n->text, &x) || fabs(x) > (double)EXACT || (x != trunc(x) && !cut))
        return false;
    *out = (int64_t)x;
    if (x != trunc(x))
        zt_diag_add(&v->ld->notes, ZT_DIAG_WRONG, v->at, "%s: %s is taken as %lld", v->path,
                    n->text, (long long)*out);
    return true;
}

static bool put_bool(const struct value *v)
{
    const char *t = v->node->kind == ZT_NODE_SCALAR ? v->node->text : "";
    bool on = strcmp(t, "true") == 0, off = strcmp(t, "false") == 0;
    if (!on && !off) {
        wrong(v, "true or false");
        return false;
    }
    bool *to = dest_of(v);
    if (to)
        *to = on;
    return true;
}

static bool put_int(const struct value *v)
{
    int64_t x = -1;
    const bool is_auto = v->node->auto_is_value;
    const bool is_max = v->key->inf_is_max && v->node->kind == ZT_NODE_SCALAR &&
                        zt_word_index("inf|.inf|Infinity", v->node->text) >= 0;
    if (is_max)
        x = (int64_t)v->key->max;
    else if (!is_auto && !parse_whole(v, v->node, v->key->type == ZT_KEY_SIZE, &x)) {
        wrong(v, v->key->auto_is_value ? "a whole number or auto" : "a whole number");
        return false;
    }
    /* 2^53 + 1 would be rounded to 2^53, which may be the limit: what is beyond is far beyond. */
    const bool exact = x >= -EXACT && x <= EXACT;
    if (!is_auto && !in_range(v, exact ? (double)x : copysign(INFINITY, (double)x)))
        return false;
    int64_t *to = dest_of(v);
    if (to)
        *to = x;
    return true;
}

static bool put_float(const struct value *v)
{
    double x;
    if (v->node->kind != ZT_NODE_SCALAR || !zt_parse_f64(v->node->text, &x)) {
        wrong(v, "a finite number");
        return false;
    }
    if (!in_range(v, x))
        return false;
    double *to = dest_of(v);
    if (to)
        *to = x;
    return true;
}

/* "a, b or c" */
static const char *or_list(struct zt_arena *arena, const char *list)
{
    const char *out = zt_word_at(list, 0, arena);
    int n = zt_word_count(list);
    for (int i = 1; i < n; i++)
        out = zt_arena_printf(arena, "%s%s%s", out, i == n - 1 ? " or " : ", ",
                              zt_word_at(list, i, arena));
    return out;
}

static bool put_word(const struct value *v)
{
    struct zt_arena *arena = v->ld->arena;
    const struct zt_key *k = v->key;
    int i = -1, n_ok = zt_word_count(k->ok);
    if (v->node->kind == ZT_NODE_SCALAR) {
        i = zt_word_index(k->ok, v->node->text);
        int known = zt_word_index(k->known, v->node->text);
        if (i < 0 && known >= 0)
            i = n_ok + known;
    }
    if (i < 0) {
        wrong(v, or_list(arena, k->ok));
        return false;
    }
    if (k->type == ZT_KEY_ENUM)
        *(int *)dest_of(v) = i;
    else
        *(const char **)dest_of(v) =
            i < n_ok ? zt_word_at(k->ok, i, arena) : zt_word_at(k->known, i - n_ok, arena);
    return true;
}

static bool put_str(const struct value *v)
{
    if (v->node->kind != ZT_NODE_SCALAR) {
        wrong(v, "a string");
        return false;
    }
    const char **to = dest_of(v);
    if (!to)
        return true;
    if (v->key->type == ZT_KEY_PATH && !v->node->text[0]) {
        wrong(v, "a path");
        return false;
    }
    *to = v->key->type == ZT_KEY_PATH ? zt_node_path(v->node, v->ld->arena) : v->node->text;
    return true;
}

static bool put_paths(const struct value *v)
{
    struct zt_str_list *to = dest_of(v);
    bool is_list = v->node->kind == ZT_NODE_LIST;
    const struct zt_node *first = is_list ? v->node->children : v->node;
    int n = 0;
    bool ok = v->node->kind != ZT_NODE_MAP;
    for (const struct zt_node *c = first; c; c = is_list ? c->next : NULL, n++)
        ok = ok && c->kind == ZT_NODE_SCALAR && c->text[0];
    if (!ok || n == 0) {
        wrong(v, "a path or a list of paths");
        return false;
    }
    to->n = n;
    to->items = zt_arena_alloc(v->ld->arena, (size_t)n, sizeof *to->items);
    for (int i = 0; i < n; i++, first = first->next)
        to->items[i] = zt_node_path(first, v->ld->arena);
    return true;
}

/* {path: P, weight: W} and nothing else. */
static bool parse_source(const struct zt_node *n, const struct zt_node **path, double *weight)
{
    const struct zt_node *w = NULL;
    *path = NULL;
    for (const struct zt_node *c = n->kind == ZT_NODE_MAP ? n->children : NULL; c; c = c->next) {
        if (strcmp(c->key, "path") == 0)
            *path = c;
        else if (strcmp(c->key, "weight") == 0)
            w = c;
        else
            return false;
    }
    return *path && (*path)->kind == ZT_NODE_SCALAR && (*path)->text[0] && w &&
           w->kind == ZT_NODE_SCALAR && zt_parse_f64(w->text, weight) && *weight > 0;
}

static bool put_sources(const struct value *v)
{
    struct zt_str_list *to = dest_of(v);
    bool weighted = false;
    int n = 0;
    v->ld->settings->r.data.train_weights = NULL;
    if (v->node->kind == ZT_NODE_LIST)
        for (const struct zt_node *c = v->node->children; c; c = c->next, n++)
            weighted |= c->kind == ZT_NODE_MAP;
    if (!weighted)
        return put_paths(v);
    double *weights = zt_arena_alloc(v->ld->arena, (size_t)n, sizeof *weights);
    const struct zt_node *c = v->node->children, *path;
    const char **items = zt_arena_alloc(v->ld->arena, (size_t)n, sizeof *items);
    for (int i = 0; i < n; i++, c = c->next) {
        if (!parse_source(c, &path, &weights[i])) {
            zt_diag_add(&v->ld->errors, ZT_DIAG_WRONG, c->at,
                        "%s: each must be {path: PATH, weight: NUMBER above 0}, or all of them "
                        "paths alone",
                        v->path);
            return false;
        }
        items[i] = zt_node_path(path, v->ld->arena);
    }
    *to = (struct zt_str_list){n, items};
    v->ld->settings->r.data.train_weights = weights;
    return true;
}

/* The two elements of a list, or NULL. */
static const struct zt_node *two_elements(const struct zt_node *n)
{
    const struct zt_node *a = n->kind == ZT_NODE_LIST ? n->children : NULL;
    return a && a->next && !a->next->next ? a : NULL;
}

static bool put_range(const struct value *v)
{
    const struct zt_node *n = two_elements(v->node);
    int64_t *to = dest_of(v), x[2];
    bool ok = n != NULL;
    for (int i = 0; ok && i < 2; i++, n = n->next) {
        x[i] = -1;
        ok = zt_node_not_given(n) || (parse_whole(v, n, false, &x[i]) && x[i] >= -1);
    }
    if (!ok || (x[1] >= 0 && x[1] <= ZT_MAX(x[0], 0))) {
        wrong(v, "a range [BEGIN, END) of tokens such as [0, 1000] or [1000, -1]");
        return false;
    }
    memcpy(to, x, sizeof x);
    return true;
}

static bool put_pair(const struct value *v)
{
    const struct zt_node *n = two_elements(v->node);
    double *to = dest_of(v), x[2];
    bool ok = n != NULL;
    for (int i = 0; ok && i < 2; i++, n = n->next)
        ok = n->kind == ZT_NODE_SCALAR && zt_parse_f64(n->text, &x[i]) && x[i] >= v->key->min &&
             x[i] < v->key->max;
    if (!ok) {
        wrong(v, "two numbers from 0 to below 1, such as [0.9, 0.999]");
        return false;
    }
    memcpy(to, x, sizeof x);
    return true;
}

static bool put(const struct value *v)
{
    switch (v->key->type) {
    case ZT_KEY_BOOL:
        return put_bool(v);
    case ZT_KEY_INT:
    case ZT_KEY_SIZE:
        return put_int(v);
    case ZT_KEY_FLOAT:
        return put_float(v);
    case ZT_KEY_ENUM:
    case ZT_KEY_WORD:
        return put_word(v);
    case ZT_KEY_STR:
    case ZT_KEY_PATH:
        return put_str(v);
    case ZT_KEY_PATHS:
        return put_paths(v);
    case ZT_KEY_SOURCES:
        return put_sources(v);
    case ZT_KEY_RANGE:
        return put_range(v);
    case ZT_KEY_PAIR:
        return put_pair(v);
    case ZT_KEY_GROUPS:
        return zt_recipe_groups_parse(v->ld, v->path, v->node, dest_of(v));
    case ZT_KEY_SECTION:
    case ZT_KEY_ANY:
        break;
    }
    return true;
}

void zt_load_refuse(struct zt_load *ld, struct zt_pos at, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (ld->opts->for_plan)
        zt_diag_add(&ld->notes, ZT_DIAG_UNSUPPORTED, at, "%s (running would be refused)", text);
    else
        zt_diag_add(&ld->errors, ZT_DIAG_UNSUPPORTED, at, "%s", text);
}

/* Is the value one of those that change nothing? */
static bool is_neutral(const struct zt_key *k, const struct zt_node *n)
{
    if (n->kind != ZT_NODE_SCALAR)
        return !n->children; /* an empty list or mapping */
    if (zt_word_index(k->ok, n->text) >= 0)
        return true;
    double x, y;
    for (const char *p = k->ok; p && zt_parse_f64(n->text, &x); p = strchr(p, '|')) {
        char word[16];
        p += *p == '|';
        snprintf(word, sizeof word, "%.*s", (int)strcspn(p, "|"), p);
        if (zt_parse_f64(word, &y) && x == y)
            return true;
    }
    return false;
}

/* Say what has to be said of a value that is accepted in form. */
static void judge(const struct value *v)
{
    struct zt_load *ld = v->ld;
    const struct zt_key *k = v->key;
    const char *text = v->node->kind == ZT_NODE_SCALAR ? v->node->text : "{...}";
    if (k->known && v->node->kind == ZT_NODE_SCALAR && zt_word_index(k->known, text) >= 0) {
        zt_load_refuse(ld, v->at, "%s: %s is understood, but not carried out yet; use %s", v->path,
                       text, or_list(ld->arena, k->ok));
        return;
    }
    if (k->status == ZT_KEY_CARRIED || is_neutral(k, v->node))
        return;
    if (k->status == ZT_KEY_REFUSED)
        zt_load_refuse(ld, v->at, "%s: %s: %s", v->path, text, k->doc);
    else if (v->node->at.src->kind != ZT_SOURCE_CONFIG) /* a config.json is written for others */
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, v->at, "%s: ignored: %s", v->path, k->doc);
}

static void bind_map(struct zt_load *ld, const struct zt_node *map, const char *path,
                     const char *spelled);

/* Checks that compare keys would only repeat that one of them is wrong. */
static void mark_bad_section(struct zt_load *ld, const char *path)
{
    const char *dot = strrchr(path, '.');
    int i = dot ? zt_key_find(zt_arena_printf(ld->arena, "%.*s", (int)(dot - path), path)) : -1;
    if (i >= 0)
        ld->given[i].bad = true;
    else
        ld->incomplete = true;
}

static void bind_unknown(struct zt_load *ld, const struct zt_node *n, const char *path,
                         const char *spelled)
{
    if (n->key_at.src->kind == ZT_SOURCE_CONFIG) {
        zt_diag_add(&ld->notes, ZT_DIAG_WRONG, n->key_at, "%s: ignored: not known to zerotrain",
                    spelled);
        return;
    }
    mark_bad_section(ld, path);
    const char *hint = ld->errors.n < ZT_DIAG_KEEP ? zt_key_suggest(path, ld->arena) : "";
    zt_diag_add(&ld->errors, ZT_DIAG_WRONG, n->key_at, "unknown key \"%s\"%s", spelled, hint);
}

static void bind_node(struct zt_load *ld, const struct zt_node *n, const char *path,
                      const char *spelled)
{
    int i = zt_key_find(path);
    if (i < 0) {
        bind_unknown(ld, n, path, spelled);
        return;
    }
    const struct zt_key *k = &zt_keys[i];
    if (zt_node_not_given(n)) {
        ld->given[i].null = strcmp(n->text, "auto") != 0;
        return;
    }
    if (k->type == ZT_KEY_SECTION) {
        ld->given[i].bad = n->kind != ZT_NODE_MAP;
        if (n->kind == ZT_NODE_MAP)
            bind_map(ld, n, path, spelled);
        else
            zt_diag_add(&ld->errors, ZT_DIAG_WRONG, n->at,
                        "%s: must be a mapping of keys, such as {%s: ...}", spelled,
                        strrchr(zt_keys[i + 1].path, '.') + 1);
        return;
    }
    struct value v = {ld, k, spelled, n, n->at};
    ld->given[i].bad = !put(&v);
    if (ld->given[i].bad)
        return;
    ld->given[i].node = n;
    ld->given[i].origin =
        n->at.src->kind == ZT_SOURCE_SET ? "--set" : zt_pos_text(ld->arena, n->at);
    judge(&v);
}

static void bind_map(struct zt_load *ld, const struct zt_node *map, const char *path,
                     const char *spelled)
{
    const char *dot = path[0] ? "." : "";
    for (const struct zt_node *n = map->children; n; n = n->next)
        bind_node(ld, n, zt_arena_printf(ld->arena, "%s%s%s", path, dot, n->key),
                  zt_arena_printf(ld->arena, "%s%s%s", spelled, dot, n->spelled));
}

static void bind_defaults(struct zt_load *ld)
{
    static const struct zt_source defaults = {ZT_SOURCE_RECIPE, "default", "", 0};
    for (int i = 0; i < zt_n_keys; i++) {
        const struct zt_key *k = &zt_keys[i];
        if (!k->dflt)
            continue;
        struct zt_node *n =
            zt_tree_parse(&defaults, k->dflt, strlen(k->dflt), ld->arena, &ld->errors);
        struct value v = {ld, k, k->path, n, {&defaults, 0, 0}};
        ZT_ASSERT(n && put(&v));
        ld->given[i].origin = "default";
    }
    struct zt_recipe *r = &ld->settings->r;
    for (int i = 0; i < 2; i++)
        r->data.range_train[i] = r->data.range_val[i] = -1;
    r->data.document_separator = -1;
    ld->settings->comm = -1;
}

void zt_load_bind(struct zt_load *ld, const struct zt_node *root)
{
    bind_defaults(ld);
    bind_map(ld, root, "", "");
}

const struct zt_node *zt_load_given(const struct zt_load *ld, const char *path)
{
    int i = zt_key_find(path);
    ZT_ASSERT(i >= 0 && strcmp(zt_keys[i].path, path) == 0);
    return ld->given[i].node;
}

struct zt_pos zt_load_pos(const struct zt_load *ld, const char *path)
{
    const struct zt_node *n = zt_load_given(ld, path);
    return n ? n->at : (struct zt_pos){ld->main, 0, 0};
}

const char *zt_load_origin(const struct zt_load *ld, const char *path)
{
    return ld->given[zt_key_find(path)].origin;
}

bool zt_load_null(const struct zt_load *ld, const char *path)
{
    return ld->given[zt_key_find(path)].null;
}

bool zt_load_any_bad(const struct zt_load *ld, const char *section)
{
    size_t n = strlen(section);
    for (int i = 0; i < zt_n_keys; i++) {
        const char *path = zt_keys[i].path;
        if (ld->given[i].bad && strncmp(path, section, n) == 0 && (!path[n] || path[n] == '.'))
            return true;
    }
    return false;
}

void zt_load_derived(struct zt_load *ld, const char *path)
{
    int i = zt_key_find(path);
    ZT_ASSERT(i >= 0);
    ld->given[i].origin = "derived";
}

void zt_load_unsaid(struct zt_load *ld, const char *path)
{
    int i = zt_key_find(path);
    ZT_ASSERT(i >= 0);
    ld->given[i].origin = NULL;
}
