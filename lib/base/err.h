/*
 * err.h: how a function says that it failed.
 *
 * A function that can fail returns 0, or one of the negative codes below, and is ZT_MUST_CHECK. It
 * takes a `struct zt_err *` (never NULL) as its last argument and leaves there the message a person
 * reads: what is wrong, in which file, line, host, rank or op, and what to do. The message is set by
 * the code that knows; callers may put context before it with zt_err_wrap(), and only cmd/ prints it.
 * On failure outputs are unspecified unless the function says otherwise, and nothing is left to
 * release. An error object may be reused; the last failure wins.
 */
#ifndef ZT_BASE_ERR_H
#define ZT_BASE_ERR_H

#include "base/compat.h"

enum zt_code {
    ZT_OK = 0,
    ZT_EINPUT = -1,       /* the user's input is wrong: recipe, option, data file */
    ZT_ENOMEM = -2,       /* host or device memory ran out */
    ZT_EIO = -3,          /* a file or pipe failed */
    ZT_ESYS = -4,         /* another system call failed */
    ZT_EPEER = -5,        /* a peer died, or the job was aborted */
    ZT_EUNSUPPORTED = -6, /* understood, but not carried out; the message says so in words */
    ZT_EPROTO = -7,       /* the other end of a pipe does not speak our protocol */
    ZT_ENUMERIC = -8,     /* a non-finite value where training cannot go on */
    ZT_EVERIFY = -9,      /* a plan is not proven safe: our mistake, never the user's */
    ZT_EDEVICE = -10,     /* the device or its library failed */
    ZT_EUSAGE = -11,      /* options that make no sense, or not together */
};

enum { ZT_ERR_MSG_BYTES = 4096 };

struct zt_err {
    int code;
    char msg[ZT_ERR_MSG_BYTES];
};

/* Set the message and return `code`: `return zt_err_set(err, ZT_EINPUT, "...", ...);` */
int zt_err_set(struct zt_err *err, enum zt_code code, const char *fmt, ...) ZT_PRINTF(3, 4);

/* The same with ": " and strerror(errno) appended. */
int zt_err_errno(struct zt_err *err, enum zt_code code, const char *fmt, ...) ZT_PRINTF(3, 4);

/* Put "context: " before the message; returns err->code. */
int zt_err_wrap(struct zt_err *err, const char *fmt, ...) ZT_PRINTF(2, 3);

/* "input error", "out of memory", ...: a short name of a code. */
const char *zt_code_name(int code);

/*
 * An assertion about our own code, in release builds too. Prints both operands and aborts. Never
 * for input.
 */
#define ZT_ASSERT_CMP(a, op, b)                                                                    \
    do {                                                                                           \
        long long zt_a_ = (long long)(a), zt_b_ = (long long)(b);                                  \
        if (!(zt_a_ op zt_b_))                                                                     \
            zt_assert_fail(__FILE__, __LINE__, __func__, #a " " #op " " #b, zt_a_, zt_b_);         \
    } while (0)
#define ZT_ASSERT(cond) ZT_ASSERT_CMP(!!(cond), ==, 1)

ZT_NORETURN void zt_assert_fail(const char *file, int line, const char *func, const char *expr,
                                long long a, long long b);

/* Static analysis does not look into err.c; it learns here that these never return 0. */
#ifdef __clang_analyzer__
#define zt_err_not_ok(call)                                                                        \
    ({                                                                                             \
        int zt_code_ = (call);                                                                     \
        if (zt_code_ == 0)                                                                         \
            __builtin_unreachable();                                                               \
        zt_code_;                                                                                  \
    })
#define zt_err_set(...) zt_err_not_ok(zt_err_set(__VA_ARGS__))
#define zt_err_errno(...) zt_err_not_ok(zt_err_errno(__VA_ARGS__))
#define zt_err_wrap(...) zt_err_not_ok(zt_err_wrap(__VA_ARGS__))
#endif

#endif
