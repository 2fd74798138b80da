#include "harness.h"

#include "train/run.h"

static void check_printable(const char *bytes, size_t n, const char *want)
{
    struct zt_str out = {0};
    zt_printable(bytes, n, &out);
    CHECK_STR(zt_str_get(&out), want);
    zt_str_release(&out);
}

#define PRINTABLE(bytes, want) check_printable(bytes, sizeof bytes - 1, want)

TEST(sample_printable_keeps_text)
{
    PRINTABLE("", "");
    PRINTABLE("int x;\n\ty", "int x;\n\ty");
    PRINTABLE("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82");
}

TEST(sample_printable_shows_controls)
{
    PRINTABLE("\x1b[2J\r\x7f", "\\x1b[2J\\x0d\\x7f");
    PRINTABLE("a\0b", "a\\x00b");
    PRINTABLE("\xc2\x9b"
              "31m",
              "\\xc2\\x9b31m"); /* CSI in one character */
}

/* RFC 3629: overlong forms, surrogates, beyond U+10FFFF, cut and stray bytes. */
TEST(sample_printable_shows_what_is_not_utf8)
{
    PRINTABLE("\xc0\xaf", "\\xc0\\xaf");
    PRINTABLE("\xe0\x80\xaf", "\\xe0\\x80\\xaf");
    PRINTABLE("\xed\xa0\x80", "\\xed\\xa0\\x80");
    PRINTABLE("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80");
    PRINTABLE("\xf8\x88\x80\x80\x80", "\\xf8\\x88\\x80\\x80\\x80");
    PRINTABLE("\xe2\x82", "\\xe2\\x82");
    PRINTABLE("\xe2\x82z", "\\xe2\\x82z");
    PRINTABLE("\x80\xbf\xff", "\\x80\\xbf\\xff");
}

TEST(sample_pick_token)
{
    const float logits[4] = {0, 3, 2, 3};
    CHECK_INT(zt_pick_token(logits, 4, 0, 0, 0.99), 1); /* the first of the largest */
    CHECK_INT(zt_pick_token(logits, 4, 1, 1, 0.3), 1);  /* ties with the k-th stay in */
    CHECK_INT(zt_pick_token(logits, 4, 1, 1, 0.7), 3);
    CHECK_INT(zt_pick_token(logits, 4, 1, 0, 1e-9), 0);
    CHECK_INT(zt_pick_token(logits, 4, 1, 0, 0.999999), 3);
    CHECK_INT(zt_pick_token(logits, 4, 1e-30, 0, 0.999), 3); /* the largest alone are left */
    int n[4] = {0};
    for (int i = 0; i < 1000; i++)
        n[zt_pick_token(logits, 4, 1, 3, (i + 0.5) / 1000)]++;
    /* e^3 / (2 e^3 + e^2) = 0.4223 */
    CHECK_INT(n[0], 0);
    CHECK(n[1] >= 421 && n[1] <= 423 && n[3] >= 421 && n[3] <= 423);
}

TEST_MAIN()
