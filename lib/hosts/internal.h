/* internal.h: shared by the files of lib/hosts. */
#ifndef ZT_HOSTS_INTERNAL_H
#define ZT_HOSTS_INTERNAL_H

#include "hosts/hosts.h"

/* Everything that is wrong with an input, a line each; the first of them are kept, all are counted. */
struct problems {
    struct zt_str text;
    int n;
};

void zt_problem(struct problems *p, const char *fmt, ...) ZT_PRINTF(2, 3);

/* 0 without any, else ZT_EINPUT with the list. Releases p. */
int zt_problems_report(struct problems *p, struct zt_err *err) ZT_MUST_CHECK;

/* s[0..len) for a message: unprintable bytes escaped, cut where it is long. Returns buf. */
enum { ZT_QUOTED_BYTES = 200 };
const char *zt_quoted(const char *s, size_t len, char buf[ZT_QUOTED_BYTES]);

/*
 * The name or address s[0..len), in brackets or not, in its one form. NULL, or what is wrong with it, to
 * follow the name in a message.
 */
const char *zt_host_name(const char *s, size_t len, char out[ZT_HOST_NAME_BYTES]);

/* A number of digits alone, at most `most`; -1: it is none. */
int zt_digits(const char *s, size_t len, int most);

/* The host of this name (in its one form), or NULL. */
struct zt_host *zt_hosts_find(const struct zt_hosts *h, const char *name);

/* A new host, all of its slots chosen. The strings are copied; the caller has checked all limits. */
struct zt_host *zt_hosts_add(struct zt_hosts *h, const char *name, const char *user, int n_slots);

#endif
