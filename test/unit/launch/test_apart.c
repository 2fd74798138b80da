#include "harness.h"

#include "launch/apart.h"

enum { N = 6 };

/* "012": nodes that are left out; pairs: "03 13": 0 and 3, 1 and 3 are apart; gone: those that are not there. */
static const char *mend(int n, const char *pairs, const char *gone)
{
    static char text[N + 1];
    struct zt_apart a = {.n = n};
    bool is_gone[N] = {false}, out[N];
    int len = 0;
    for (const char *p = pairs; *p; p += p[2] ? 3 : 2)
        zt_apart_add(&a, p[0] - '0', p[1] - '0');
    for (; *gone; gone++)
        is_gone[*gone - '0'] = true;
    const int n_out = zt_apart_mend(&a, is_gone, out);
    for (int i = 0; i < n; i++)
        if (out[i])
            text[len++] = (char)('0' + i);
    text[len] = '\0';
    ZT_ASSERT_CMP(len, ==, n_out);
    zt_apart_release(&a);
    return text;
}

TEST(apart_who_mends_all_pairs_is_left_out)
{
    CHECK_STR(mend(3, "", ""), "");
    CHECK_STR(mend(3, "01", ""), "1"); /* either would do: the last */
    CHECK_STR(mend(3, "12 21", ""), "2");
    CHECK_STR(mend(4, "03 01 02", ""), "0");
    CHECK_STR(mend(4, "20 21 23", ""), "2");
    CHECK_STR(mend(2, "01", ""), "1");
    CHECK_STR(mend(5, "01 34 13", ""),
              "13"); /* no single one does: who is apart from most, then the last */
}

TEST(apart_the_network_is_in_two_halves)
{
    CHECK_STR(mend(4, "02 03 12 13", ""), "23");
    CHECK_STR(mend(5, "02 03 04 12 13 14", ""), "01"); /* the larger part goes on */
}

TEST(apart_nobody_is_left_out_for_the_network)
{
    CHECK_STR(mend(3, "01 02 12", ""), "");
    CHECK_STR(mend(4, "01 02 03 12 13 23", ""), "");
}

/* A host that is lost is apart from all others, and explains that. */
TEST(apart_those_that_are_gone_do_not_count)
{
    CHECK_STR(mend(4, "03 13 23", "3"), "");
    CHECK_STR(mend(4, "03 13 23 01", "3"), "1");
    CHECK_STR(mend(3, "01 02 12", "0"), "2");
}

TEST(apart_is_so_both_ways)
{
    struct zt_apart a = {.n = 3};
    CHECK(!zt_apart_between(&a, 0, 2));
    zt_apart_add(&a, 2, 0);
    CHECK(zt_apart_between(&a, 0, 2) && zt_apart_between(&a, 2, 0));
    CHECK(!zt_apart_between(&a, 0, 1) && !zt_apart_between(&a, 1, 2));
    zt_apart_release(&a);
    CHECK(!zt_apart_between(&a, 0, 2));
}

TEST_MAIN()
