#include "meeting.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* ---- who is in between ---- */

enum { RELAYED_MAX = 8 };

struct relay {
    int listen_fd, to_port;
    int ends[RELAYED_MAX][2]; /* who dialled us, and whom we dialled for him; -1: cut */
    bool answered[RELAYED_MAX];
    int n;
    unsigned cuts; /* bits: of these connections what follows on the first answer comes to nobody */
};

static int dial_port(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ZT_ASSERT(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

static int relay_open(struct relay *y, int to_port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    *y = (struct relay){.to_port = to_port};
    y->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ZT_ASSERT(bind(y->listen_fd, (struct sockaddr *)&at, sizeof at) == 0);
    ZT_ASSERT(listen(y->listen_fd, 8) == 0);
    ZT_ASSERT(getsockname(y->listen_fd, (struct sockaddr *)&at, &len) == 0);
    return ntohs(at.sin_port);
}

static void relay_cut(int ends[2])
{
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        ends[i] = -1;
    }
}

/* Whatever one end says, the other gets. */
static void relay_step(struct relay *y)
{
    int fd = y->n < RELAYED_MAX ? accept(y->listen_fd, NULL, NULL) : -1;
    if (fd >= 0) {
        y->ends[y->n][0] = fd;
        y->ends[y->n++][1] = dial_port(y->to_port);
    }
    for (int i = 0; i < 2 * y->n; i++) {
        char bytes[512];
        int *ends = y->ends[i / 2];
        ssize_t got = recv(ends[i % 2], bytes, sizeof bytes, MSG_DONTWAIT);
        y->answered[i / 2] |= got > 0 && i % 2 == 1;
        if (got > 0 && i % 2 == 0 && y->answered[i / 2] && y->cuts & 1U << i / 2)
            relay_cut(ends);
        else if (got > 0)
            (void)!send(ends[1 - i % 2], bytes, (size_t)got, MSG_NOSIGNAL);
        else if (got == 0)
            shutdown(ends[1 - i % 2], SHUT_WR);
    }
}

/* Until a process that joins has said its last, or something at all. */
static void relay_until(struct relay *y, int says)
{
    struct pollfd p = {.fd = says, .events = POLLIN};
    do
        relay_step(y);
    while (poll(&p, 1, 1) == 0);
}

static void relay_close(struct relay *y)
{
    for (int i = 0; i < 2 * y->n; i++)
        close(y->ends[i / 2][i % 2]);
    close(y->listen_fd);
}

/*
 * Who has said its last of the handshake does not know whether that was heard: rank 0 may have made room for others. A
 * process and an agent that are cut off then come again.
 */
TEST(who_was_cut_off_before_it_was_in_comes_again)
{
    struct zt_meeting m = job_of_hosts(2, 60);
    struct zt_rendezvous r;
    struct relay relay;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says, rc;
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    m.port = relay_open(&relay, r.port);
    const int64_t end_ns = zt_now_ns() + (int64_t)(m.limit_s * 1e9);
    relay.cuts = 1U << 0 | 1U << 2; /* the process, and once it is in, the first of its agents */
    pid_t pid = join(&m, 1, 0, &says);
    do
        relay_step(&relay);
    while ((rc = zt_rendezvous_step(&r, 1, &err)) == 0 && zt_now_ns() < end_ns);
    CHECK_OK(rc < 0 ? rc : 0, err);
    CHECK_INT(r.v[1].n_agents, ZT_PARTY_AGENTS);
    CHECK_INT(relay.n, 2 + 1 + ZT_PARTY_AGENTS);
    zt_rendezvous_leave(&r, 42);
    relay_until(&relay, says);
    CHECK_INT(end_of(pid, says, text), 42);
    relay_close(&relay);
}

/* Addresses may be translated on the way: nothing depends on them. */
TEST(who_passes_on_what_others_say_is_the_network)
{
    struct zt_meeting m = job_of_hosts(2, 60);
    struct zt_rendezvous r;
    struct relay relay;
    struct zt_err err;
    char text[SAYS_BYTES];
    int says, rc;
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    m.port = relay_open(&relay, r.port);
    pid_t pid = join(&m, 1, 0, &says);
    do
        relay_step(&relay);
    while ((rc = zt_rendezvous_step(&r, 1, &err)) == 0);
    CHECK_OK(rc < 0 ? rc : 0, err);
    CHECK(r.v[1].n_agents == ZT_PARTY_AGENTS);
    zt_rendezvous_leave(&r, 42);
    relay_until(&relay, says);
    CHECK_INT(end_of(pid, says, text), 42);
    relay_close(&relay);
}

/* ---- strangers ---- */

/*
 * Silent ones, garbage, a HELLO in the clear, or half of it, and a handshake that stops half-way: the job comes together
 * regardless.
 */
TEST(strangers_change_nothing)
{
    enum { SILENT = 80 };
    struct zt_meeting m = job_of_hosts(3, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    struct zt_hello hello;
    struct zt_tls_ctx *ctx;
    struct zt_tls *stops;
    static const char garbage[4096] = "GET / HTTP/1.1\r\n\r\n";
    int silent[SILENT], fds[4];
    pid_t pids[3];
    int says[3];
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    for (int i = 0; i < SILENT; i++) /* more than there are places */
        silent[i] = dial_port(r.port);
    for (int i = 0; i < 4; i++)
        fds[i] = dial_port(r.port);
    zt_meeting_hello(&m, 1, ZT_PARTY_PROCESS, &hello);
    CHECK(send(fds[0], garbage, sizeof garbage, MSG_NOSIGNAL) > 0);
    CHECK(send(fds[1], &hello, 20, MSG_NOSIGNAL) == 20);
    CHECK(send(fds[2], &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello);
    fcntl(fds[3], F_SETFL, O_NONBLOCK);
    CHECK_OK(zt_tls_ctx_create(m.secret, NULL, NULL, &ctx, &err), err);
    CHECK_OK(zt_tls_dial(ctx, fds[3], &hello, sizeof hello, &stops, &err), err);
    CHECK_INT(zt_tls_handshake(stops), ZT_TLS_GOING_ON);
    pids[1] = join(&m, 1, 1, &says[1]);
    pids[2] = join(&m, 2, 0, &says[2]);
    check_all_leave(&m, &r, pids, says);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    zt_tls_free(stops);
    zt_tls_ctx_free(ctx);
}

/* From 127.0.0.`host`. It says the first byte of a handshake, for who says nothing may not be seen at all. */
static int stranger_from(int host, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + (unsigned)host)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ZT_ASSERT(bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    at.sin_port = htons((uint16_t)port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ZT_ASSERT(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    ZT_ASSERT(send(fd, "\x16", 1, MSG_NOSIGNAL) == 1);
    return fd;
}

static bool is_closed(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

/* A crowd from one address, the oldest first; and one of another address before it. Nobody has to go for nobody. */
TEST(places_are_taken_from_a_crowd)
{
    enum { CROWD = ZT_STRANGERS_MAX - 1, MORE = 4, WAIT_MS = 700, TOO_SLOW_MS = 4500 };
    struct zt_meeting m = job_of_hosts(2, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    int crowd[CROWD + MORE];
    const int64_t begin_ns = zt_now_ns();
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    int alone = stranger_from(1, r.port);
    while (r.n_shakes < 1)
        CHECK_INT(zt_rendezvous_step(&r, 10, &err), 0);
    for (int i = 0; i < CROWD; i++)
        crowd[i] = stranger_from(2, r.port);
    while (r.n_shakes < ZT_STRANGERS_MAX)
        CHECK_INT(zt_rendezvous_step(&r, 10, &err), 0);
    poll(NULL, 0, WAIT_MS);
    CHECK_INT(zt_rendezvous_step(&r, 10, &err), 0);
    const int n_before = r.n_shakes;
    for (int i = CROWD; i < CROWD + MORE; i++)
        crowd[i] = stranger_from(2, r.port);
    while (!is_closed(crowd[MORE - 1]))
        CHECK_INT(zt_rendezvous_step(&r, 10, &err), 0);
    if (zt_now_ns() - begin_ns > TOO_SLOW_MS * (int64_t)1000000)
        SKIP("this machine is too slow for it now");
    CHECK_INT(n_before, ZT_STRANGERS_MAX);
    CHECK(!is_closed(alone));
    CHECK(!is_closed(crowd[CROWD + MORE - 1]));
    CHECK_INT(r.n_shakes, ZT_STRANGERS_MAX);
    zt_rendezvous_leave(&r, 1);
    close(alone);
    for (int i = 0; i < CROWD + MORE; i++)
        close(crowd[i]);
}

/* A byte at a time, he would have his place for ever. */
TEST(a_stranger_who_never_comes_to_an_end)
{
    enum { BYTE_MS = 20, TOO_LONG_S = 60 };
    static const char hello[] = "\x16\x03\x01\x10\x00\x01\x00\x0f\xfc\x03\x03"; /* of 4 KB */
    struct zt_meeting m = job_of_hosts(2, 60);
    struct zt_rendezvous r;
    struct zt_err err;
    CHECK_OK(open_for_hosts(&m, &r, &err), err);
    int fd = stranger_from(1, r.port);
    int64_t end_ns = zt_now_ns() + TOO_LONG_S * (int64_t)1000000000;
    for (size_t i = 1; !is_closed(fd) && zt_now_ns() < end_ns; i++) {
        (void)!send(fd, i < sizeof hello ? &hello[i] : hello, 1, MSG_NOSIGNAL);
        CHECK_INT(zt_rendezvous_step(&r, BYTE_MS, &err), 0);
        poll(NULL, 0, BYTE_MS);
    }
    CHECK(is_closed(fd));
    zt_rendezvous_leave(&r, 1);
    close(fd);
}

int main(int argc, char **argv)
{
    return meeting_main(argc, argv);
}
