#include "harness.h"

#include "base/str.h"
#include "launch/lines.h"
#include "launch/proto.h"

enum { MARKER_LEN = sizeof ZT_PROTO_MARKER - 1 };

/* A stream of three frames behind a login shell's banner. */
static void sample(struct zt_str *s)
{
    zt_str_puts(s, "Welcome to host7\n\002zerotrain");
    zt_str_puts(s, ZT_PROTO_MARKER);
    zt_frame_put(s, ZT_FRAME_BEAT, NULL, 0);
    size_t at = zt_frame_begin(s, ZT_FRAME_LOG);
    zt_put_u32(s, 0xfffffffe);
    zt_put_blob(s, "ab\0c", 4);
    zt_frame_end(s, at);
    zt_frame_put(s, ZT_FRAME_NOTICE, ZT_PROTO_MARKER, MARKER_LEN);
}

static void check_sample_frame(int i, const struct zt_frame *f)
{
    struct zt_cursor c = zt_cursor_of(f);
    size_t len;
    if (i == 0) {
        CHECK(f->type == ZT_FRAME_BEAT && f->len == 0);
    } else if (i == 1) {
        CHECK_INT(f->type, ZT_FRAME_LOG);
        CHECK_INT(zt_get_u32(&c), 0xfffffffe);
        CHECK(!zt_cursor_done(&c));
        const unsigned char *p = zt_get_blob(&c, &len);
        CHECK(p && len == 4 && memcmp(p, "ab\0c", 4) == 0 && zt_cursor_done(&c));
    } else {
        CHECK_INT(f->type, ZT_FRAME_NOTICE);
        CHECK(f->len == MARKER_LEN && memcmp(f->data, ZT_PROTO_MARKER, MARKER_LEN) == 0);
    }
}

TEST(proto_frames_survive_every_cut)
{
    struct zt_str s = {0};
    sample(&s);
    for (size_t cut = 1; cut <= s.len; cut++) {
        struct zt_frame_reader r = {0};
        struct zt_frame f;
        struct zt_err err;
        int n = 0;
        for (size_t at = 0; at < s.len; at += cut) {
            int rc;
            zt_frame_feed(&r, s.buf + at, ZT_MIN(cut, s.len - at));
            while ((rc = zt_frame_next(&r, &f, &err)) > 0) {
                check_sample_frame(n++, &f);
                RETURN_IF_FAILED();
            }
            CHECK_OK(rc, err);
        }
        CHECK_INT(n, 3);
        zt_frame_reader_release(&r);
    }
    zt_str_release(&s);
}

TEST(proto_says_what_came_instead_of_frames)
{
    struct zt_frame_reader r = {0};
    struct zt_frame f;
    struct zt_err err;
    struct zt_str noise = {0};
    zt_frame_feed(&r, "bash: zero\033train: not found\n", 28);
    CHECK_INT(zt_frame_next(&r, &f, &err), 0);
    zt_frame_noise(&r, &noise);
    CHECK_STR(noise.buf, "bash: zero train: not found ");
    char spam[4096];
    memset(spam, '.', sizeof spam);
    int rc = 0;
    for (int i = 0; rc == 0 && i < 1000; i++) {
        zt_frame_feed(&r, spam, sizeof spam);
        rc = zt_frame_next(&r, &f, &err);
        CHECK(r.in.cap < 4 * sizeof spam);
    }
    CHECK_INT(rc, ZT_EPROTO);
    zt_frame_reader_release(&r);
    zt_str_release(&noise);
}

/* The header of an empty frame with one byte changed is refused, with these words. */
static void check_refused(size_t offset, unsigned char value, const char *words)
{
    struct zt_frame_reader r = {0};
    struct zt_frame f;
    struct zt_err err;
    struct zt_str s = {0};
    zt_str_puts(&s, ZT_PROTO_MARKER);
    zt_frame_put(&s, ZT_FRAME_BEAT, NULL, 0);
    s.buf[MARKER_LEN + offset] = (char)value;
    zt_frame_feed(&r, s.buf, s.len);
    CHECK_INT(zt_frame_next(&r, &f, &err), ZT_EPROTO);
    if (!strstr(err.msg, words))
        FAIL("\"%s\" does not say \"%s\"", err.msg, words);
    zt_frame_reader_release(&r);
    zt_str_release(&s);
}

TEST(proto_refuses_bad_headers)
{
    check_refused(0, 'X', "not a frame");
    RETURN_IF_FAILED();
    char versions[80];
    snprintf(versions, sizeof versions, "speaks protocol version %d, this zerotrain version %d",
             ZT_PROTO_VERSION + 1, ZT_PROTO_VERSION);
    check_refused(4, ZT_PROTO_VERSION + 1, versions);
    RETURN_IF_FAILED();
    check_refused(9, 1, "unknown flags");
    RETURN_IF_FAILED();
    check_refused(15, 2, "the limit is");
}

TEST(proto_announced_length_takes_no_memory)
{
    struct zt_frame_reader r = {0};
    struct zt_frame f;
    struct zt_err err;
    struct zt_str s = {0};
    zt_str_puts(&s, ZT_PROTO_MARKER);
    zt_frame_put(&s, ZT_FRAME_LOG, NULL, 0);
    s.buf[s.len - 1] = 1; /* 16 MiB, the largest allowed */
    zt_frame_feed(&r, s.buf, s.len);
    CHECK_INT(zt_frame_next(&r, &f, &err), 0);
    CHECK(r.in.cap < 1024);
    zt_frame_reader_release(&r);
    zt_str_release(&s);
}

TEST(proto_cursor_stops_at_the_end)
{
    static const unsigned char bytes[] = {9, 0, 0, 0, 'x', 'y'};
    struct zt_cursor c = {bytes, sizeof bytes, false};
    size_t len = 77;
    CHECK(!zt_get_blob(&c, &len) && len == 0 && c.bad);
    CHECK_INT(zt_get_u32(&c), 0);
    CHECK(!zt_cursor_done(&c));
    c = (struct zt_cursor){bytes, 3, false};
    CHECK_INT(zt_get_u32(&c), 0);
    CHECK(c.bad && !zt_get_bytes(&c, 0));
}

struct seen {
    size_t lens[8];
    int n;
    char last[16];
};

static void see_line(void *ctx, const char *line, size_t len)
{
    struct seen *s = ctx;
    if (s->n < (int)ZT_ARRAY_LEN(s->lens))
        s->lens[s->n] = len;
    s->n++;
    snprintf(s->last, sizeof s->last, "%.*s", (int)ZT_MIN(len, (size_t)15), line);
}

TEST(lines_are_cut_at_newlines_and_at_the_limit)
{
    struct zt_lines l = {0};
    struct seen s = {0};
    static char big[2 * ZT_LINE_MAX + 10];
    zt_lines_feed(&l, "one\n\ntw", 7, see_line, &s);
    zt_lines_feed(&l, "o\n", 2, see_line, &s);
    CHECK(s.n == 3 && s.lens[0] == 3 && s.lens[1] == 0 && s.lens[2] == 3);
    memset(big, 'x', sizeof big);
    zt_lines_feed(&l, big, sizeof big, see_line, &s);
    zt_lines_feed(&l, "\nend", 4, see_line, &s);
    CHECK(s.n == 6 && s.lens[3] == ZT_LINE_MAX && s.lens[4] == ZT_LINE_MAX && s.lens[5] == 10);
    zt_lines_feed(&l, big, ZT_LINE_MAX - 3, see_line,
                  &s); /* exactly full: the newline may follow */
    CHECK_INT(s.n, 6);
    zt_lines_feed(&l, "\n", 1, see_line, &s);
    CHECK(s.n == 7 && s.lens[6] == ZT_LINE_MAX);
    zt_lines_end(&l, see_line, &s);
    CHECK_INT(s.n, 7);
    zt_lines_feed(&l, "tail", 4, see_line, &s);
    zt_lines_end(&l, see_line, &s);
    CHECK(s.n == 8 && s.lens[7] == 4);
    CHECK_STR(s.last, "tail");
    zt_lines_release(&l);
}

TEST_MAIN()
