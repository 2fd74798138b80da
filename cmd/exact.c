#include "exact.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "recipe/recipe.h"

static bool is_long(const char *given)
{
    return strncmp(given, "--", 2) == 0;
}

/* "--name" or "--name=value" with the whole of one of the names. */
static bool is_exact(const char *given, const struct option *longs)
{
    const char *name = given + 2;
    const size_t len = strcspn(name, "=");
    for (; longs->name; longs++)
        if (strlen(longs->name) == len && strncmp(name, longs->name, len) == 0)
            return true;
    return false;
}

static const char *nearest(const char *name, const struct option *longs)
{
    enum { MOST = 64 };
    const char *names[MOST];
    size_t n = 0;
    for (; longs->name && n < MOST; longs++)
        names[n++] = longs->name;
    return zt_nearest(name + strspn(name, "-"), names, n);
}

/* The key of a recipe that an option means, also with - for _. */
static const char *key_of(const char *name)
{
    char word[64];
    snprintf(word, sizeof word, "%s", name + strspn(name, "-"));
    for (char *p = word; *p; p++)
        *p = *p == '-' ? '_' : *p;
    return zt_recipe_key_named(word);
}

static int unknown(const struct cmd_optset *set, const char *name, struct zt_err *err)
{
    const char *instead = set->instead ? set->instead(name) : NULL;
    const char *near = nearest(name, set->longs);
    const char *key = is_exact("--set", set->longs) ? key_of(name) : NULL;
    if (instead)
        return zt_err_set(err, ZT_EUSAGE, "%s: %s", name, instead);
    if (key)
        return zt_err_set(err, ZT_EUSAGE, "%s: a key of the recipe; write --set %s=VALUE", name,
                          key);
    if (near)
        return zt_err_set(err, ZT_EUSAGE, "%s: no such option; did you mean --%s?", name, near);
    return zt_err_set(err, ZT_EUSAGE, "%s: no such option; see zerotrain %s --help", name,
                      set->command);
}

int cmd_getopt(const struct cmd_optset *set, int argc, char *const *argv, struct zt_err *err)
{
    char name[64];
    int rc;
    opterr = 0;
    const int what = getopt_long(argc, argv, set->in_order ? "+:h" : ":h", set->longs, NULL);
    if (what == -1)
        return what;
    const bool own_word = what != ':' && what != '?' && optarg && optarg == argv[optind - 1];
    const char *given = argv[optind - (own_word ? 2 : 1)];
    const bool exact = is_long(given) ? is_exact(given, set->longs) : what == 'h';
    if (exact && what != ':' && what != '?')
        return what;
    if (what == '?' && optopt > 0 && optopt <= CHAR_MAX && !is_long(given))
        snprintf(name, sizeof name, "-%c", optopt); /* a letter, perhaps of several in a word */
    else
        snprintf(name, sizeof name, "%.*s", (int)strcspn(given, "="), given);
    if (!exact)
        rc = unknown(set, name, err);
    else
        rc = zt_err_set(err, ZT_EUSAGE, "%s: %s", name,
                        what == ':' ? "needs a value" : "takes no value");
    return rc ? '?' : what;
}
