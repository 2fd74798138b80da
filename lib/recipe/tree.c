#include "recipe/tree.h"

#include <strings.h>
#include <yaml.h>

#include "base/str.h"

struct builder {
    yaml_parser_t yaml;
    const struct zt_source *src;
    const char *text;
    size_t len;
    struct zt_arena *arena;
    struct zt_diags *errors;
    int n_nodes;
    bool failed;
};

static struct zt_pos pos_of(const struct builder *b, const yaml_mark_t *m)
{
    return (struct zt_pos){b->src, (int)m->line + 1, (int)m->column + 1};
}

/* What stops the reading of this text; the first such error is the one that counts. */
#define STOP(b, at, ...)                                                                           \
    do {                                                                                           \
        if (!(b)->failed)                                                                          \
            zt_diag_add((b)->errors, ZT_DIAG_WRONG, at, __VA_ARGS__);                              \
        (b)->failed = true;                                                                        \
    } while (0)

/* Is there a tab among the blanks that line `line` (from 0) starts with? */
static bool tab_indents(const struct builder *b, size_t line)
{
    const char *p = b->text, *end = b->text + b->len;
    for (; line > 0 && p < end; p++) {
        if (*p == '\n')
            line--;
    }
    while (p < end && *p == ' ')
        p++;
    return p < end && *p == '\t';
}

static void stop_on_syntax(struct builder *b)
{
    const yaml_parser_t *y = &b->yaml;
    const char *problem = y->problem ? y->problem : "out of memory";
    if (y->error == YAML_READER_ERROR) { /* has an offset, but no mark */
        struct zt_pos at = {b->src, 1, 1};
        for (size_t i = 0; i < y->problem_offset && i < b->len; i++) {
            at.col = b->text[i] == '\n' ? 1 : at.col + 1;
            at.line += b->text[i] == '\n';
        }
        STOP(b, at, "not valid UTF-8 text: %s", problem);
        return;
    }
    struct zt_pos at = pos_of(b, &y->problem_mark);
    bool about_tab = strstr(problem, "cannot start any token") || strstr(problem, "tab character");
    if (about_tab && tab_indents(b, y->problem_mark.line))
        STOP(b, at, "tab in the indentation; YAML wants spaces");
    else if (y->context)
        STOP(b, at, "not valid YAML: %s (%s at line %zu)", problem, y->context,
             y->context_mark.line + 1);
    else
        STOP(b, at, "not valid YAML: %s", problem);
}

/* The next event, which the caller deletes; false when there is none. */
static bool next_event(struct builder *b, yaml_event_t *ev)
{
    if (b->failed)
        return false;
    if (yaml_parser_parse(&b->yaml, ev))
        return true;
    stop_on_syntax(b);
    return false;
}

static const char *event_anchor(const yaml_event_t *ev)
{
    switch (ev->type) {
    case YAML_SCALAR_EVENT:
        return (const char *)ev->data.scalar.anchor;
    case YAML_SEQUENCE_START_EVENT:
        return (const char *)ev->data.sequence_start.anchor;
    case YAML_MAPPING_START_EVENT:
        return (const char *)ev->data.mapping_start.anchor;
    default:
        return NULL;
    }
}

static const char *event_tag(const yaml_event_t *ev)
{
    switch (ev->type) {
    case YAML_SCALAR_EVENT:
        return (const char *)ev->data.scalar.tag;
    case YAML_SEQUENCE_START_EVENT:
        return (const char *)ev->data.sequence_start.tag;
    case YAML_MAPPING_START_EVENT:
        return (const char *)ev->data.mapping_start.tag;
    default:
        return NULL;
    }
}

static struct zt_node *build(struct builder *b, const yaml_event_t *ev, int depth);

static void add_child(struct zt_node ***tail, struct zt_node *child)
{
    **tail = child;
    *tail = &child->next;
}

static void build_list(struct builder *b, struct zt_node *list, int depth)
{
    struct zt_node **tail = &list->children;
    yaml_event_t ev;
    while (next_event(b, &ev)) {
        if (ev.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&ev);
            return;
        }
        struct zt_node *child = build(b, &ev, depth + 1);
        yaml_event_delete(&ev);
        if (child)
            add_child(&tail, child);
    }
}

static void build_pair(struct builder *b, struct zt_node *map, struct zt_node ***tail,
                       const struct zt_node *key, int depth)
{
    yaml_event_t ev;
    if (!next_event(b, &ev))
        return;
    struct zt_node *value = build(b, &ev, depth + 1);
    yaml_event_delete(&ev);
    if (!value)
        return;
    const struct zt_node *first = zt_node_find(map, key->text);
    if (first) {
        zt_diag_add(b->errors, ZT_DIAG_WRONG, key->at, "duplicate key \"%s\"; first at line %d",
                    key->text, first->key_at.line);
        return;
    }
    value->key = value->spelled = key->text;
    value->key_at = key->at;
    add_child(tail, value);
}

static void build_map(struct builder *b, struct zt_node *map, int depth)
{
    struct zt_node **tail = &map->children;
    yaml_event_t ev;
    while (next_event(b, &ev)) {
        if (ev.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&ev);
            return;
        }
        struct zt_pos at = pos_of(b, &ev.start_mark);
        if (ev.type != YAML_SCALAR_EVENT && ev.type != YAML_ALIAS_EVENT)
            STOP(b, at, "a key must be a plain word, not a list or a mapping");
        struct zt_node *key = build(b, &ev, depth + 1);
        yaml_event_delete(&ev);
        if (key && !key->text[0])
            STOP(b, at, "an empty key");
        if (key)
            build_pair(b, map, &tail, key, depth);
    }
}

static void build_scalar(struct builder *b, struct zt_node *n, const yaml_event_t *ev)
{
    n->kind = ZT_NODE_SCALAR;
    n->text = zt_arena_strdup(b->arena, (const char *)ev->data.scalar.value);
    n->quoted = ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (strlen(n->text) != ev->data.scalar.length)
        STOP(b, n->at, "a NUL character in a value");
}

static struct zt_node *build(struct builder *b, const yaml_event_t *ev, int depth)
{
    struct zt_pos at = pos_of(b, &ev->start_mark);
    if (ev->type == YAML_ALIAS_EVENT || event_anchor(ev))
        STOP(b, at, "anchors and aliases (&, *) are not supported; write the value out");
    else if (event_tag(ev))
        STOP(b, at, "tags (%s) are not supported", event_tag(ev));
    else if (depth > ZT_TREE_MAX_DEPTH)
        STOP(b, at, "nested deeper than %d levels", ZT_TREE_MAX_DEPTH);
    else if (++b->n_nodes > ZT_TREE_MAX_NODES)
        STOP(b, at, "more than %d values", ZT_TREE_MAX_NODES);
    if (b->failed)
        return NULL;

    struct zt_node *n = zt_arena_alloc(b->arena, 1, sizeof *n);
    n->at = at;
    switch (ev->type) {
    case YAML_SCALAR_EVENT:
        build_scalar(b, n, ev);
        break;
    case YAML_SEQUENCE_START_EVENT:
        n->kind = ZT_NODE_LIST;
        build_list(b, n, depth);
        break;
    case YAML_MAPPING_START_EVENT:
        n->kind = ZT_NODE_MAP;
        build_map(b, n, depth);
        break;
    default:
        STOP(b, at, "not valid YAML");
        break;
    }
    return b->failed ? NULL : n;
}

static struct zt_node *build_stream(struct builder *b)
{
    struct zt_node *root = NULL;
    bool done = false;
    yaml_event_t ev;
    while (!done && next_event(b, &ev)) {
        switch (ev.type) {
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT:
            break;
        case YAML_DOCUMENT_START_EVENT:
            if (root)
                STOP(b, pos_of(b, &ev.start_mark), "a second document; one file is one document");
            break;
        case YAML_STREAM_END_EVENT:
            done = true;
            break;
        default:
            root = build(b, &ev, 0);
            break;
        }
        yaml_event_delete(&ev);
    }
    return b->failed ? NULL : root;
}

struct zt_node *zt_tree_parse(const struct zt_source *src, const char *text, size_t len,
                              struct zt_arena *arena, struct zt_diags *errors)
{
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* byte order mark */
        text += 3;
        len -= 3;
    }
    struct builder b = {.src = src, .text = text, .len = len, .arena = arena, .errors = errors};
    if (len > ZT_TREE_MAX_BYTES) {
        STOP(&b, ((struct zt_pos){src, 0, 0}), "larger than %d bytes", ZT_TREE_MAX_BYTES);
        return NULL;
    }
    if (!yaml_parser_initialize(&b.yaml)) {
        STOP(&b, ((struct zt_pos){src, 0, 0}), "out of memory");
        return NULL;
    }
    yaml_parser_set_encoding(&b.yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&b.yaml, (const unsigned char *)text, len);
    struct zt_node *root = build_stream(&b);
    yaml_parser_delete(&b.yaml);
    return root;
}

struct zt_node *zt_node_find(const struct zt_node *map, const char *key)
{
    if (!map || map->kind != ZT_NODE_MAP)
        return NULL;
    for (struct zt_node *c = map->children; c; c = c->next) {
        if (strcmp(c->key, key) == 0)
            return c;
    }
    return NULL;
}

bool zt_node_not_given(const struct zt_node *n)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    if (n->kind != ZT_NODE_SCALAR)
        return false;
    if (strcmp(n->text, "auto") == 0)
        return !n->auto_is_value;
    for (size_t i = 0; !n->quoted && i < ZT_ARRAY_LEN(nulls); i++) {
        if (strcmp(n->text, nulls[i]) == 0)
            return true;
    }
    return false;
}

const char *zt_node_path(const struct zt_node *n, struct zt_arena *a)
{
    if (strcmp(n->text, "-") == 0)
        return "./-"; /* a file's name; standard input is for the command line only */
    if (n->text[0] == '/' || !n->at.src->dir[0])
        return n->text;
    return zt_arena_printf(a, "%s%s", n->at.src->dir, n->text);
}

bool zt_is_utf8(const char *s)
{
    uint32_t c;
    size_t len = 1;
    for (; *s && len; s += len)
        len = zt_utf8_char(s, 4, &c);
    return len > 0;
}

/* Would libyaml read the character back as it is, inside double quotes? */
static bool is_printable(uint32_t c)
{
    if (c < 0xa0)
        return c >= ' ' && c < 0x7f && c != '"' && c != '\\';
    return c != 0x2028 && c != 0x2029 && c != 0xfeff && c != 0xfffe && c != 0xffff;
}

static bool is_plain_word(const char *s)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./";
    static const char *const special[] = {"null", "true", "false", "yes", "no", "on", "off"};
    bool letter = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '/';
    if (!letter || s[strspn(s, plain)])
        return false;
    for (size_t i = 0; i < ZT_ARRAY_LEN(special); i++) {
        if (strcasecmp(s, special[i]) == 0)
            return false;
    }
    return true;
}

const char *zt_yaml_string(struct zt_arena *a, const char *s)
{
    if (is_plain_word(s))
        return s;
    struct zt_str out = {0};
    zt_str_puts(&out, "\"");
    for (size_t len; *s; s += len) {
        uint32_t c = 0;
        len = zt_utf8_char(s, 4, &c);
        const bool as_is = len == 0 || is_printable(c); /* the parser refuses what is no UTF-8 */
        len = ZT_MAX(len, (size_t)1);
        if (as_is)
            zt_str_add(&out, s, len);
        else if (c == '\n')
            zt_str_puts(&out, "\\n");
        else if (c == '"' || c == '\\')
            zt_str_printf(&out, "\\%c", (char)c);
        else
            zt_str_printf(&out, "\\u%04x", (unsigned)c);
    }
    zt_str_puts(&out, "\"");
    const char *text = zt_arena_strdup(a, zt_str_get(&out));
    zt_str_release(&out);
    return text;
}

static struct zt_node **find_link(struct zt_node *map, const char *key)
{
    struct zt_node **link = &map->children;
    while (*link && strcmp((*link)->key, key) != 0)
        link = &(*link)->next;
    return link;
}

void zt_node_merge(struct zt_node *base, const struct zt_node *over, bool unset,
                   struct zt_arena *arena)
{
    for (const struct zt_node *o = over->children; o; o = o->next) {
        struct zt_node **link = find_link(base, o->key), *old = *link;
        bool given = !zt_node_not_given(o);
        if (old && old->kind == ZT_NODE_MAP && o->kind == ZT_NODE_MAP) {
            zt_node_merge(old, o, unset, arena);
        } else if (old && !given) {
            if (unset)
                *link = old->next;
        } else {
            struct zt_node *copy = zt_arena_alloc(arena, 1, sizeof *copy);
            *copy = *o;
            copy->next = old ? old->next : NULL;
            *link = copy;
        }
    }
}
