/*
 * Where rank 0 listens for other hosts: at one address, which these reach.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include "coll/tcp.h"
#include "launch/rendezvous.h"

enum { BACKLOG = 1024 };

bool zt_ip_text(const struct sockaddr_storage *a, char *buf, size_t buf_bytes, int *port)
{
    const bool v4 = a->ss_family == AF_INET;
    char number[16];
    int64_t n;
    if ((!v4 && a->ss_family != AF_INET6) ||
        getnameinfo((const struct sockaddr *)a,
                    v4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6), buf,
                    (socklen_t)buf_bytes, number, sizeof number,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0 ||
        !zt_parse_i64(number, &n))
        return false;
    *port = (int)n;
    return true;
}

static void set_port(struct sockaddr_storage *a, int port)
{
    in_port_t *at = a->ss_family == AF_INET ? &((struct sockaddr_in *)a)->sin_port
                                            : &((struct sockaddr_in6 *)a)->sin6_port;
    *at = htons((uint16_t)port);
}

static bool is_loopback(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* 0, or an errno value; EADDRNOTAVAIL: the address is not ours. */
static int listen_at(const struct sockaddr_storage *at, int *fd)
{
    const int on = 1;
    *fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0)
        return errno;
    /* Connections of an earlier job may linger there. */
    (void)setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(*fd, (const struct sockaddr *)at, sizeof *at) == 0 && listen(*fd, BACKLOG) == 0)
        return 0;
    int no = errno;
    close(*fd);
    *fd = -1;
    return no;
}

static int cannot(const struct zt_meeting *m, int no, struct zt_err *err)
{
    if (no == EADDRINUSE)
        return zt_err_set(
            err, ZT_EINPUT,
            "port %d is taken on this host, by another job or another program; choose "
            "one with MASTER_PORT, for all processes",
            m->port);
    errno = no;
    return zt_err_errno(err, ZT_ESYS, "listening on port %d", m->port);
}

/* Where the route to `towards` starts, or at an interface; the port is ours. */
static int listen_by_route(const struct zt_meeting *m, const char *interface, int *fd,
                           struct zt_err *err)
{
    struct zt_tcp_address address;
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    int rc = zt_tcp_listen(interface, m->towards, fd, &address, err);
    if (rc || m->port == 0)
        return rc;
    getsockname(*fd, (struct sockaddr *)&at, &len);
    close(*fd);
    set_port(&at, m->port);
    int no = listen_at(&at, fd);
    return no ? cannot(m, no, err) : 0;
}

/*
 * At an address that `host` stands for. A loopback one is taken only where it is written as such: what a name
 * means on its own host is no use to others.
 */
static int listen_by_name(const struct zt_meeting *m, int *fd, struct zt_err *err)
{
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM};
    const struct addrinfo literal = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *list;
    bool loopback = false;
    const bool is_name = getaddrinfo(m->host, NULL, &literal, &list) != 0;
    int no = is_name ? getaddrinfo(m->host, NULL, &want, &list) : 0;
    if (no)
        return zt_err_set(err, ZT_EINPUT, "MASTER_ADDR=%s: %s", m->host, gai_strerror(no));
    no = EADDRNOTAVAIL;
    for (const struct addrinfo *i = list; i && no == EADDRNOTAVAIL; i = i->ai_next) {
        struct sockaddr_storage at = {0};
        memcpy(&at, i->ai_addr, i->ai_addrlen);
        set_port(&at, m->port);
        if (is_name && is_loopback(&at))
            loopback = true;
        else
            no = listen_at(&at, fd);
    }
    freeaddrinfo(list);
    if (no != EADDRNOTAVAIL)
        return no ? cannot(m, no, err) : 0;
    return zt_err_set(err, ZT_EINPUT,
                      "MASTER_ADDR=%s: %s; it must be this host, where rank 0 is, by a name or "
                      "address that the others reach, or name the network interface with "
                      "ZT_TCP_INTERFACE",
                      m->host,
                      loopback ? "a loopback address here, which other hosts do not reach"
                               : "no address of this host");
}

int zt_meeting_listen(const struct zt_meeting *m, int *fd, char *address, size_t address_bytes,
                      int *port, struct zt_err *err)
{
    const char *interface = getenv("ZT_TCP_INTERFACE");
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    if (interface && !*interface)
        interface = NULL;
    int rc = interface || m->towards[0] ? listen_by_route(m, interface, fd, err)
                                        : listen_by_name(m, fd, err);
    if (rc) {
        *fd = -1;
        return rc;
    }
    if (getsockname(*fd, (struct sockaddr *)&at, &len) == 0 &&
        zt_ip_text(&at, address, address_bytes, port))
        return 0;
    close(*fd);
    *fd = -1;
    return zt_err_set(err, ZT_ESYS, "the address where rank 0 listens cannot be told");
}
