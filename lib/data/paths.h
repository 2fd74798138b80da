/*
 * paths.h: the files that data.train or data.val name.
 *
 * An entry is a file, a folder, or (when no such file exists) a pattern for glob(3); a leading "~"
 * is the home folder. Of Megatron's pairs NAME.bin and NAME.idx the first stands for both, however
 * they are named: as either, as NAME, or by a folder or pattern that holds one or both. Folders are read recursively; hidden entries, folders called "build" and
 * links to folders are left out. Order: as given; inside a folder or pattern by byte order of the
 * names.
 */
#ifndef ZT_DATA_PATHS_H
#define ZT_DATA_PATHS_H

#include "base/arena.h"
#include "base/err.h"
#include "recipe/recipe.h"

struct zt_data_path {
    const char *path;
    bool in_folder; /* found by reading a folder, not asked for by name: may be no data at all */
};

struct zt_data_paths {
    struct zt_data_path *items; /* heap; the strings are in the arena */
    size_t n, cap;
};

/* Regular files only. An entry that names nothing is ZT_EINPUT, a pattern through a folder that cannot be read ZT_EIO. Free items with free(). */
int zt_data_paths_find(const struct zt_str_list *given, struct zt_arena *arena,
                       struct zt_data_paths *out, struct zt_err *err) ZT_MUST_CHECK;

#endif
