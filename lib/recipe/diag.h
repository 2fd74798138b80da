/*
 * diag.h: what is wrong with a recipe, collected so that all of it is reported at once.
 *
 * Internal to lib/recipe. Everything lives in the recipe's arena. A list keeps at most
 * ZT_DIAG_KEEP messages and counts the rest; zt_diag_report() sorts them by place.
 */
#ifndef ZT_RECIPE_DIAG_H
#define ZT_RECIPE_DIAG_H

#include "base/arena.h"
#include "base/err.h"

enum zt_source_kind {
    ZT_SOURCE_RECIPE, /* a recipe, an included file, a DeepSpeed configuration */
    ZT_SOURCE_SET,    /* --set on the command line: no lines */
    ZT_SOURCE_CONFIG, /* a Hugging Face config.json */
    ZT_SOURCE_CHOSEN, /* what we chose ourselves for "auto": no lines */
};

struct zt_source {
    enum zt_source_kind kind;
    const char *name; /* as messages show it */
    const char *dir;  /* what relative paths in it start from, "" or ending in '/' */
    int order;        /* of reading; messages are sorted by it */
};

struct zt_pos {
    const struct zt_source *src;
    int line, col; /* from 1; 0: the whole source */
};

enum zt_diag_kind {
    ZT_DIAG_WRONG,
    ZT_DIAG_MISSING,     /* nothing is wrong with what is there, but more is needed */
    ZT_DIAG_UNSUPPORTED, /* understood, but not carried out */
};

enum { ZT_DIAG_KEEP = 200, ZT_DIAG_SHOW = 50 };

struct zt_diag {
    enum zt_diag_kind kind;
    struct zt_pos at;
    int nth; /* keeps the sort stable */
    const char *text;
};

struct zt_diags {
    struct zt_arena *arena;
    struct zt_diag items[ZT_DIAG_KEEP];
    int n;       /* kept */
    int n_total; /* all that were added */
    bool any_wrong, any_unsupported;
};

void zt_diag_add(struct zt_diags *d, enum zt_diag_kind kind, struct zt_pos at, const char *fmt, ...)
    ZT_PRINTF(4, 5);

/* "recipe.yaml:7:3", "--set a.b=c", or the name alone without a line. */
const char *zt_pos_text(struct zt_arena *a, struct zt_pos at);

void zt_diag_sort(struct zt_diags *d);

/*
 * Put every message, a line each, into err (at most ZT_DIAG_SHOW); returns its code, 0 without any.
 */
int zt_diag_report(struct zt_diags *d, struct zt_err *err) ZT_MUST_CHECK;

#endif
