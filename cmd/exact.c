#include "exact.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

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

int cmd_getopt(int argc, char *const *argv, const char *shorts, const struct option *longs,
               const char **given)
{
    static char letter[] = "-x";
    const int what = getopt_long(argc, argv, shorts, longs, NULL);
    if (what == -1)
        return what;
    const bool own_word = what != ':' && what != '?' && optarg && optarg == argv[optind - 1];
    *given = argv[optind - (own_word ? 2 : 1)];
    if (what == '?' && optopt > 0 && optopt < 128) {
        letter[1] = (char)optopt;
        if (strncmp(*given, "--", 2) != 0) /* else --help=x: takes no value */
            *given = letter;
        return what;
    }
    if (strncmp(*given, "--", 2) != 0 || is_exact(*given, longs))
        return what;
    optopt = 0; /* as of a name that nobody has */
    return '?';
}
