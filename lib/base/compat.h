/*
 * compat.h: included first by every source file. Attributes, compile-time checks, and the
 * functions that nobody may call.
 */
#ifndef ZT_BASE_COMPAT_H
#define ZT_BASE_COMPAT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZT_MUST_CHECK __attribute__((warn_unused_result))
#define ZT_PRINTF(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))
#define ZT_NORETURN __attribute__((noreturn))
#define ZT_UNUSED __attribute__((unused))

#define ZT_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define ZT_MIN(a, b) ((a) < (b) ? (a) : (b))
#define ZT_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Of inline functions that kernels of a device call too. */
#ifdef __CUDACC__
#define ZT_HOST_DEVICE __host__ __device__
#else
#define ZT_HOST_DEVICE
#endif

/* Unbounded, locale-dependent or silently wrapping: there is a checked helper for each. */
#if defined(__GNUC__) && !defined(__cplusplus)
#pragma GCC poison strcpy strcat strncpy strncat sprintf vsprintf gets atoi atol atof strtok
#endif

#endif
