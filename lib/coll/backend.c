#include "coll/backend.h"

#include <dlfcn.h>
#include <unistd.h>

#include "base/str.h"

#define LIBRARY "libzerotrain_cuda.so"

/* Folders below the program's where the library may lie: built, and installed. */
static const char *const places[] = {"", "../lib/zerotrain/"};

static int program_folder(struct zt_str *out, struct zt_err *err)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0)
        return zt_err_errno(err, ZT_ESYS, "/proc/self/exe");
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    if (slash)
        slash[1] = '\0';
    zt_str_puts(out, path);
    return 0;
}

static int find_library(struct zt_str *out, struct zt_err *err)
{
    const char *given = getenv("ZT_CUDA_LIB");
    struct zt_str folder = {0};
    if (given && *given) {
        zt_str_puts(out, given);
        return 0;
    }
    int rc = program_folder(&folder, err);
    for (size_t i = 0; i < ZT_ARRAY_LEN(places) && !rc; i++) {
        zt_str_reset(out);
        zt_str_printf(out, "%s%s%s", zt_str_get(&folder), places[i], LIBRARY);
        if (access(out->buf, F_OK) == 0)
            goto out;
    }
    if (!rc)
        rc = zt_err_set(err, ZT_EUNSUPPORTED,
                        "this installation has no CUDA part: " LIBRARY
                        " is neither in %s nor in %s%s; build with CUDA=1, or name one with "
                        "ZT_CUDA_LIB",
                        zt_str_get(&folder), zt_str_get(&folder), places[1]);
out:
    zt_str_release(&folder);
    return rc;
}

/* Tables are laid out by headers that both must have been compiled from. */
static int check(const char *path, const struct zt_backend *b, struct zt_err *err)
{
    if (b->abi != ZT_BACKEND_ABI || b->struct_bytes != sizeof *b)
        return zt_err_set(
            err, ZT_EUNSUPPORTED,
            "%s is of another version of zerotrain than this program (%s); build both "
            "together",
            path, ZT_BUILD);
    if (b->dev_ops_bytes != sizeof(struct zt_dev_ops) ||
        b->coll_ops_bytes != sizeof(struct zt_coll_ops) || strcmp(b->build, ZT_BUILD) != 0)
        return zt_err_set(err, ZT_EUNSUPPORTED,
                          "%s is of build %s, but this program is of %s; build both together", path,
                          b->build, ZT_BUILD);
    return 0;
}

static int open_library(const char *path, const struct zt_backend **out, struct zt_err *err)
{
    if (access(path, F_OK))
        return zt_err_set(err, ZT_EUNSUPPORTED, "%s: there is no such file (ZT_CUDA_LIB)", path);
    /* Stays: its threads and its tables live as long as the process. Opened again it is the same. */
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib) {
        const char *why = dlerror();
        return zt_err_set(err, ZT_EUNSUPPORTED, "the CUDA part cannot be loaded: %s",
                          why ? why : path);
    }
    void *symbol = dlsym(lib, "zt_backend");
    if (!symbol)
        return zt_err_set(err, ZT_EUNSUPPORTED, "%s is not a CUDA part of zerotrain", path);
    zt_backend_fn table;
    memcpy(&table, &symbol, sizeof table);
    *out = table();
    return check(path, *out, err);
}

int zt_backend_load(const struct zt_backend **out, struct zt_err *err)
{
    struct zt_str path = {0};
    int rc = find_library(&path, err);
    if (!rc)
        rc = open_library(path.buf, out, err);
    zt_str_release(&path);
    return rc;
}
