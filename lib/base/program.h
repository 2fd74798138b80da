/* program.h: what another program says. */
#ifndef ZT_BASE_PROGRAM_H
#define ZT_BASE_PROGRAM_H

#include "base/err.h"
#include "base/str.h"

/*
 * Run argv, NULL-terminated and found by PATH, with no input, to its end. Blocks. Both of its streams are added to *out,
 * the first MiB of them. Its wait status, or negative when it could not be run.
 */
int zt_program_output(const char *const *argv, struct zt_str *out,
                      struct zt_err *err) ZT_MUST_CHECK;

#endif
