#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

#include "coll/tcp_net.h"

enum { BACKLOG = 1024 };

socklen_t zt_tcp_sockaddr(const struct zt_tcp_address *a, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    if (a->version == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)out;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(a->port);
        memcpy(&v4->sin_addr, a->ip, sizeof v4->sin_addr);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(a->port);
    memcpy(&v6->sin6_addr, a->ip, sizeof v6->sin6_addr);
    return sizeof *v6;
}

/* False for what is no address that other hosts can use as it is. */
static bool from_sockaddr(const struct sockaddr *s, struct zt_tcp_address *a)
{
    memset(a, 0, sizeof *a);
    if (s && s->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)s;
        a->version = 4;
        a->port = ntohs(v4->sin_port);
        memcpy(a->ip, &v4->sin_addr, sizeof v4->sin_addr);
        return true;
    }
    if (s && s->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)s;
        a->version = 6;
        a->port = ntohs(v6->sin6_port);
        memcpy(a->ip, &v6->sin6_addr, sizeof v6->sin6_addr);
        return !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
    }
    return false;
}

const char *zt_tcp_address_text(const struct zt_tcp_address *a, char *buf, size_t buf_bytes)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    inet_ntop(a->version == 4 ? AF_INET : AF_INET6, a->ip, ip, sizeof ip);
    snprintf(buf, buf_bytes, a->version == 4 ? "%s:%d" : "[%s]:%d", ip, a->port);
    return buf;
}

static int of_interface(const char *name, struct zt_tcp_address *a, struct zt_err *err)
{
    struct ifaddrs *list;
    if (getifaddrs(&list))
        return zt_err_errno(err, ZT_ESYS, "the network interfaces");
    bool known = false, found = false;
    for (const struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
        if (strcmp(i->ifa_name, name) != 0)
            continue;
        known = true;
        found = from_sockaddr(i->ifa_addr, a);
    }
    freeifaddrs(list);
    if (found)
        return ZT_OK;
    return zt_err_set(err, ZT_EINPUT,
                      known ? "the network interface %s has no address that other hosts can use"
                            : "there is no network interface %s (see `ip address`)",
                      name);
}

/* Nothing is sent: connecting a datagram socket looks the route up. */
static int route_start(const struct addrinfo *to, struct zt_tcp_address *a)
{
    struct sockaddr_storage own = {0};
    socklen_t len = sizeof own;
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    bool ok = connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
              getsockname(fd, (struct sockaddr *)&own, &len) == 0 &&
              from_sockaddr((struct sockaddr *)&own, a);
    int saved = errno;
    close(fd);
    errno = saved;
    return ok ? 0 : -1;
}

static int of_route(const char *towards, struct zt_tcp_address *a, struct zt_err *err)
{
    const struct addrinfo want = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *list;
    int no = getaddrinfo(towards, "1", &want, &list);
    if (no)
        return zt_err_set(err, ZT_EINPUT,
                          "the other node %s: %s; ZT_TCP_INTERFACE can name the "
                          "network interface to use",
                          towards, gai_strerror(no));
    errno = 0;
    const struct addrinfo *to = list;
    while (to && route_start(to, a))
        to = to->ai_next;
    if (!to)
        zt_err_errno(err, ZT_EINPUT, "no route to the other node %s", towards);
    freeaddrinfo(list);
    return to ? ZT_OK : ZT_EINPUT;
}

int zt_tcp_listen(const char *interface, const char *towards, int *fd,
                  struct zt_tcp_address *address, struct zt_err *err)
{
    struct sockaddr_storage at;
    struct zt_tcp_address bound;
    char text[80];
    int rc = interface ? of_interface(interface, address, err) : of_route(towards, address, err);
    if (rc)
        return rc;
    address->port = 0;
    socklen_t len = zt_tcp_sockaddr(address, &at);
    *fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0)
        return zt_err_errno(err, ZT_ESYS, "socket");
    if (bind(*fd, (struct sockaddr *)&at, len) || listen(*fd, BACKLOG) ||
        getsockname(*fd, (struct sockaddr *)&at, &len) ||
        !from_sockaddr((struct sockaddr *)&at, &bound)) {
        zt_err_errno(err, ZT_ESYS, "listening on %s",
                     zt_tcp_address_text(address, text, sizeof text));
        close(*fd);
        return err->code;
    }
    *address = bound;
    return ZT_OK;
}
