#include "harness.h"

#include "base/mark.h"

enum { BLOCK = 4096, LONG = 3000 * BLOCK + 17 };

static struct zt_mark mark_of(const void *data, size_t n)
{
    return (struct zt_mark){
        .name = "a", .kind = "text", .unit = "bytes", .n = (int64_t)n, .data = data, .bytes = n};
}

static int64_t digest(struct zt_mark mark)
{
    struct zt_marks m = {0};
    zt_marks_add(&m, &mark);
    zt_marks_read(&m);
    const int64_t d = zt_marks_digest(&m, 1);
    zt_marks_release(&m);
    return d;
}

/* Wherever it is and whatever it is called. */
TEST(mark_of_a_copy_is_the_same)
{
    char a[] = "the same", b[] = "x the same";
    struct zt_mark other = mark_of(b + 2, 8);
    other.name = "elsewhere";
    CHECK(digest(mark_of(a, 8)) == digest(other));
    CHECK(digest(mark_of(a, 8)) >= 0 && digest(mark_of(a, 8)) >> 62 == 0);
}

TEST(mark_sees_kind_number_length_and_bytes)
{
    const char text[] = "0123456789", changed[] = "0123456788";
    const struct zt_mark mark = mark_of(text, 10);
    struct zt_mark kind = mark, number = mark;
    kind.kind = "raw";
    number.n = 5;
    CHECK(digest(mark) != digest(kind));
    CHECK(digest(mark) != digest(number));
    CHECK(digest(mark) != digest(mark_of(text, 9)));
    CHECK(digest(mark) != digest(mark_of(changed, 10)));
    CHECK(digest(mark_of(NULL, 0)) == digest(mark_of(text, 0)));
    CHECK(zt_mark_word("text") != zt_mark_word("raw") && zt_mark_word("raw") >= 0);
}

/* All of what is short; of what is long the ends, and any part of it from a 255th on. */
TEST(mark_sees_a_change)
{
    static const size_t lengths[] = {1, BLOCK - 1, BLOCK, 256 * BLOCK, 256 * BLOCK + 1, LONG};
    unsigned char *data = calloc(LONG, 1);
    CHECK(data != NULL);
    for (size_t i = 0; i < ZT_ARRAY_LEN(lengths); i++) {
        const size_t n = lengths[i], places[] = {0, n - 1};
        const int64_t before = digest(mark_of(data, n));
        for (size_t k = 0; k < ZT_ARRAY_LEN(places); k++) {
            data[places[k]] = 1;
            CHECK(digest(mark_of(data, n)) != before);
            data[places[k]] = 0;
        }
    }
    const size_t part = LONG / 255 + BLOCK;
    const int64_t before = digest(mark_of(data, LONG));
    for (size_t at = 0; at + part <= LONG; at += 97 * BLOCK + 1001) {
        memset(data + at, 1, part);
        CHECK(digest(mark_of(data, LONG)) != before);
        memset(data + at, 0, part);
    }
    free(data);
}

/* Of many marks each has its first and its last block read, and their order counts. */
TEST(mark_of_many)
{
    enum { N = 300, EACH = 3 * BLOCK };
    unsigned char *data = calloc(EACH, N);
    struct zt_marks m = {0};
    CHECK(data != NULL);
    for (int i = 0; i < N; i++) {
        const struct zt_mark mark = mark_of(data + (size_t)i * EACH, EACH);
        data[(size_t)i * EACH] = (unsigned char)i;
        zt_marks_add(&m, &mark);
    }
    zt_marks_read(&m);
    const int64_t before = zt_marks_digest(&m, N), some = zt_marks_digest(&m, 255);
    for (int k = 0; k < 2; k++) {
        unsigned char *p = data + 255 * EACH + (k ? EACH - 1 : 0);
        *p ^= 1;
        zt_marks_read(&m);
        CHECK(zt_marks_digest(&m, N) != before);
        CHECK(zt_marks_digest(&m, 256) != zt_marks_digest(&m, 255));
        CHECK(zt_marks_digest(&m, 255) == some);
        *p ^= 1;
    }
    const struct zt_mark first = m.items[0];
    m.items[0] = m.items[1];
    m.items[1] = first;
    zt_marks_read(&m);
    CHECK(zt_marks_digest(&m, N) != before);
    zt_marks_release(&m);
    free(data);
}

TEST_MAIN()
