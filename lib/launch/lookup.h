/*
 * lookup.h: a host's addresses, without waiting for them. getaddrinfo() blocks for as long as name servers do not
 * answer, so each name that is no address is looked up by a thread of its own; who gives up leaves the thread
 * behind, which ends by itself.
 */
#ifndef ZT_LAUNCH_LOOKUP_H
#define ZT_LAUNCH_LOOKUP_H

#include <netdb.h>

#include "base/err.h"

struct zt_lookup;

/*
 * family: AF_UNSPEC, AF_INET or AF_INET6. When the answer is there 1 is added to the eventfd wake_fd, which may
 * be closed before.
 */
int zt_lookup_start(const char *name, int port, int family, int wake_fd, struct zt_lookup **out,
                    struct zt_err *err) ZT_MUST_CHECK;

/*
 * ZT_OK and a list that lives as long as the lookup; ZT_EINPUT: it does not resolve, err->msg says why; 1: not
 * known yet.
 */
int zt_lookup_get(struct zt_lookup *l, const struct addrinfo **list,
                  struct zt_err *err) ZT_MUST_CHECK;

void zt_lookup_release(struct zt_lookup *l); /* accepts NULL; does not wait */

#endif
