/*
 * harness.h: a small test runner. A test file defines tests with TEST(name) { ... } and ends with
 * TEST_MAIN(). Each test prints one line: "ok NAME", "not ok NAME: FILE:LINE: why", or
 * "skip NAME: reason"; the exit status is 1 when any failed. `prog FILTER` runs tests whose name
 * contains FILTER. test/run.sh counts the lines. Where ZT_TEST_RIGS chooses devices (unit/dev/dev_test.h)
 * it stands behind the names.
 */
#ifndef ZT_TEST_HARNESS_H
#define ZT_TEST_HARNESS_H

#include "base/compat.h"

#include <math.h>

struct zt_test {
    const char *name;
    void (*fn)(void);
    struct zt_test *next;
};

static struct zt_test *zt_tests_head;
ZT_UNUSED static struct zt_test **zt_tests_tail = &zt_tests_head;
static int zt_test_failed, zt_test_skipped; /* of the test under way */
static const char *zt_test_name;
static char zt_test_rigs[32]; /* " (cuda)" */

#define TEST(id) TEST_IF(true, id)

/* A test of some builds: in others it is not there. */
#define TEST_IF(cond, id)                                                                          \
    static void id(void);                                                                          \
    __attribute__((constructor)) static void zt_register_##id(void)                                \
    {                                                                                              \
        static struct zt_test t = {#id, id, NULL};                                                 \
        if (!(cond))                                                                               \
            return;                                                                                \
        *zt_tests_tail = &t;                                                                       \
        zt_tests_tail = &t.next;                                                                   \
    }                                                                                              \
    static void id(void)

/* The first failure of a test is printed; it returns from the function it stands in. */
#define FAIL(...)                                                                                  \
    do {                                                                                           \
        if (!zt_test_failed) {                                                                     \
            printf("not ok %s%s: %s:%d: ", zt_test_name, zt_test_rigs, __FILE__, __LINE__);        \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
        zt_test_failed = 1;                                                                        \
        return;                                                                                    \
    } while (0)

#define SKIP(...)                                                                                  \
    do {                                                                                           \
        printf("skip %s%s: ", zt_test_name, zt_test_rigs);                                         \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        zt_test_skipped = 1;                                                                       \
        return;                                                                                    \
    } while (0)

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            FAIL("%s", #cond);                                                                     \
    } while (0)

#define CHECK_INT(a, b)                                                                            \
    do {                                                                                           \
        long long zt_x_ = (long long)(a), zt_y_ = (long long)(b);                                  \
        if (zt_x_ != zt_y_)                                                                        \
            FAIL("%s is %lld, not %lld (%s)", #a, zt_x_, zt_y_, #b);                               \
    } while (0)

#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *zt_x_ = (a), *zt_y_ = (b);                                                     \
        if (strcmp(zt_x_, zt_y_) != 0)                                                             \
            FAIL("%s is \"%s\", not \"%s\"", #a, zt_x_, zt_y_);                                    \
    } while (0)

/* |a - b| <= tol (absolute) */
#define CHECK_NEAR(a, b, tol)                                                                      \
    do {                                                                                           \
        double zt_x_ = (double)(a), zt_y_ = (double)(b);                                           \
        if (!(fabs(zt_x_ - zt_y_) <= (double)(tol)))                                               \
            FAIL("%s is %.12g, not %.12g (tolerance %g)", #a, zt_x_, zt_y_, (double)(tol));        \
    } while (0)

/* A call that must succeed / fail; err is a struct zt_err. */
#define CHECK_OK(call, err)                                                                        \
    do {                                                                                           \
        int zt_rc_ = (call);                                                                       \
        if (zt_rc_ != 0)                                                                           \
            FAIL("%s: %s", #call, (err).msg);                                                      \
    } while (0)

/* For the body of one of several ranks: leave, and say why in r->why, of WHY_BYTES; the others are woken. */
#define RANK_FAIL(r, ...)                                                                          \
    do {                                                                                           \
        int at_ = snprintf((r)->why, WHY_BYTES, "line %d, rank %d: ", __LINE__, (r)->rank);        \
        snprintf((r)->why + at_, (size_t)(WHY_BYTES - at_), __VA_ARGS__);                          \
        return;                                                                                    \
    } while (0)

/* Return from the calling function too after a helper's CHECK failed. */
#define RETURN_IF_FAILED()                                                                         \
    do {                                                                                           \
        if (zt_test_failed)                                                                        \
            return;                                                                                \
    } while (0)

/* For a main() of one's own. */
ZT_UNUSED static int zt_run_tests(int argc, char **argv)
{
    int bad = 0;
    const char *rigs = getenv("ZT_TEST_RIGS");
    if (rigs && *rigs)
        snprintf(zt_test_rigs, sizeof zt_test_rigs, " (%s)", rigs);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (struct zt_test *t = zt_tests_head; t; t = t->next) {
        if (argc > 1 && !strstr(t->name, argv[1]))
            continue;
        zt_test_name = t->name;
        zt_test_failed = zt_test_skipped = 0;
        t->fn();
        if (!zt_test_failed && !zt_test_skipped)
            printf("ok %s%s\n", t->name, zt_test_rigs);
        bad |= zt_test_failed;
    }
    return bad;
}

#define TEST_MAIN()                                                                                \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return zt_run_tests(argc, argv);                                                           \
    }

#endif
