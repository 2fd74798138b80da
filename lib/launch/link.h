/*
 * link.h: frames over a pair of descriptors, or over TLS (tls.h), without blocking. Front end and agent each
 * hold one for the other, the agent one more for every worker of ours.
 *
 * Silence is counted only while this process runs: each tick adds the time since the last one, at
 * most a second. So a process that was frozen for an hour (Ctrl-Z, a suspended laptop) does not find
 * its peer "silent" the moment it thaws.
 */
#ifndef ZT_LAUNCH_LINK_H
#define ZT_LAUNCH_LINK_H

#include <time.h>

#include "launch/proto.h"
#include "launch/tls.h"

enum {
    ZT_LINK_CHUNK = 64 << 10,  /* bytes read at once */
    ZT_LINK_FULL = 1 << 20,    /* backlog at which nothing more should be queued */
    ZT_BEAT_MS = 1000,         /* a heartbeat this often, when nothing else is sent */
    ZT_SILENCE_MS = 15 * 1000, /* a peer silent for longer is dead */
    ZT_POLL_MS = 250,          /* the longest that a poll loop sleeps */
};

/* Zero-initialised is a link that was never opened; its descriptors must not be used. */
struct zt_link {
    bool open;
    int rfd, wfd;       /* the same for a socket; -1 once that direction has ended */
    struct zt_tls *tls; /* over that socket; NULL: plain */
    int error;          /* errno with which reading has ended */
    struct zt_frame_reader in;
    struct zt_str out; /* frames to send: append with zt_frame_*() */
    size_t sent;       /* bytes at the front of `out` that are gone */
    int64_t ticked_ns, silent_ns, beat_ns;
};

/* Takes the descriptors, makes them non-blocking, and queues the marker and a HELLO. */
int zt_link_open(struct zt_link *l, int rfd, int wfd, struct zt_err *err) ZT_MUST_CHECK;

/* Over a connection, which is the link's from now on, or closed on failure. */
int zt_link_open_conn(struct zt_link *l, struct zt_conn *c, struct zt_err *err) ZT_MUST_CHECK;

void zt_link_close(struct zt_link *l); /* closes the descriptors; accepts a zeroed link */

/* Read once. 1: bytes came; 0: none now; ZT_EPEER: the other end is gone (rfd is closed). */
int zt_link_read(struct zt_link *l);

/* After ZT_EPEER, for messages: "", or "; " and more than that the other end is gone. */
const char *zt_link_end(const struct zt_link *l);

/* Send what can be sent. When the other end is gone the queue is dropped and wfd closed. */
void zt_link_flush(struct zt_link *l);

/* Count silence, and queue a heartbeat when it is time and nothing else is waiting. */
void zt_link_tick(struct zt_link *l, int64_t now_ns);

/*
 * Whether who listens at the other end of a Unix socket, or connects, runs as our user, as the kernel tells. In a user
 * namespace all users that it does not map have one number between them, 65534 (/proc/sys/kernel/overflowuid): where
 * that may be the reason, nobody with this number is the same, not even another process of ours.
 */
bool zt_is_same_user(int fd);

/* The wall clock, since 1970; CLOCK frames carry it. */
static inline int64_t zt_wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline size_t zt_link_backlog(const struct zt_link *l)
{
    return l->out.len - l->sent;
}

#endif
