#include "launch/env.h"

#include <stdarg.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/io.h"

static bool name_char(char c, bool first)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

int zt_env_check(const char *entry, size_t len, struct zt_err *err)
{
    enum { SHOWN = 60 };
    int shown = (int)ZT_MIN(len, SHOWN);
    const char *eq = len ? memchr(entry, '=', len) : NULL;
    if (!eq)
        return zt_err_set(err, ZT_EINPUT, "\"%.*s\" has no '='; write NAME=value", shown, entry);
    size_t name_len = (size_t)(eq - entry);
    bool ok = name_len > 0;
    for (size_t i = 0; i < name_len; i++)
        ok = ok && name_char(entry[i], i == 0);
    if (!ok)
        return zt_err_set(err, ZT_EINPUT,
                          "\"%.*s\" is not a variable's name: letters, digits and '_'",
                          (int)ZT_MIN(name_len, SHOWN), entry);
    if (memchr(entry, '\0', len))
        return zt_err_set(err, ZT_EINPUT, "the value of %.*s has a NUL byte", (int)name_len, entry);
    return 0;
}

/* The index of the variable whose name is name[0..len), or e->n. */
static size_t find(const struct zt_env *e, const char *name, size_t len)
{
    size_t i = 0;
    while (i < e->n && (strncmp(e->v[i], name, len) != 0 || e->v[i][len] != '='))
        i++;
    return i;
}

void zt_env_set(struct zt_env *e, const char *entry, size_t len)
{
    const char *eq = memchr(entry, '=', len);
    ZT_ASSERT(eq);
    size_t i = find(e, entry, (size_t)(eq - entry));
    char *copy = zt_xcalloc(len + 1, 1);
    memcpy(copy, entry, len);
    if (i < e->n) {
        free(e->v[i]);
    } else {
        ZT_GROW(e->v, e->n + 2, e->cap);
        e->v[++e->n] = NULL;
    }
    e->v[i] = copy;
}

void zt_env_setf(struct zt_env *e, const char *fmt, ...)
{
    char entry[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(entry, sizeof entry, fmt, ap);
    va_end(ap);
    ZT_ASSERT_CMP(n, <, (int)sizeof entry);
    zt_env_set(e, entry, (size_t)n);
}

void zt_env_unset(struct zt_env *e, const char *name)
{
    size_t i = find(e, name, strlen(name));
    if (i == e->n)
        return;
    free(e->v[i]);
    e->v[i] = e->v[--e->n];
    e->v[e->n] = NULL;
}

const char *zt_env_get(const struct zt_env *e, const char *name)
{
    size_t i = find(e, name, strlen(name));
    return i < e->n ? e->v[i] + strlen(name) + 1 : NULL;
}

void zt_env_add_all(struct zt_env *e, char *const *entries)
{
    for (; *entries; entries++) {
        if (strchr(*entries, '='))
            zt_env_set(e, *entries, strlen(*entries));
    }
}

void zt_env_release(struct zt_env *e)
{
    for (size_t i = 0; i < e->n; i++)
        free(e->v[i]);
    free(e->v);
    memset(e, 0, sizeof *e);
}

/* One line, without its newline. */
static int check_line(const char *line, size_t len, struct zt_err *err)
{
    /* The value would end in a carriage return, which nobody means and nobody sees. */
    if (len && line[len - 1] == '\r')
        return zt_err_set(err, ZT_EINPUT,
                          "ends in a carriage return; save the file with Unix "
                          "line ends");
    return zt_env_check(line, len, err);
}

int zt_env_parse(const char *path, const char *text, size_t len, struct zt_env *out,
                 struct zt_err *err)
{
    struct zt_env good = {0};
    struct zt_str bad = {0};
    int number = 0;
    for (const char *p = text, *end = text + len; p < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        size_t blanks = 0;
        while (blanks < n && (p[blanks] == ' ' || p[blanks] == '\t'))
            blanks++;
        number++;
        if (blanks < n && p[blanks] != '#') {
            if (check_line(p, n, err))
                zt_str_printf(&bad, "%s%s:%d: %s", bad.len ? "\n" : "", path, number, err->msg);
            else
                zt_env_set(&good, p, n);
        }
        p += n + 1;
    }
    int rc = 0;
    if (bad.len)
        rc = zt_err_set(err, ZT_EINPUT, "%s", bad.buf);
    for (size_t i = 0; !rc && i < good.n; i++)
        zt_env_set(out, good.v[i], strlen(good.v[i]));
    zt_env_release(&good);
    zt_str_release(&bad);
    return rc;
}

int zt_env_read_file(const char *path, struct zt_env *out, struct zt_err *err)
{
    enum { FILE_MAX_BYTES = 1 << 20 };
    struct zt_str text = {0};
    int rc = zt_read_file(path, FILE_MAX_BYTES, &text, err);
    if (!rc)
        rc = zt_env_parse(path, zt_str_get(&text), text.len, out, err);
    zt_str_release(&text);
    return rc;
}

static int read_noted(const char *path, struct zt_env *out, struct zt_str *notes,
                      struct zt_err *err)
{
    int rc = zt_env_read_file(path, out, err);
    if (!rc)
        zt_str_printf(notes, "note: environment of all workers: %s\n", path);
    return rc;
}

int zt_env_read_deepspeed(struct zt_env *out, struct zt_str *notes, struct zt_err *err)
{
    static const char name[] = ".deepspeed_env";
    const char *given = getenv("DS_ENV_FILE"), *home = getenv("HOME");
    struct zt_str path = {0};
    int rc = 0;
    if (given && *given)
        return read_noted(given, out, notes, err) ? zt_err_wrap(err, "DS_ENV_FILE") : 0;
    if (home) {
        zt_str_printf(&path, "%s/%s", home, name);
        if (access(path.buf, F_OK) == 0)
            rc = read_noted(path.buf, out, notes, err);
    }
    if (!rc && access(name, F_OK) == 0)
        rc = read_noted(name, out, notes, err);
    zt_str_release(&path);
    return rc;
}

void zt_env_add_for_remote(struct zt_env *e, const struct zt_env *from)
{
    static const char *const prefixes[] = {"NCCL_",  "CUDA_",  "CUBLAS_", "OMP_", "KMP_",
                                           "GOMP_",  "MKL_",   "UCX_",    "MV2_", "ZT_",
                                           "PYTHON", "TORCH_", "DNNL_"};
    static const char *const stays[] = {
        "CUDA_VISIBLE_DEVICES=", "CUDA_MPS_", "NCCL_HOSTID=", "ZT_JOB_", "ZT_TEST_",
        "ZT_CUDA_LIB="};
    for (size_t n = 0; n < from->n; n++) {
        const char *entry = from->v[n];
        bool travels = false;
        for (size_t i = 0; i < ZT_ARRAY_LEN(prefixes); i++)
            travels |= strncmp(entry, prefixes[i], strlen(prefixes[i])) == 0;
        for (size_t i = 0; i < ZT_ARRAY_LEN(stays); i++)
            travels &= strncmp(entry, stays[i], strlen(stays[i])) != 0;
        if (travels)
            zt_env_set(e, entry, strlen(entry));
    }
}
