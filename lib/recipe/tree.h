/*
 * tree.h: YAML text as a tree of nodes that know where they stand.
 *
 * Internal to lib/recipe. Everything lives in the recipe's arena. What a recipe does not need is
 * rejected with its place: anchors and aliases, tags, a second document, keys that are not scalars,
 * duplicate keys, deep nesting, huge inputs.
 */
#ifndef ZT_RECIPE_TREE_H
#define ZT_RECIPE_TREE_H

#include "recipe/diag.h"

enum { ZT_TREE_MAX_BYTES = 1 << 20, ZT_TREE_MAX_NODES = 20000, ZT_TREE_MAX_DEPTH = 32 };

enum zt_node_kind { ZT_NODE_SCALAR, ZT_NODE_LIST, ZT_NODE_MAP };

struct zt_node {
    enum zt_node_kind kind;
    struct zt_pos at;
    const char *text; /* of a scalar; never NULL there */
    bool quoted;
    bool auto_is_value;              /* of this key: "auto" is given */
    struct zt_node *children, *next; /* of a list or a map, in the order of the text */

    const char *key;     /* in a map: by the table's name */
    const char *spelled; /* as it was written; differs from key for another name of it */
    struct zt_pos key_at;
};

/* The root node, or NULL when the text is empty or an error was added to `errors`. */
struct zt_node *zt_tree_parse(const struct zt_source *src, const char *text, size_t len,
                              struct zt_arena *arena, struct zt_diags *errors);

struct zt_node *zt_node_find(const struct zt_node *map, const char *key);

/*
 * null, ~, nothing, or "auto" (quoted too) unless that is a value of the key: the same as not writing
 * the key.
 */
bool zt_node_not_given(const struct zt_node *n);

/* The path that a scalar means: a relative one starts from the folder of the file it stands in. */
const char *zt_node_path(const struct zt_node *n, struct zt_arena *a);

bool zt_is_utf8(const char *s);

/* `s` as a YAML (and JSON) string: as it is when it is a plain word, else in double quotes. */
const char *zt_yaml_string(struct zt_arena *a, const char *s);

/*
 * Put `over` on `base`, both maps: maps are merged key by key, anything else replaces. A value that
 * is not given leaves what is below it, or with `unset` removes it.
 */
void zt_node_merge(struct zt_node *base, const struct zt_node *over, bool unset,
                   struct zt_arena *arena);

#endif
