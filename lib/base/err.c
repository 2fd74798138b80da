#include "base/err.h"

#include <errno.h>
#include <stdarg.h>

#undef zt_err_set /* what static analysis sees in their place, err.h */
#undef zt_err_errno
#undef zt_err_wrap

int zt_err_set(struct zt_err *err, enum zt_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    err->code = code;
    return code;
}

int zt_err_errno(struct zt_err *err, enum zt_code code, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->msg)
        snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", strerror(saved));
    err->code = code;
    return code;
}

int zt_err_wrap(struct zt_err *err, const char *fmt, ...)
{
    char old[ZT_ERR_MSG_BYTES];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n + 3 < sizeof err->msg) {
        char *at = err->msg + n;
        size_t room = sizeof err->msg - (size_t)n - 3, len = strnlen(old, sizeof old - 1);
        memcpy(at, ": ", 2);
        memcpy(at + 2, old, ZT_MIN(len, room));
        at[2 + ZT_MIN(len, room)] = '\0';
    }
    return err->code;
}

const char *zt_code_name(int code)
{
    static const char *const names[] = {
        "ok",           "input error",    "out of memory", "input/output error",
        "system error", "peer lost",      "not supported", "protocol error",
        "not a number", "plan not valid", "device failed", "usage error",
    };
    int i = -code;
    if (i < 0 || i >= (int)ZT_ARRAY_LEN(names))
        return "unknown error";
    return names[i];
}

void zt_assert_fail(const char *file, int line, const char *func, const char *expr, long long a,
                    long long b)
{
    fprintf(stderr, "%s:%d: %s: assertion failed: %s (%lld, %lld)\n", file, line, func, expr, a, b);
    abort();
}
