/*
 * proto.h: the frames that front end, agent and workers exchange. Pure bytes, no descriptors: link.h
 * moves them.
 *
 * A stream is any bytes (a login shell's banner), then ZT_PROTO_MARKER once, then frames. A frame is a
 * 16-byte header and a payload, all integers little endian:
 *
 *     offset 0 magic u32 "ZTF1"   4 version u16   6 type u16   8 flags u32 (0)   12 length u32
 *
 * The version is in every header, so two programs that differ find out at their first frame. A length
 * above ZT_FRAME_MAX, an unknown magic or flags that we do not know end the stream: after them no
 * byte can be trusted.
 */
#ifndef ZT_LAUNCH_PROTO_H
#define ZT_LAUNCH_PROTO_H

#include "base/err.h"
#include "base/str.h"

#define ZT_PROTO_MARKER "\n\002zerotrain\003\n"

enum {
    ZT_PROTO_VERSION = 8,
    ZT_FRAME_HEADER = 16,
    ZT_FRAME_MAX = 16 << 20,      /* bytes of a payload */
    ZT_PROTO_NOISE_MAX = 1 << 20, /* bytes skipped before the marker; more is a wrong program */
    ZT_PROTO_NOISE_KEPT = 256,
};

/* Payloads are written and read beside each other in front_frames.c, agent*.c and worker.c. */
enum zt_frame_type {
    ZT_FRAME_HELLO = 1, /* both ways, first: blob host, blob zt_build_name() */
    ZT_FRAME_BEAT = 2,  /* both ways: nothing */
    ZT_FRAME_ENV = 3,   /* to the agent: "NAME=value" */
    ZT_FRAME_JOB = 4,   /* to the agent: start these workers */
    ZT_FRAME_STOP = 5,  /* to the agent: u32 enum zt_stop; to a worker: finish this step and end */
    ZT_FRAME_PAUSE = 6, /* to the agent: the front end is about to be suspended (Ctrl-Z) */
    ZT_FRAME_RESUME = 7,
    ZT_FRAME_TASK = 8, /* to a worker: its rank, descriptors, recipe */
    /*
     * Worker to agent: secret bytes; agent to front end: u32 rank, those; when all ranks have given theirs, down to
     * all workers: a blob of each rank.
     */
    ZT_FRAME_GATHER = 9,
    ZT_FRAME_CLOCK = 10,  /* to the agent: nothing; back at once: u32 s since 1970, u32 ns */
    ZT_FRAME_START = 11,  /* to a process that has joined (rendezvous.h): start the agents; nonce */
    ZT_FRAME_LEAVE = 12,  /* the same: u32 exit code to leave with */
    ZT_FRAME_HOLD = 13,   /* to the agent: u32: 1: take nothing more from workers; 0: go on */
    ZT_FRAME_LOG = 16,    /* to the front end: u32 rank, u32 zt_log_stream, the line */
    ZT_FRAME_REPORT = 17, /* worker to agent: text; agent to front end: u32 rank, text */
    ZT_FRAME_NOTICE = 18, /* to the front end: text for a person */
    ZT_FRAME_EXIT = 19,   /* to the front end: one worker's death (blame.h) */
    /* To the front end: the job could not start; or to who joins: not wanted: i32 code, text. */
    ZT_FRAME_FAIL = 20,
    ZT_FRAME_END = 21,    /* to the front end: nothing runs: u32 signal that ended the agent */
    ZT_FRAME_PARTY = 22,  /* from a process that joins: who it is (rendezvous_member.c) */
    ZT_FRAME_SIGNAL = 23, /* from it, or from an agent: u32 signal that it got */
    ZT_FRAME_APART = 24,  /* worker to agent: u32 node not reached; further up: u32 rank, that */
};

enum zt_stop {
    ZT_STOP_NONE,
    ZT_STOP_SOFT, /* workers end after their step */
    ZT_STOP_TERM, /* SIGTERM, and SIGKILL after the grace */
    ZT_STOP_KILL, /* SIGKILL now */
};

/* ---- writing: append to a byte string ---- */

/* Start a frame; append its payload to `out`; then end it with the value returned here. */
size_t zt_frame_begin(struct zt_str *out, enum zt_frame_type type);
void zt_frame_end(struct zt_str *out, size_t begun);

/* A frame whose payload is n bytes. */
void zt_frame_put(struct zt_str *out, enum zt_frame_type type, const void *bytes, size_t n);

void zt_put_u32(struct zt_str *out, uint32_t v);
void zt_put_blob(struct zt_str *out, const void *bytes, size_t n); /* u32 length, bytes */

/* ---- reading ---- */

struct zt_frame {
    uint16_t type;
    const unsigned char *data; /* valid until the next zt_frame_feed() */
    size_t len;
};

/* Zero-initialised is a reader at the start of a stream, before the marker. */
struct zt_frame_reader {
    struct zt_str in; /* bytes not consumed yet: at most a frame and what was fed at once */
    size_t pos;
    bool synced; /* the marker was seen */
    size_t n_noise;
    char noise[ZT_PROTO_NOISE_KEPT]; /* the last of what was skipped */
    size_t noise_len;
};

/*
 * Feed bytes, then take frames until there is none, then feed again: so memory stays within one frame
 * plus one feed, however the bytes were cut.
 */
void zt_frame_feed(struct zt_frame_reader *r, const void *bytes, size_t n);

/* 1 and a frame; 0: more bytes are needed; ZT_EPROTO: give this stream up. */
int zt_frame_next(struct zt_frame_reader *r, struct zt_frame *out,
                  struct zt_err *err) ZT_MUST_CHECK;

/* What stood before the marker, printable, for messages such as "the other end said: ...". */
void zt_frame_noise(const struct zt_frame_reader *r, struct zt_str *out);

void zt_frame_reader_release(struct zt_frame_reader *r);

/* A payload read front to back. Reading past its end gives zeros and sets `bad`. */
struct zt_cursor {
    const unsigned char *p;
    size_t left;
    bool bad;
};

static inline struct zt_cursor zt_cursor_of(const struct zt_frame *f)
{
    return (struct zt_cursor){f->data, f->len, false};
}

uint32_t zt_get_u32(struct zt_cursor *c);
const unsigned char *zt_get_bytes(struct zt_cursor *c, size_t n); /* NULL when bad */
const unsigned char *zt_get_blob(struct zt_cursor *c, size_t *n); /* NULL when bad */

/* Everything was there and nothing is left over. */
static inline bool zt_cursor_done(const struct zt_cursor *c)
{
    return !c->bad && c->left == 0;
}

#endif
