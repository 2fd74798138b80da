/* program.h: what another program says. */
#ifndef ZT_BASE_PROGRAM_H
#define ZT_BASE_PROGRAM_H

#include <signal.h>

#include "base/err.h"
#include "base/str.h"

/*
 * Run argv, NULL-terminated and found by PATH, with no input and no signal blocked, to its end. Blocks for limit_s at
 * most, and not when a signal of `heed` has come that is blocked here; it is left to the caller. Then the program is
 * killed. SIGCHLD is not ignored. Both of its streams are added to *out, the first MiB of them. Its wait status, or negative: it could not be
 * run, did not end in time (ZT_ESYS), or a signal came (ZT_EPEER).
 */
int zt_program_output(const char *const *argv, double limit_s, const sigset_t *heed,
                      struct zt_str *out, struct zt_err *err) ZT_MUST_CHECK;

#endif
