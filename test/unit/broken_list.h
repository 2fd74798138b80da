/* broken_list.h: readdir() of this program, which fails once a folder has told so many names. One file includes it. */
#ifndef ZT_TEST_BROKEN_LIST_H
#define ZT_TEST_BROKEN_LIST_H

#include "base/compat.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>

static int list_breaks_after = -1; /* names, of all folders together; -1: never */

struct dirent *readdir(DIR *d)
{
    struct dirent *(*next)(DIR *) = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir");
    if (list_breaks_after == 0) {
        errno = EIO;
        return NULL;
    }
    list_breaks_after -= list_breaks_after > 0;
    return next(d);
}

#endif
