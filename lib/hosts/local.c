/*
 * local.c: is a host this machine?
 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <strings.h>
#include <unistd.h>

#include "internal.h"

/* Our own name, or the first part of it; "node1" is "node1.example.org" there, not "node1.example.com". */
static bool is_our_name(const char *name)
{
    char ours[ZT_HOST_NAME_BYTES] = "";
    if (gethostname(ours, sizeof ours - 1))
        return false;
    size_t short_len = strcspn(ours, ".");
    return strcasecmp(name, ours) == 0 || (!strchr(name, '.') && strlen(name) == short_len &&
                                           strncasecmp(name, ours, short_len) == 0);
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (!a || a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static bool is_our_address(const struct ifaddrs *ours, const struct sockaddr *a)
{
    bool found = is_loopback(a);
    for (; ours && !found; ours = ours->ifa_next)
        found = same_address(ours->ifa_addr, a);
    return found;
}

bool zt_host_is_local(const char *name)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    struct ifaddrs *ours = NULL;
    bool local = false;
    if (strcasecmp(name, "localhost") == 0 || is_our_name(name))
        return true;
    if (getaddrinfo(name, NULL, &hints, &found) || getifaddrs(&ours))
        goto out;
    for (const struct addrinfo *a = found; a && !local; a = a->ai_next)
        local = is_our_address(ours, a->ai_addr);
out:
    if (found)
        freeaddrinfo(found);
    if (ours)
        freeifaddrs(ours);
    return local;
}
