#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "launch/link.h"

/* ---- two ends, and what goes between them ---- */

enum { SEEN_BYTES = 1 << 16, DIALS = 0, LISTENS = 1 };

/* What one end has sent: bytes from at on have not been passed on yet. */
struct way {
    uint8_t seen[SEEN_BYTES];
    size_t n, at;
};

struct pair {
    struct zt_tls_ctx *ctx[2];
    struct zt_tls *tls[2];
    int fds[2];    /* of the ends */
    int middle[2]; /* the others' ends of these; -1: the ends are connected to each other */
    struct way from[2];
};

static const char the_name[] = "rank 1 of 2";

static bool knows_the_name(void *arg, const void *name, size_t bytes)
{
    (void)arg;
    return bytes == sizeof the_name && memcmp(name, the_name, bytes) == 0;
}

static void make_sockets(int fds[2])
{
    ZT_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
}

static void pair_open(struct pair *p, bool with_middle, uint8_t their_secret, const char *name)
{
    struct zt_err err;
    uint8_t secret[ZT_TLS_SECRET_BYTES] = {7, 7};
    memset(p, 0, sizeof *p);
    p->middle[0] = p->middle[1] = -1;
    if (with_middle) {
        int a[2], b[2];
        make_sockets(a);
        make_sockets(b);
        memcpy(p->fds, (int[]){a[0], b[0]}, sizeof p->fds);
        memcpy(p->middle, (int[]){a[1], b[1]}, sizeof p->middle);
    } else {
        make_sockets(p->fds);
    }
    ZT_ASSERT(zt_tls_ctx_create(secret, NULL, NULL, &p->ctx[DIALS], &err) == 0);
    secret[31] = their_secret;
    ZT_ASSERT(zt_tls_ctx_create(secret, knows_the_name, NULL, &p->ctx[LISTENS], &err) == 0);
    ZT_ASSERT(zt_tls_dial(p->ctx[DIALS], p->fds[DIALS], name, sizeof the_name, &p->tls[DIALS],
                          &err) == 0);
    ZT_ASSERT(zt_tls_accept(p->ctx[LISTENS], p->fds[LISTENS], &p->tls[LISTENS], &err) == 0);
}

static void pair_close(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        zt_tls_free(p->tls[i]);
        zt_tls_ctx_free(p->ctx[i]);
        close(p->fds[i]);
        if (p->middle[i] >= 0)
            close(p->middle[i]);
    }
}

static void read_way(struct pair *p, int who)
{
    struct way *w = &p->from[who];
    ssize_t n = recv(p->middle[who], w->seen + w->n, sizeof w->seen - w->n, 0);
    w->n += n > 0 ? (size_t)n : 0;
}

static void pass_on(struct pair *p, int who)
{
    struct way *w = &p->from[who];
    read_way(p, who);
    if (w->n > w->at)
        ZT_ASSERT(send(p->middle[1 - who], w->seen + w->at, w->n - w->at, MSG_NOSIGNAL) ==
                  (ssize_t)(w->n - w->at));
    w->at = w->n;
}

/* Until neither gets any further. */
static void shake_hands(struct pair *p, enum zt_tls_state state[2])
{
    state[0] = state[1] = ZT_TLS_GOING_ON;
    for (int i = 0; i < 20; i++) {
        int who = i % 2;
        if (state[who] == ZT_TLS_GOING_ON)
            state[who] = zt_tls_handshake(p->tls[who]);
        if (p->middle[0] >= 0)
            pass_on(p, who);
    }
}

static void pair_prove(struct pair *p, bool with_middle)
{
    enum zt_tls_state state[2];
    pair_open(p, with_middle, 0, the_name);
    shake_hands(p, state);
    CHECK_INT(state[DIALS], ZT_TLS_PROVEN);
    CHECK_INT(state[LISTENS], ZT_TLS_PROVEN);
}

static bool has(const struct way *w, const char *text)
{
    return memmem(w->seen, w->n, text, strlen(text)) != NULL;
}

/* ---- the handshake ---- */

TEST(both_ends_prove_the_secret)
{
    static struct pair p;
    char buf[64];
    size_t bytes;
    pair_prove(&p, true);
    RETURN_IF_FAILED();
    CHECK_STR((const char *)zt_tls_name(p.tls[LISTENS], &bytes), the_name);
    CHECK_INT(bytes, sizeof the_name);
    CHECK(has(&p.from[DIALS], the_name)); /* in the clear: what is looked at is what goes over */
    for (int who = 0; who < 2; who++) {
        CHECK_INT(zt_tls_read(p.tls[1 - who], buf, sizeof buf), -1);
        CHECK_INT(errno, EAGAIN);
        CHECK_INT(zt_tls_write(p.tls[who], "an API token", 12), 12);
        pass_on(&p, who);
        CHECK_INT(zt_tls_read(p.tls[1 - who], buf, sizeof buf), 12);
        CHECK(memcmp(buf, "an API token", 12) == 0 && !has(&p.from[who], "API"));
    }
    shutdown(p.middle[DIALS], SHUT_WR);
    CHECK_INT(zt_tls_read(p.tls[DIALS], buf, sizeof buf), 0);
    pair_close(&p);
}

TEST(another_secret)
{
    static struct pair p;
    enum zt_tls_state state[2];
    pair_open(&p, false, 1, the_name);
    shake_hands(&p, state);
    CHECK_INT(state[DIALS], ZT_TLS_OTHER_SECRET);
    CHECK_INT(state[LISTENS], ZT_TLS_OTHER_SECRET);
    pair_close(&p);
}

TEST(another_name)
{
    static struct pair p;
    enum zt_tls_state state[2];
    pair_open(&p, false, 0, "rank 1 of 3");
    shake_hands(&p, state);
    CHECK_INT(state[DIALS], ZT_TLS_FAILED);
    CHECK_INT(state[LISTENS], ZT_TLS_FAILED);
    pair_close(&p);
}

TEST(garbage_and_other_programs)
{
    static const char records[][8] = {"\x16\x03\x01\xff\xff\x01\x02",
                                      "\x15\x03\x03\x00\x02\x02\x50"};
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", 18},
        {"SSH-2.0-OpenSSH_9.2\r\n", 21},
        {"ztjoin2\nxxxxxxxxxxxxxxxxxxxx", 28},
        {records[0], 7}, /* a handshake that is longer than a record may be */
        {records[1], 7}, /* an alert */
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++)
        for (int who = 0; who < 2; who++) {
            static struct pair p;
            pair_open(&p, true, 0, the_name);
            if (who == DIALS)
                CHECK_INT(zt_tls_handshake(p.tls[who]), ZT_TLS_GOING_ON);
            CHECK_INT(send(p.middle[who], cases[i].bytes, cases[i].n, 0), cases[i].n);
            CHECK_INT(zt_tls_handshake(p.tls[who]), ZT_TLS_FAILED);
            pair_close(&p);
        }
}

/* Somebody who goes on and on, in bytes that look like a handshake. */
TEST(a_handshake_is_short)
{
    static struct pair p;
    uint8_t record[5 + 4096] = {0x16, 3,    1,    0x10, 0x00,
                                0x01, 0x01, 0x00, 0x00}; /* of 64 KB in all */
    enum zt_tls_state state = ZT_TLS_GOING_ON;
    size_t sent = 0;
    pair_open(&p, true, 0, the_name);
    while (state == ZT_TLS_GOING_ON && sent < 60000) {
        ZT_ASSERT(write(p.middle[LISTENS], record, sizeof record) == sizeof record);
        sent += sizeof record;
        memset(record + 5, 0, 4);
        state = zt_tls_handshake(p.tls[LISTENS]);
    }
    int left = 0;
    CHECK_INT(state, ZT_TLS_FAILED);
    CHECK_INT(ioctl(p.fds[LISTENS], FIONREAD, &left), 0);
    CHECK_INT(sent - (size_t)left, 16 << 10);
    pair_close(&p);
}

/* The connection ends, or stalls, after every number of bytes that one of them says. */
TEST(a_handshake_that_is_cut)
{
    static struct pair whole, p;
    pair_prove(&whole, true);
    for (size_t cut = 0; cut < whole.from[DIALS].n; cut += cut < 16 ? 1 : 7) {
        pair_open(&p, true, 0, the_name);
        CHECK_INT(zt_tls_handshake(p.tls[DIALS]), ZT_TLS_GOING_ON);
        read_way(&p, DIALS);
        size_t n = ZT_MIN(cut, p.from[DIALS].n);
        CHECK_INT(send(p.middle[LISTENS], p.from[DIALS].seen, n, 0), n);
        CHECK_INT(zt_tls_handshake(p.tls[LISTENS]), ZT_TLS_GOING_ON);
        shutdown(p.middle[LISTENS], SHUT_WR);
        CHECK_INT(zt_tls_handshake(p.tls[LISTENS]), ZT_TLS_FAILED);
        pair_close(&p);
    }
    for (size_t cut = 0; cut < whole.from[LISTENS].n; cut += cut < 16 ? 1 : 7) {
        pair_open(&p, true, 0, the_name);
        CHECK_INT(zt_tls_handshake(p.tls[DIALS]), ZT_TLS_GOING_ON);
        pass_on(&p, DIALS);
        CHECK_INT(zt_tls_handshake(p.tls[LISTENS]), ZT_TLS_GOING_ON);
        read_way(&p, LISTENS);
        size_t n = ZT_MIN(cut, p.from[LISTENS].n - 1);
        CHECK_INT(send(p.middle[DIALS], p.from[LISTENS].seen, n, 0), n);
        shutdown(p.middle[DIALS], SHUT_WR);
        CHECK_INT(zt_tls_handshake(p.tls[DIALS]), ZT_TLS_FAILED);
        pair_close(&p);
    }
    pair_close(&whole);
}

/* All that the end that dialled has said, once more, to a listener with the same secret. */
TEST(a_recorded_conversation_proves_nothing)
{
    static struct pair recorded, p;
    char buf[64];
    pair_prove(&recorded, true);
    CHECK_INT(zt_tls_write(recorded.tls[DIALS], "hello", 5), 5);
    pass_on(&recorded, DIALS);
    CHECK_INT(zt_tls_read(recorded.tls[LISTENS], buf, sizeof buf), 5);
    RETURN_IF_FAILED();

    enum zt_tls_state state = ZT_TLS_GOING_ON;
    pair_open(&p, true, 0, the_name);
    const struct way *w = &recorded.from[DIALS];
    CHECK_INT(send(p.middle[LISTENS], w->seen, w->n, 0), w->n);
    for (int i = 0; i < 4 && state == ZT_TLS_GOING_ON; i++)
        state = zt_tls_handshake(p.tls[LISTENS]);
    CHECK(state == ZT_TLS_OTHER_SECRET || state == ZT_TLS_FAILED);
    pair_close(&p);
    pair_close(&recorded);
}

/* One bit of the handshake, wherever it is: at least one end does not go on. */
TEST(a_handshake_that_is_changed)
{
    static struct pair whole, p;
    pair_prove(&whole, true);
    for (int who = 0; who < 2; who++)
        for (size_t at = 0; at < whole.from[who].n; at++) {
            enum zt_tls_state state[2] = {ZT_TLS_GOING_ON, ZT_TLS_GOING_ON};
            size_t done[2] = {0};
            pair_open(&p, true, 0, the_name);
            for (int i = 0; i < 8; i++) {
                const int w = i % 2;
                if (state[w] == ZT_TLS_GOING_ON)
                    state[w] = zt_tls_handshake(p.tls[w]);
                read_way(&p, w);
                if (w == who && at >= done[w] && at < p.from[w].n)
                    p.from[w].seen[at] ^= 0x10;
                done[w] = p.from[w].n;
                pass_on(&p, w);
            }
            if (state[DIALS] == ZT_TLS_PROVEN && state[LISTENS] == ZT_TLS_PROVEN) {
                /* A field that TLS 1.3 does not look at, such as a record's version: no more than that. */
                char buf[16];
                CHECK_INT(zt_tls_write(p.tls[DIALS], "x", 1), 1);
                pass_on(&p, DIALS);
                CHECK_INT(zt_tls_read(p.tls[LISTENS], buf, sizeof buf), 1);
            }
            pair_close(&p);
        }
    pair_close(&whole);
}

/* Of what the listener says the first record is in the clear; what follows could only be read with the key. */
TEST(who_changes_what_is_encrypted_has_another_secret)
{
    static struct pair p;
    pair_open(&p, true, 0, the_name);
    CHECK_INT(zt_tls_handshake(p.tls[DIALS]), ZT_TLS_GOING_ON);
    pass_on(&p, DIALS);
    CHECK_INT(zt_tls_handshake(p.tls[LISTENS]), ZT_TLS_GOING_ON);
    read_way(&p, LISTENS);
    struct way *w = &p.from[LISTENS];
    w->seen[w->n - 1] ^= 1;
    pass_on(&p, LISTENS);
    CHECK_INT(zt_tls_handshake(p.tls[DIALS]), ZT_TLS_OTHER_SECRET);
    pass_on(&p, DIALS);
    CHECK_INT(zt_tls_handshake(p.tls[LISTENS]), ZT_TLS_OTHER_SECRET); /* as it is told */
    pair_close(&p);
}

/* ---- afterwards ---- */

static void link_open(struct pair *p, struct zt_link l[2])
{
    struct zt_err err;
    for (int who = 0; who < 2; who++) {
        struct zt_conn c = {.fd = p->fds[who], .tls = p->tls[who]};
        ZT_ASSERT(zt_link_open_conn(&l[who], &c, &err) == 0);
        p->tls[who] = NULL;
        p->fds[who] = -1;
    }
}

static void links_close(struct pair *p, struct zt_link l[2])
{
    zt_link_close(&l[0]);
    zt_link_close(&l[1]);
    pair_close(p);
}

TEST(a_byte_that_is_changed_ends_the_link)
{
    enum { CHANGED, REPEATED, LEFT_OUT, PUT_IN, N_WAYS };
    for (int what = 0; what < N_WAYS; what++) {
        static struct pair p;
        struct zt_link l[2];
        pair_prove(&p, true);
        link_open(&p, l);
        zt_link_flush(&l[DIALS]);
        pass_on(&p, DIALS);
        CHECK_INT(zt_link_read(&l[LISTENS]), 1);
        zt_frame_put(&l[DIALS].out, ZT_FRAME_BEAT, NULL, 0);
        zt_link_flush(&l[DIALS]);
        struct way *w = &p.from[DIALS];
        const size_t before = w->n;
        read_way(&p, DIALS);
        if (what == CHANGED) {
            w->seen[before + 9] ^= 1;
        } else if (what == REPEATED) {
            memcpy(w->seen + w->n, w->seen + before, w->n - before);
            w->n += w->n - before;
        } else if (what == LEFT_OUT) {
            w->n = before;
            zt_frame_put(&l[DIALS].out, ZT_FRAME_BEAT, NULL, 0);
            zt_link_flush(&l[DIALS]);
        } else {
            memcpy(w->seen + w->n,
                   "\x17\x03\x03\x00\x15"
                   "a record of somebody's",
                   26);
            w->n += 26;
        }
        pass_on(&p, DIALS);
        int rc;
        while ((rc = zt_link_read(&l[LISTENS])) == 1)
            ;
        CHECK_INT(rc, ZT_EPEER);
        if (!strstr(zt_link_end(&l[LISTENS]), "changed or put in on the way"))
            FAIL("way %d: \"%s\"", what, zt_link_end(&l[LISTENS]));
        pass_on(&p, LISTENS); /* the other end is told */
        while ((rc = zt_link_read(&l[DIALS])) == 1)
            ;
        CHECK_INT(rc, ZT_EPEER);
        CHECK(strstr(zt_link_end(&l[DIALS]), "changed or put in on the way"));
        links_close(&p, l);
    }
}

TEST(an_end_is_not_a_change)
{
    static struct pair p;
    struct zt_link l[2];
    int rc;
    pair_prove(&p, false);
    link_open(&p, l);
    zt_link_flush(&l[DIALS]);
    zt_link_close(&l[DIALS]);
    while ((rc = zt_link_read(&l[LISTENS])) == 1)
        ;
    CHECK_INT(rc, ZT_EPEER);
    CHECK_STR(zt_link_end(&l[LISTENS]), "");
    zt_link_flush(&l[LISTENS]); /* to nobody: no signal, and nothing is kept */
    CHECK(zt_link_backlog(&l[LISTENS]) == 0);
    links_close(&p, l);
}

/* Frames of many megabytes both ways at once, through sockets that hold little; the order of polls must not matter. */
TEST(big_frames_both_ways)
{
    enum { FRAMES = 6, BYTES = 5 << 20 };
    static struct pair p;
    struct zt_link l[2];
    struct zt_err err;
    int got[2] = {0};
    const int small = 4096;
    uint8_t *bytes = zt_xcalloc(BYTES, 1);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    pair_prove(&p, false);
    link_open(&p, l);
    for (int who = 0; who < 2; who++) {
        setsockopt(l[who].wfd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        for (int i = 0; i < FRAMES; i++)
            zt_frame_put(&l[who].out, ZT_FRAME_ENV, bytes, (size_t)(BYTES - i));
    }
    while (got[0] < FRAMES || got[1] < FRAMES) {
        struct pollfd q[2];
        for (int who = 0; who < 2; who++)
            q[who] = (struct pollfd){
                .fd = l[who].rfd,
                .events = (short)(POLLIN | (zt_link_backlog(&l[who]) ? POLLOUT : 0))};
        ZT_ASSERT(poll(q, 2, 60000) > 0); /* if bytes stay in a buffer that poll() does not see */
        for (int who = 0; who < 2; who++) {
            struct zt_frame f;
            if (q[who].revents & POLLOUT)
                zt_link_flush(&l[who]);
            if (q[who].revents & POLLIN)
                CHECK(zt_link_read(&l[who]) >= 0); /* 0: half a record */
            while (zt_frame_next(&l[who].in, &f, &err) > 0) {
                if (f.type == ZT_FRAME_HELLO)
                    continue;
                CHECK_INT(f.len, BYTES - got[who]);
                CHECK(memcmp(f.data, bytes, f.len) == 0);
                got[who]++;
            }
        }
        RETURN_IF_FAILED();
    }
    free(bytes);
    links_close(&p, l);
}

enum {
    RECORD_BYTES = 5 + 4 + 1 + 16,
    KEY_UPDATE_BYTES = 5 + 5 + 1 + 16
}; /* 4 bytes of data; RFC 8446, 5.2, 4.6.3 */

TEST(keys_are_renewed)
{
    enum { RECORDS = 60, EACH = 7 };
    static struct pair p;
    char buf[16];
    int sent[2] = {0};
    pair_prove(&p, true);
    for (int who = 0; who < 2; who++)
        zt_tls_renew_after(p.tls[who], EACH);
    for (int i = 0; i < RECORDS; i++) {
        const int who = i % 3 == 0;
        const size_t before = p.from[who].n;
        CHECK_INT(zt_tls_write(p.tls[who], &i, sizeof i), sizeof i);
        pass_on(&p, who);
        CHECK_INT(p.from[who].n - before,
                  RECORD_BYTES + (++sent[who] % EACH == 0 ? KEY_UPDATE_BYTES : 0));
        CHECK_INT(zt_tls_read(p.tls[1 - who], buf, sizeof buf), sizeof i);
        CHECK(memcmp(buf, &i, sizeof i) == 0);
        CHECK_INT(zt_tls_read(p.tls[1 - who], buf, sizeof buf), -1);
        CHECK_INT(errno, EAGAIN);
        RETURN_IF_FAILED();
    }
    pair_close(&p);
}

/* Records until the other end, which does not read, has no room for one more; the key is for so many. */
static int fill(struct pair *p, uint32_t renew_after)
{
    const int small = 8192;
    int n = 0;
    pair_prove(p, false);
    setsockopt(p->fds[DIALS], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    zt_tls_renew_after(p->tls[DIALS], renew_after);
    while (zt_tls_write(p->tls[DIALS], "xxxx", 4) == 4)
        n++;
    ZT_ASSERT(errno == EAGAIN);
    return n;
}

/* A key that is due while nothing can be sent keeps nobody from reading. */
TEST(a_key_that_is_due_where_there_is_no_room)
{
    static struct pair p;
    char buf[16];
    const int room = fill(&p, UINT32_MAX);
    pair_close(&p);
    CHECK(room > 2);
    for (int due = room; due > 0 && due > room - 2; due--) {
        int got = 0;
        ssize_t n;
        CHECK_INT(fill(&p, (uint32_t)due), room);
        CHECK_INT(zt_tls_write(p.tls[LISTENS], "beat", 4), 4);
        CHECK_INT(zt_tls_read(p.tls[DIALS], buf, sizeof buf), 4);
        /* The other end reads again; the key follows. */
        while ((n = zt_tls_read(p.tls[LISTENS], buf, sizeof buf)) == 4)
            got++;
        CHECK_INT(got, room);
        for (int i = 0; i < 3; i++) {
            CHECK_INT(zt_tls_write(p.tls[DIALS], "xxxx", 4), 4);
            CHECK_INT(zt_tls_read(p.tls[LISTENS], buf, sizeof buf), 4);
        }
        RETURN_IF_FAILED();
        pair_close(&p);
    }
}

TEST_MAIN()
