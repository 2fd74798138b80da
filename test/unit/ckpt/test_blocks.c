/* How blocks of files move, past the page cache and through it. */
#include "harness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/size.h"
#include "ckpt/direct.h"

static struct zt_err err;

enum { BLOCK = 1 << 16, MOST = 3 * BLOCK + 5 };

struct file {
    char dir[64], path[96];
    unsigned char *bytes, *block, *got; /* (MOST), and aligned: (BLOCK), (MOST) */
};

static void make_file(struct file *f)
{
    snprintf(f->dir, sizeof f->dir, "build/test-blocks-XXXXXX");
    CHECK((mkdir("build", 0777) == 0 || access("build", W_OK) == 0) && mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/file", f->dir);
    f->bytes = zt_xcalloc(MOST, 1);
    f->block = aligned_alloc(ZT_DIRECT_ALIGN, BLOCK);
    f->got = aligned_alloc(ZT_DIRECT_ALIGN, zt_align_size(MOST, ZT_DIRECT_ALIGN));
    CHECK(f->block && f->got);
    for (int i = 0; i < MOST; i++)
        f->bytes[i] = (unsigned char)(i * 7 + i / 251);
}

static void end_file(struct file *f)
{
    unlink(f->path);
    CHECK(rmdir(f->dir) == 0);
    free(f->bytes);
    free(f->block);
    free(f->got);
}

static void write_all(struct file *f, size_t n, bool refuse)
{
    struct zt_direct d;
    struct stat st;
    CHECK_OK(zt_direct_create(&d, f->path, n, &err), err);
    d.refused = refuse;
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t k = ZT_MIN(n - at, (size_t)BLOCK);
        memcpy(f->block, f->bytes + at, k);
        CHECK_OK(zt_direct_write(&d, f->block, k, at, &err), err);
    }
    CHECK(fstat(d.fd, &st) == 0);
    CHECK_INT(st.st_size, n);
    CHECK(zt_direct_close(&d) == 0);
}

static void read_all(struct file *f, size_t n, bool direct, bool cached)
{
    struct zt_direct d;
    memset(f->got, 0, MOST);
    CHECK_OK(zt_direct_open(&d, f->path, direct, &err), err);
    for (size_t at = 0; at < n; at += BLOCK)
        CHECK_OK(zt_direct_read(&d, cached, f->got + at, ZT_MIN(n - at, (size_t)BLOCK), at, &err),
                 err);
    CHECK(memcmp(f->got, f->bytes, n) == 0);
    CHECK_INT(zt_direct_read(&d, cached, f->got, n % BLOCK + 1, n - n % BLOCK, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "ends at byte"));
    CHECK(zt_direct_close(&d) == 0);
}

/* Any number of bytes, whichever way is open. */
TEST(direct_moves_any_length)
{
    static const size_t sizes[] = {1, 4095, 4096, 4097, BLOCK - 1, BLOCK + 4096, MOST};
    struct file f;
    make_file(&f);
    for (size_t i = 0; i < ZT_ARRAY_LEN(sizes); i++) {
        for (int way = 0; way < 2; way++) {
            write_all(&f, sizes[i], way);
            read_all(&f, sizes[i], true, false);
            read_all(&f, sizes[i], true, true);
            read_all(&f, sizes[i], false, false);
            CHECK(unlink(f.path) == 0);
            RETURN_IF_FAILED();
        }
    }
    end_file(&f);
}

TEST(direct_makes_no_file_that_is_there)
{
    struct file f;
    struct zt_direct d;
    make_file(&f);
    write_all(&f, 10, false);
    CHECK_INT(zt_direct_create(&d, f.path, 10, &err), ZT_EIO);
    CHECK(strstr(err.msg, "File exists"));
    read_all(&f, 10, true, false);
    unlink(f.path);
    CHECK_INT(zt_direct_open(&d, f.path, true, &err), ZT_EINPUT);
    end_file(&f);
}

TEST(direct_says_that_there_is_no_room)
{
    struct file f;
    struct zt_direct d;
    make_file(&f);
    CHECK_INT(zt_direct_create(&d, f.path, (size_t)1 << 62, &err), ZT_EIO);
    CHECK(strstr(err.msg, "4611686018427387904 bytes"));
    end_file(&f);
}

TEST_MAIN()
