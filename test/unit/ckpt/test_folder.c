/* The folder of checkpoints: names, order, commit, and what is removed. */
#include "harness.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "ckpt/folder.h"

static char dir[64];
static struct zt_err err;

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "build/test-folder-XXXXXX");
    CHECK((mkdir("build", 0777) == 0 || access("build", W_OK) == 0) && mkdtemp(dir));
}

static void remove_dir(void)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    CHECK_INT(system(cmd), 0);
}

static bool is_there(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static void put(const char *name, const void *bytes, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK_OK(zt_write_file_atomic(path, bytes, n, &err), err);
}

/* What the file `latest` holds; "": it is not there. */
static const char *latest(void)
{
    static char text[64];
    char path[256];
    snprintf(path, sizeof path, "%s/latest", dir);
    FILE *f = fopen(path, "r");
    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = '\0';
    if (f)
        fclose(f);
    return text;
}

static void make_step(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK(mkdir(path, 0777) == 0);
    snprintf(path, sizeof path, "%s/manifest.json", name);
    put(path, "x", 1);
}

/* By number: not by text, in which 1000000 comes before 999999, and not by time. */
TEST(folder_steps_are_ordered_by_number)
{
    int64_t *steps;
    int n;
    make_dir();
    make_step("step-1000000");
    make_step("step-000020");
    make_step("step-999999");
    make_step("step-000003");
    make_step("tmp-step-000007");
    make_step("step-x");
    make_step("step-5"); /* not as we write it: step-000005 is another name */
    make_step("step-00000000000000000000007");
    make_step("step-1000000000000000000");
    make_step("before-1");
    CHECK_OK(zt_ckpt_steps(dir, &steps, &n, &err), err);
    CHECK_INT(n, 4);
    CHECK(steps[0] == 3 && steps[1] == 20 && steps[2] == 999999 && steps[3] == 1000000);
    free(steps);
    CHECK_OK(zt_ckpt_steps("build/no-such-folder", &steps, &n, &err), err);
    CHECK_INT(n, 0);
    free(steps);
    remove_dir();
}

TEST(folder_clean_removes_what_is_unfinished)
{
    make_dir();
    make_step("step-000001");
    make_step("tmp-step-000002");
    make_step("tmp-old-000000");
    make_step("tmp-probe-3");
    make_step("tmp-results"); /* somebody else's */
    make_step("tmp-step-000002-mine");
    put("latest", "step-000001\n", 12);
    put("latest.tmp.4711", "st", 2);
    put("latest.tmp.txt", "mine", 4);
    struct zt_str warnings = {0};
    CHECK_OK(zt_ckpt_clean(dir, &warnings, &err), err);
    CHECK_INT(warnings.len, 0);
    CHECK(is_there("step-000001/manifest.json") && is_there("latest"));
    CHECK(!is_there("tmp-step-000002") && !is_there("tmp-old-000000"));
    CHECK(!is_there("latest.tmp.4711") && !is_there("tmp-probe-3"));
    CHECK(is_there("latest.tmp.txt"));
    CHECK(is_there("tmp-results/manifest.json") && is_there("tmp-step-000002-mine/manifest.json"));
    remove_dir();
}

/* A folder in what is removed is nobody's but a person's: it stays, the rest goes, and no run is held up. */
TEST(folder_clean_passes_over_what_it_cannot_remove)
{
    struct zt_str warnings = {0};
    make_dir();
    make_step("tmp-old-000002");
    make_step("tmp-old-000002/hf");
    make_step("tmp-step-000004");
    put("tmp-old-000003", "a file", 6);
    CHECK_OK(zt_ckpt_clean(dir, &warnings, &err), err);
    CHECK(strstr(warnings.buf, "tmp-old-000002") && strstr(warnings.buf, "Is a directory"));
    CHECK(strstr(warnings.buf, "; ") && strstr(warnings.buf, "tmp-old-000003: Not a directory"));
    CHECK(is_there("tmp-old-000002/hf/manifest.json") && !is_there("tmp-step-000004"));
    CHECK(!is_there("tmp-old-000002/manifest.json"));
    zt_str_release(&warnings);
    remove_dir();
}

/* As after a kill between the rename and `latest`, or by the hand of somebody. */
TEST(folder_clean_makes_latest_right)
{
    struct zt_str warnings = {0};
    make_dir();
    make_step("step-000002");
    CHECK_OK(zt_ckpt_clean(dir, &warnings, &err), err);
    CHECK_STR(latest(), "step-000002\n");
    make_step("step-000004");
    CHECK_OK(zt_ckpt_clean(dir, &warnings, &err), err);
    CHECK_STR(latest(), "step-000004\n");
    CHECK_INT(warnings.len, 0);
    remove_dir();
}

TEST(folder_retains_the_newest_and_the_multiples)
{
    struct zt_str warnings = {0};
    make_dir();
    for (int i = 1; i <= 12; i++) {
        char name[32];
        snprintf(name, sizeof name, "step-%06d", i);
        make_step(name);
    }
    zt_ckpt_retain(dir, NULL, 12, 0, 5, &warnings);
    CHECK(is_there("step-000001"));
    zt_ckpt_retain(dir, NULL, 12, 2, 5, &warnings);
    CHECK_INT(warnings.len, 0);
    for (int i = 1; i <= 12; i++) {
        char name[32];
        snprintf(name, sizeof name, "step-%06d", i);
        CHECK_INT(is_there(name), i % 5 == 0 || i > 10);
    }
    remove_dir();
}

/* Only this run's checkpoints count: none of a later step, and nothing that merely has such a name. */
TEST(folder_retains_what_was_just_made)
{
    struct zt_str warnings = {0};
    char path[256];
    make_dir();
    make_step("step-000002");
    make_step("step-000004");
    make_step("step-800000");
    for (int i = 3; i <= 900000; i += 899997) {
        snprintf(path, sizeof path, "%s/step-%06d", dir, i);
        CHECK(mkdir(path, 0777) == 0);
    }
    zt_ckpt_retain(dir, NULL, 4, 1, 0, &warnings);
    CHECK_INT(warnings.len, 0);
    CHECK(is_there("step-000004/manifest.json") && !is_there("step-000002"));
    CHECK(is_there("step-000003") && is_there("step-900000") && is_there("step-800000"));
    remove_dir();
}

/* One that cannot be removed is said, and the others are removed. */
TEST(folder_retains_past_one_that_stays)
{
    struct zt_str warnings = {0};
    make_dir();
    make_step("step-000001");
    make_step("step-000001/hf");
    make_step("step-000002");
    make_step("step-000003");
    zt_ckpt_retain(dir, NULL, 3, 1, 0, &warnings);
    CHECK(strstr(zt_str_get(&warnings), "tmp-old-000001"));
    CHECK(is_there("step-000003") && !is_there("step-000002") && !is_there("step-000001"));
    CHECK(is_there("tmp-old-000001/hf/manifest.json"));
    zt_str_release(&warnings);
    remove_dir();
}

TEST(folder_sets_later_ones_aside)
{
    struct zt_str where = {0};
    int moved;
    make_dir();
    make_step("step-000001");
    make_step("step-000002");
    make_step("step-000003");
    put("latest", "step-000003\n", 12);
    CHECK_OK(zt_ckpt_set_aside(dir, 1, &moved, &where, &err), err);
    CHECK_INT(moved, 2);
    CHECK_STR(latest(), "step-000001\n");
    CHECK(strstr(where.buf, "/before-1"));
    CHECK(is_there("step-000001") && !is_there("step-000002"));
    CHECK(is_there("before-1/step-000003/manifest.json"));
    CHECK_OK(zt_ckpt_set_aside(dir, 1, &moved, &where, &err), err);
    CHECK(moved == 0 && !is_there("before-2"));
    CHECK_OK(zt_ckpt_set_aside(dir, -1, &moved, &where, &err), err);
    CHECK(moved == 1 && is_there("before-2/step-000001"));
    CHECK(!is_there("latest"));
    zt_str_release(&where);
    remove_dir();
}

/* A checkpoint of one file of `n` bytes, not committed yet. */
static void begin(struct zt_manifest *m, int64_t step, const char *bytes, size_t n)
{
    struct zt_str path = {0};
    memset(m, 0, sizeof *m);
    m->program = m->recipe = m->optimizer = "x";
    m->mesh = (struct zt_mesh){{1, 1, 1, 1, 1}};
    m->at = (struct zt_ckpt_progress){.step = step, .samples = 1, .seq_len = 1};
    m->block_bytes = ZT_CKPT_BLOCK_BYTES;
    m->n_files = m->n_tensors = 1;
    m->files = zt_arena_alloc(&m->arena, 1, sizeof *m->files);
    m->tensors = zt_arena_alloc(&m->arena, 1, sizeof *m->tensors);
    m->files[0] = (struct zt_ckpt_file){
        .name = "f", .bytes = n, .n_sums = 1, .sums = zt_arena_alloc(&m->arena, 1, 16)};
    m->tensors[0] = (struct zt_ckpt_tensor){
        .name = "t", .n_dims = 1, .dims = {(int64_t)n / 4}, .n_elems = (int64_t)n / 4};
    struct zt_ckpt_part *part = &m->tensors[0].parts[ZT_CKPT_PARAM];
    part->n = 1;
    part->pieces = zt_arena_alloc(&m->arena, 1, sizeof *part->pieces);
    part->pieces[0] = (struct zt_ckpt_piece){0, 0, (int64_t)n / 4, 0};
    zt_ckpt_temp_path(dir, step, &path);
    CHECK(mkdir(path.buf, 0777) == 0);
    zt_str_puts(&path, "/f");
    CHECK_OK(zt_write_file_atomic(path.buf, bytes, n, &err), err);
    struct zt_ckpt_sum sum = zt_ckpt_sum_of(bytes, n);
    CHECK_OK(zt_ckpt_write_sums(path.buf, &sum, 1, &err), err);
    zt_str_release(&path);
}

TEST(folder_commit_makes_it_visible)
{
    static const char bytes[8] = "12345678";
    struct zt_manifest m;
    struct zt_ckpt c;
    struct zt_str path = {0}, warnings = {0};
    bool synced;
    make_dir();
    begin(&m, 12, bytes, sizeof bytes);
    CHECK(!is_there("step-000012"));
    CHECK_OK(zt_ckpt_commit(dir, NULL, &m, &synced, &warnings, &err), err);
    CHECK(synced && warnings.len == 0);
    CHECK(!is_there("tmp-step-000012") && !is_there("step-000012/f.sums"));
    zt_ckpt_step_path(dir, 12, &path);
    CHECK_OK(zt_ckpt_open(path.buf, &c, &err), err);
    CHECK_OK(zt_ckpt_verify(&c, &err), err);
    zt_ckpt_close(&c);
    CHECK_STR(latest(), "step-000012\n");
    zt_str_release(&path);
    zt_manifest_release(&m);
    remove_dir();
}

static void commit(int64_t step, struct zt_str *warnings)
{
    struct zt_manifest m;
    bool synced;
    begin(&m, step, "12345678", 8);
    zt_str_reset(warnings);
    CHECK_OK(zt_ckpt_commit(dir, NULL, &m, &synced, warnings, &err), err);
    CHECK(synced);
    zt_manifest_release(&m);
}

/* `latest` is a convenience: a link is replaced, not followed, and a folder of that name is a warning. */
TEST(folder_commit_does_not_fail_for_latest)
{
    struct zt_str path = {0}, warnings = {0};
    struct stat st;
    make_dir();
    zt_str_printf(&path, "%s/latest", dir);
    CHECK(symlink("step-000002", path.buf) == 0);
    commit(2, &warnings);
    CHECK_INT(warnings.len, 0);
    CHECK_STR(latest(), "step-000002\n");
    CHECK(lstat(path.buf, &st) == 0 && S_ISREG(st.st_mode));
    CHECK(unlink(path.buf) == 0 && mkdir(path.buf, 0777) == 0);
    commit(4, &warnings);
    CHECK(strstr(zt_str_get(&warnings), "/latest: rename: Is a directory"));
    CHECK(is_there("step-000004/manifest.json"));
    zt_str_release(&path);
    zt_str_release(&warnings);
    remove_dir();
}

/* Another run has the folder now: nothing is made there, and nothing of its removed. */
TEST(folder_that_was_taken_over)
{
    const struct zt_ckpt_wait wait = {0};
    struct zt_ckpt_lock *lock;
    struct zt_manifest m;
    struct zt_str warnings = {0};
    bool synced;
    make_dir();
    commit(2, &warnings);
    commit(4, &warnings);
    CHECK_OK(zt_ckpt_lock(dir, &wait, &lock, &err), err);
    put(".lock-2", "held by process 1 on zt9\n", 25);
    begin(&m, 6, "12345678", 8);
    CHECK_INT(zt_ckpt_commit(dir, lock, &m, &synced, &warnings, &err), ZT_ESYS);
    CHECK(!is_there("step-000006") && is_there("tmp-step-000006/f.sums"));
    zt_ckpt_retain(dir, lock, 4, 1, 0, &warnings);
    CHECK(strstr(zt_str_get(&warnings), "another run has taken over its checkpoints"));
    CHECK(is_there("step-000002"));
    zt_ckpt_unlock(lock);
    zt_manifest_release(&m);
    zt_str_release(&warnings);
    remove_dir();
}

/* A file that is not as its rank said: nothing becomes visible. */
TEST(folder_commit_wants_every_part)
{
    static const char bytes[8] = "12345678";
    struct zt_manifest m;
    struct zt_str warnings = {0};
    bool synced;
    make_dir();
    begin(&m, 12, bytes, sizeof bytes);
    put("tmp-step-000012/f", bytes, 4);
    CHECK_INT(zt_ckpt_commit(dir, NULL, &m, &synced, &warnings, &err), ZT_EIO);
    CHECK(strstr(err.msg, "tmp-step-000012/f: has 4 bytes, not the 8"));
    put("tmp-step-000012/f", bytes, 8);
    put("tmp-step-000012/f.sums", bytes, 8);
    CHECK_INT(zt_ckpt_commit(dir, NULL, &m, &synced, &warnings, &err), ZT_EIO);
    CHECK(strstr(err.msg, "f.sums: not the checksums of 1 blocks"));
    CHECK(!is_there("step-000012") && !is_there("latest"));
    zt_manifest_release(&m);
    remove_dir();
}

TEST_MAIN()
