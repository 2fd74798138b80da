#include "harness.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "base/rng.h"
#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"
#include "unit/ckpt/st_find.h"

/*
 * A checkpoint of two tensors, cut over `n_files` files at uneven places: values are fp32 noise, those of
 * the second tensor bf16, and it has no optimizer state.
 */
enum { A_ROWS = 3001, A_COLS = 501, A = A_ROWS * A_COLS, B = 100, MAX_FILES = 5, MOST_FILES = 100 };

struct made {
    struct zt_manifest m;
    char dir[64];
    float *values[ZT_CKPT_N_PARTS]; /* of the first tensor */
    uint16_t b[B];
    int64_t cuts[MOST_FILES + 1], b_cuts[MOST_FILES + 1];
};

static struct zt_ckpt_piece *pieces_of(struct made *k, const int64_t *cuts, int n)
{
    struct zt_ckpt_piece *p = zt_arena_alloc(&k->m.arena, (size_t)n, sizeof *p);
    for (int i = 0; i < n; i++)
        p[i] = (struct zt_ckpt_piece){.file = i, .begin = cuts[i], .end = cuts[i + 1]};
    return p;
}

static void describe(struct made *k, int n_files)
{
    struct zt_manifest *m = &k->m;
    m->program = "test";
    m->recipe = "train:\n  steps: 3 # \"quoted\", ünïcode\n";
    m->optimizer = "AdamW";
    m->mesh = (struct zt_mesh){{1, 1, n_files, 1, 1}};
    m->stage = 2;
    m->dtype = ZT_BF16;
    m->at = (struct zt_ckpt_progress){.step = 200,
                                      .updates = 198,
                                      .skipped = 2,
                                      .position = 6400,
                                      .samples = 1000,
                                      .seq_len = 64,
                                      .seed = 1337,
                                      .has_loss_scale = true,
                                      .loss_scale = 1.0 / 3,
                                      .scale_patience = 2,
                                      .scale_last_overflow = 17,
                                      .best_val_loss = 0.1};
    m->block_bytes = ZT_CKPT_BLOCK_BYTES;
    m->n_files = n_files;
    m->n_tensors = 2;
    m->files = zt_arena_alloc(&m->arena, (size_t)n_files, sizeof *m->files);
    m->tensors = zt_arena_alloc(&m->arena, 2, sizeof *m->tensors);
    m->tensors[0] = (struct zt_ckpt_tensor){
        .name = "h.0.a", .n_dims = 2, .dims = {A_ROWS, A_COLS}, .n_elems = A};
    m->tensors[1] = (struct zt_ckpt_tensor){.name = "b", .n_dims = 1, .dims = {B}, .n_elems = B};
    for (int i = 0; i <= n_files; i++) {
        k->cuts[i] = i == 0 ? 0 : i == n_files ? A : (int64_t)A * i / n_files + 7 * i;
        k->b_cuts[i] = (int64_t)B * i / n_files;
    }
    for (int s = 0; s < ZT_CKPT_N_PARTS; s++)
        m->tensors[0].parts[s] =
            (struct zt_ckpt_part){ZT_F32, n_files, pieces_of(k, k->cuts, n_files)};
    m->tensors[1].parts[ZT_CKPT_PARAM] =
        (struct zt_ckpt_part){ZT_BF16, n_files, pieces_of(k, k->b_cuts, n_files)};
}

static void write_file(struct made *k, int f)
{
    struct zt_shard_piece pieces[4];
    struct zt_ckpt_file *file = &k->m.files[f];
    size_t offsets[4], bytes;
    struct zt_str header = {0};
    struct zt_shard_writer *w;
    struct zt_err err;
    char path[128];
    for (int s = 0; s < ZT_CKPT_N_PARTS; s++)
        pieces[s] = (struct zt_shard_piece){(enum zt_ckpt_part_kind)s, &k->m.tensors[0], ZT_F32,
                                            k->cuts[f], k->cuts[f + 1]};
    pieces[3] = (struct zt_shard_piece){ZT_CKPT_PARAM, &k->m.tensors[1], ZT_BF16, k->b_cuts[f],
                                        k->b_cuts[f + 1]};
    zt_shard_header(pieces, 4, &header, offsets, &file->bytes);
    for (int s = 0; s < ZT_CKPT_N_PARTS; s++)
        k->m.tensors[0].parts[s].pieces[f].offset = offsets[s];
    k->m.tensors[1].parts[ZT_CKPT_PARAM].pieces[f].offset = offsets[3];
    file->name = zt_arena_printf(&k->m.arena, "rank-%05d.safetensors", f);
    snprintf(path, sizeof path, "%s/%s", k->dir, file->name);
    CHECK_OK(zt_shard_create(path, file->bytes, &w, &err), err);
    CHECK_OK(zt_shard_put(w, header.buf, header.len, &err), err);
    for (int s = 0; s < ZT_CKPT_N_PARTS; s++) {
        bytes = (size_t)(k->cuts[f + 1] - k->cuts[f]) * sizeof(float);
        CHECK_OK(zt_shard_put(w, k->values[s] + k->cuts[f], bytes, &err), err);
    }
    bytes = (size_t)(k->b_cuts[f + 1] - k->b_cuts[f]) * 2;
    CHECK_OK(zt_shard_put(w, k->b + k->b_cuts[f], bytes, &err), err);
    struct zt_ckpt_sum *sums;
    CHECK_OK(zt_shard_finish(w, &sums, &file->n_sums, &err), err);
    file->sums = zt_arena_alloc(&k->m.arena, file->n_sums, sizeof *sums);
    memcpy(file->sums, sums, file->n_sums * sizeof *sums);
    free(sums);
    zt_str_release(&header);
}

static void make(struct made *k, int n_files)
{
    struct zt_str text = {0};
    struct zt_err err;
    char path[128];
    memset(k, 0, sizeof *k);
    snprintf(k->dir, sizeof k->dir, "build/test-ckpt-XXXXXX");
    CHECK((mkdir("build", 0777) == 0 || access("build", W_OK) == 0) && mkdtemp(k->dir));
    for (int s = 0; s < ZT_CKPT_N_PARTS; s++) {
        k->values[s] = zt_xcalloc(A, sizeof(float));
        zt_rng_normal(7, ZT_RNG_INIT, (uint64_t)s, 0, A, k->values[s]);
    }
    for (int i = 0; i < B; i++)
        k->b[i] = zt_f32_to_bf16((float)i * 0.37f - 5);
    describe(k, n_files);
    for (int f = 0; f < n_files; f++)
        write_file(k, f);
    zt_manifest_print(&k->m, &text);
    snprintf(path, sizeof path, "%s/" ZT_CKPT_MANIFEST, k->dir);
    CHECK_OK(zt_write_file_atomic(path, text.buf, text.len, &err), err);
    zt_str_release(&text);
}

static void unmake(struct made *k)
{
    char cmd[128];
    for (int s = 0; s < ZT_CKPT_N_PARTS; s++)
        free(k->values[s]);
    zt_manifest_release(&k->m);
    snprintf(cmd, sizeof cmd, "rm -r %s", k->dir);
    CHECK_INT(system(cmd), 0);
}

TEST(checkpoint_manifest_round_trip)
{
    struct made k;
    struct zt_manifest m;
    struct zt_str text = {0}, again = {0};
    struct zt_err err;
    make(&k, 3);
    zt_manifest_print(&k.m, &text);
    CHECK_OK(zt_manifest_parse("x", text.buf, text.len, &m, &err), err);
    CHECK_STR(m.recipe, k.m.recipe);
    CHECK_STR(m.optimizer, "AdamW");
    CHECK_INT(m.mesh.size[ZT_AXIS_SHARD], 3);
    CHECK(m.dtype == ZT_BF16 && m.stage == 2 && m.n_files == 3 && m.n_tensors == 2);
    CHECK(m.at.step == 200 && m.at.updates == 198 && m.at.skipped == 2 && m.at.position == 6400);
    CHECK(m.at.samples == 1000 && m.at.seq_len == 64 && m.at.seed == 1337);
    CHECK(m.at.has_loss_scale && m.at.scale_patience == 2 && m.at.scale_last_overflow == 17);
    CHECK(m.at.loss_scale == k.m.at.loss_scale && m.at.best_val_loss == k.m.at.best_val_loss);
    const struct zt_ckpt_tensor *t = zt_manifest_find(&m, "h.0.a");
    CHECK(t && t->n_elems == A && t->parts[ZT_CKPT_V].n == 3);
    CHECK(!zt_manifest_find(&m, "h.0"));
    CHECK_INT(m.tensors[1].parts[ZT_CKPT_M].n, 0);
    zt_manifest_print(&m, &again);
    CHECK_STR(again.buf, text.buf);
    zt_manifest_release(&m);
    zt_str_release(&text);
    zt_str_release(&again);
    unmake(&k);
}

/* Numbers that JSON has not, and their absence. */
TEST(checkpoint_manifest_never_evaluated)
{
    struct made k;
    struct zt_manifest m;
    struct zt_str text = {0};
    struct zt_err err;
    make(&k, 1);
    k.m.at.best_val_loss = (double)NAN;
    k.m.at.has_loss_scale = false;
    zt_manifest_print(&k.m, &text);
    CHECK_OK(zt_manifest_parse("x", text.buf, text.len, &m, &err), err);
    CHECK(isnan(m.at.best_val_loss) && !m.at.has_loss_scale);
    zt_manifest_release(&m);
    zt_str_release(&text);
    unmake(&k);
}

/* Every single byte of it is guarded, and so is its length. */
TEST(checkpoint_manifest_guards_every_byte)
{
    struct made k;
    struct zt_manifest m;
    struct zt_str text = {0};
    struct zt_err err;
    make(&k, 2);
    zt_manifest_print(&k.m, &text);
    for (size_t i = 0; i < text.len; i++) {
        text.buf[i] ^= 1;
        if (zt_manifest_parse("x", text.buf, text.len, &m, &err) == 0)
            FAIL("a change of byte %zu is not seen", i);
        text.buf[i] ^= 1;
        if (zt_manifest_parse("x", text.buf, i, &m, &err) == 0)
            FAIL("a cut at byte %zu is not seen", i);
    }
    CHECK(strstr(err.msg, "x: its checksum is wrong"));
    zt_str_release(&text);
    unmake(&k);
}

/* The files are safetensors files, with names and shapes as the header of checkpoint.h says. */
TEST(checkpoint_files_are_safetensors)
{
    struct made k;
    struct zt_st_file f;
    struct zt_err err;
    char path[128];
    make(&k, 2);
    snprintf(path, sizeof path, "%s/rank-00001.safetensors", k.dir);
    CHECK_OK(zt_st_open(path, &f, &err), err);
    CHECK_INT(f.n_tensors, 4);
    const struct zt_st_tensor *t = st_find(&f, "m/h.0.a");
    CHECK(t && t->dtype == ZT_F32 && t->n_dims == 1);
    CHECK_INT(t->n_elems, k.cuts[2] - k.cuts[1]);
    CHECK(memcmp(t->data, k.values[ZT_CKPT_M] + k.cuts[1], t->bytes) == 0);
    CHECK(((const unsigned char *)st_find(&f, "param/h.0.a")->data - f.map.data) % 4096 == 0);
    zt_st_close(&f);
    unmake(&k);
    make(&k, 1);
    snprintf(path, sizeof path, "%s/rank-00000.safetensors", k.dir);
    CHECK_OK(zt_st_open(path, &f, &err), err);
    t = st_find(&f, "param/h.0.a");
    CHECK(t && t->n_dims == 2 && t->dims[0] == A_ROWS && t->dims[1] == A_COLS);
    zt_st_close(&f);
    unmake(&k);
}

static void check_range(struct zt_ckpt *c, const struct made *k, int s, int64_t begin, int64_t n)
{
    struct zt_err err;
    float *out = zt_xcalloc((size_t)n + 1, sizeof *out);
    CHECK_OK(zt_ckpt_read_f32(c, &c->m.tensors[0], (enum zt_ckpt_part_kind)s, begin, n, out, &err),
             err);
    if (memcmp(out, k->values[s] + begin, (size_t)n * sizeof *out) != 0)
        FAIL("part %d, elements %lld + %lld differ", s, (long long)begin, (long long)n);
    free(out);
}

/* Any range, however the writer cut the tensor: across files and across blocks, in any order. */
TEST(checkpoint_reads_any_range)
{
    struct zt_err err;
    for (int n_files = 1; n_files <= MAX_FILES; n_files++) {
        struct made k;
        struct zt_ckpt c;
        float b[B];
        make(&k, n_files);
        CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
        for (int i = 0; i < 40; i++) {
            const int64_t begin = (int64_t)i * 7919 * 31 % A;
            check_range(&c, &k, i % 3, begin, ZT_MIN((int64_t)i * i * 1009, A - begin));
        }
        for (int s = 0; s < ZT_CKPT_N_PARTS; s++)
            check_range(&c, &k, s, 0, A);
        CHECK_OK(zt_ckpt_read_f32(&c, &c.m.tensors[1], ZT_CKPT_PARAM, 1, B - 1, b, &err), err);
        for (int i = 1; i < B; i++)
            CHECK(zt_f32_bits(b[i - 1]) == zt_f32_bits(zt_bf16_to_f32(k.b[i])));
        CHECK_OK(zt_ckpt_verify(&c, &err), err);
        zt_ckpt_close(&c);
        unmake(&k);
        RETURN_IF_FAILED();
    }
}

/* Ranges of all parts in turn, as LOAD reads them: blocks at their borders are wanted several times. */
static void expect_in_turn(struct zt_ckpt *c, int64_t step)
{
    for (int64_t begin = 0; begin < A; begin += step)
        for (int s = 0; s < ZT_CKPT_N_PARTS; s++)
            zt_ckpt_expect(c, &c->m.tensors[0], (enum zt_ckpt_part_kind)s, begin,
                           ZT_MIN(step, A - begin));
    zt_ckpt_read_ahead(c);
}

TEST(checkpoint_reads_ahead)
{
    enum { STEP = 300007 };
    struct zt_err err;
    for (int n_files = 1; n_files <= MAX_FILES; n_files++) {
        struct made k;
        struct zt_ckpt c;
        make(&k, n_files);
        CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
        expect_in_turn(&c, STEP);
        for (int64_t begin = 0; begin < A; begin += STEP)
            for (int s = 0; s < ZT_CKPT_N_PARTS; s++)
                check_range(&c, &k, s, begin, ZT_MIN((int64_t)STEP, A - begin));
        zt_ckpt_close(&c);
        unmake(&k);
        RETURN_IF_FAILED();
    }
}

/* By read(2) and its like, of all threads. */
static void bytes_read(size_t *n)
{
    FILE *f = fopen("/proc/self/io", "r");
    CHECK(f && fscanf(f, "rchar: %zu", n) == 1);
    fclose(f);
}

/* The same files with sums of other blocks, as another program may write them. */
static void sum_by(struct made *k, size_t block_bytes)
{
    struct zt_str text = {0}, bytes = {0};
    struct zt_err err;
    char path[128];
    k->m.block_bytes = block_bytes;
    for (int f = 0; f < k->m.n_files; f++) {
        struct zt_ckpt_file *file = &k->m.files[f];
        snprintf(path, sizeof path, "%s/%s", k->dir, file->name);
        zt_str_reset(&bytes);
        CHECK_OK(zt_read_file(path, file->bytes, &bytes, &err), err);
        file->n_sums = (file->bytes + block_bytes - 1) / block_bytes;
        file->sums = zt_arena_alloc(&k->m.arena, file->n_sums, sizeof *file->sums);
        for (size_t i = 0; i < file->n_sums; i++)
            file->sums[i] = zt_ckpt_sum_of(bytes.buf + i * block_bytes,
                                           ZT_MIN(block_bytes, file->bytes - i * block_bytes));
    }
    zt_manifest_print(&k->m, &text);
    snprintf(path, sizeof path, "%s/" ZT_CKPT_MANIFEST, k->dir);
    CHECK_OK(zt_write_file_atomic(path, text.buf, text.len, &err), err);
    zt_str_release(&text);
    zt_str_release(&bytes);
}

/*
 * Short ranges of all files in turn, part by part: slices that others have cut. visit(range) gets the part, where it
 * begins and how many elements it has.
 */
struct in_files {
    struct zt_ckpt *c;
    const struct made *k;
    int n_failed;
};

static void visit_files(struct in_files *x, void visit(struct in_files *, int, int64_t, int64_t))
{
    enum { STEP = 1024 };
    for (int s = 0; s < ZT_CKPT_N_PARTS; s++)
        for (int64_t at = 0, left = 1; left > 0; at += STEP) {
            left = 0;
            for (int f = 0; f < x->k->m.n_files; f++) {
                const int64_t begin = x->k->cuts[f] + at;
                const int64_t n = ZT_MIN(x->k->cuts[f + 1] - begin, (int64_t)STEP);
                if (n > 0)
                    visit(x, s, begin, n);
                left = ZT_MAX(left, n);
            }
        }
}

static void expect_range(struct in_files *x, int s, int64_t begin, int64_t n)
{
    zt_ckpt_expect(x->c, &x->c->m.tensors[0], (enum zt_ckpt_part_kind)s, begin, n);
}

static void see_range(struct in_files *x, int s, int64_t begin, int64_t n)
{
    check_range(x->c, x->k, s, begin, n);
}

static size_t bytes_of(const struct made *k)
{
    size_t n = 0;
    for (int f = 0; f < k->m.n_files; f++)
        n += k->m.files[f].bytes;
    return n;
}

/* A block that is wanted again is not read again while there is room for all such; for some of them if not. */
TEST(checkpoint_reads_a_block_once)
{
    enum { BLOCK = 1 << 16, TIMES = BLOCK / 4096 }; /* each block is wanted so many times */
    struct zt_err err;
    for (int i = 0; i < 2; i++) {
        struct made k;
        struct zt_ckpt c;
        make(&k, i ? MOST_FILES : MAX_FILES);
        sum_by(&k, BLOCK);
        CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
        struct in_files x = {&c, &k, 0};
        visit_files(&x, expect_range);
        size_t begun, ended;
        bytes_read(&begun);
        zt_ckpt_read_ahead(&c);
        visit_files(&x, see_range);
        bytes_read(&ended);
        const double times = (double)(ended - begun) / (double)bytes_of(&k);
        if (times < 0.9 || times > (i ? TIMES / 2 : 1.01))
            FAIL("%d files were read %.2f times", k.m.n_files, times);
        zt_ckpt_close(&c);
        unmake(&k);
        RETURN_IF_FAILED();
    }
}

/* What was not expected is read all the same, in between or instead; and reading may end anywhere. */
TEST(checkpoint_reads_what_was_not_expected)
{
    struct zt_err err;
    struct made k;
    struct zt_ckpt c;
    make(&k, 2);
    CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
    expect_in_turn(&c, 100003);
    check_range(&c, &k, ZT_CKPT_V, 17, A - 17);
    check_range(&c, &k, ZT_CKPT_PARAM, 0, 100003);
    check_range(&c, &k, ZT_CKPT_PARAM, 5, 100);
    check_range(&c, &k, ZT_CKPT_M, 0, 100003);
    zt_ckpt_close(&c);
    unmake(&k);
}

/* An element may begin in one block and end in the next. */
TEST(checkpoint_reads_blocks_of_any_size)
{
    static const size_t sizes[] = {65536, 65537, 65538, 100003};
    struct zt_err err;
    struct made k;
    struct zt_ckpt c;
    make(&k, 2);
    for (size_t i = 0; i < ZT_ARRAY_LEN(sizes); i++) {
        sum_by(&k, sizes[i]);
        CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
        for (int s = 0; s < ZT_CKPT_N_PARTS; s++)
            check_range(&c, &k, s, 0, A);
        zt_ckpt_close(&c);
    }
    unmake(&k);
}

static void flip(const struct made *k, const char *name, off_t at)
{
    char path[128];
    unsigned char byte;
    snprintf(path, sizeof path, "%s/%s", k->dir, name);
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

/* Only the reader of the damaged block is told, with the file's name; verify finds it too. */
TEST(checkpoint_names_the_damaged_file)
{
    struct made k;
    struct zt_ckpt c;
    struct zt_err err;
    float *out = zt_xcalloc(A, sizeof *out);
    make(&k, 2);
    flip(&k, "rank-00001.safetensors", 5000000);
    CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
    const struct zt_ckpt_tensor *t = zt_manifest_find(&c.m, "h.0.a");
    CHECK_OK(zt_ckpt_read_f32(&c, t, ZT_CKPT_PARAM, 0, 1000, out, &err), err);
    CHECK_INT(zt_ckpt_read_f32(&c, t, ZT_CKPT_M, 0, A, out, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "rank-00001.safetensors: the checksum of bytes 4194304 to"));
    zt_ckpt_close(&c);
    CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
    zt_ckpt_expect(&c, &c.m.tensors[0], ZT_CKPT_M, 0, A);
    zt_ckpt_read_ahead(&c);
    CHECK_INT(zt_ckpt_read_f32(&c, &c.m.tensors[0], ZT_CKPT_M, 0, A, out, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "rank-00001.safetensors: the checksum of bytes 4194304 to"));
    zt_ckpt_close(&c);
    CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
    CHECK_INT(zt_ckpt_verify(&c, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "rank-00001.safetensors"));
    zt_ckpt_close(&c);
    free(out);
    unmake(&k);
}

/* Fails where it touches block 1 of the third file, and only there. */
static void see_damaged(struct in_files *x, int s, int64_t begin, int64_t n)
{
    enum { BLOCK = 1 << 16, FILE = 2 };
    const struct zt_ckpt_piece *p = &x->c->m.tensors[0].parts[s].pieces[FILE];
    const int64_t at = (int64_t)p->offset + (begin - p->begin) * 4;
    const bool hit = begin >= p->begin && begin < p->end && at < 2 * BLOCK && at + n * 4 > BLOCK;
    struct zt_err err;
    float *out = zt_xcalloc((size_t)n, sizeof *out);
    const int rc =
        zt_ckpt_read_f32(x->c, &x->c->m.tensors[0], (enum zt_ckpt_part_kind)s, begin, n, out, &err);
    if ((rc != 0) != hit)
        FAIL("part %d, elements %lld + %lld: %d", s, (long long)begin, (long long)n, rc);
    if (rc)
        CHECK(strstr(err.msg, "rank-00002.safetensors: the checksum of bytes 65536 to 131072"));
    else
        CHECK(memcmp(out, x->k->values[s] + begin, (size_t)n * sizeof *out) == 0);
    x->n_failed += rc != 0;
    free(out);
}

/* However often a block is wanted, it is damaged each time. */
TEST(checkpoint_damage_stays_damage)
{
    struct zt_err err;
    struct made k;
    struct zt_ckpt c;
    make(&k, MAX_FILES);
    sum_by(&k, 1 << 16);
    flip(&k, "rank-00002.safetensors", 100000);
    CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
    struct in_files x = {&c, &k, 0};
    visit_files(&x, expect_range);
    zt_ckpt_read_ahead(&c);
    visit_files(&x, see_damaged);
    CHECK(x.n_failed > 10);
    zt_ckpt_close(&c);
    unmake(&k);
}

/* So many files, of which each reader may open but a few. */
TEST(checkpoint_has_more_files_than_may_be_open)
{
    enum { LIMIT = 150 };
    struct rlimit before, less;
    struct zt_err err;
    struct made k;
    struct zt_ckpt c;
    make(&k, MOST_FILES);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    less = (struct rlimit){LIMIT, before.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &less) == 0);
    CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
    check_range(&c, &k, ZT_CKPT_PARAM, 0, A);
    check_range(&c, &k, ZT_CKPT_M, 0, A);
    zt_ckpt_close(&c);
    CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
    CHECK_OK(zt_ckpt_verify(&c, &err), err);
    zt_ckpt_close(&c);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    unmake(&k);
}

/* Too many open files: nothing is said about the checkpoint. */
TEST(checkpoint_that_cannot_be_read_now_is_not_damaged)
{
    struct rlimit before, none;
    struct zt_err err;
    struct made k;
    struct zt_ckpt c, other;
    float out[10];
    make(&k, 2);
    CHECK_OK(zt_ckpt_open(k.dir, &c, &err), err);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = (struct rlimit){0, before.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    const int opened = zt_ckpt_open(k.dir, &other, &err);
    const int got = zt_ckpt_read_f32(&c, &c.m.tensors[0], ZT_CKPT_PARAM, 0, 10, out, &err);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK_INT(opened, ZT_EIO);
    CHECK_INT(got, ZT_EIO);
    CHECK(strstr(err.msg, "rank-00000.safetensors: Too many open files"));
    CHECK_OK(zt_ckpt_read_f32(&c, &c.m.tensors[0], ZT_CKPT_PARAM, 0, 10, out, &err), err);
    zt_ckpt_close(&c);
    unmake(&k);
}

TEST(checkpoint_names_the_missing_or_cut_file)
{
    struct made k;
    struct zt_ckpt c;
    struct zt_err err;
    char path[128];
    make(&k, 3);
    snprintf(path, sizeof path, "%s/rank-00002.safetensors", k.dir);
    CHECK(truncate(path, 1000) == 0);
    CHECK_INT(zt_ckpt_open(k.dir, &c, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "rank-00002.safetensors: has 1000 bytes, but the manifest says"));
    CHECK(unlink(path) == 0);
    CHECK_INT(zt_ckpt_open(k.dir, &c, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "rank-00002.safetensors: No such file"));
    flip(&k, ZT_CKPT_MANIFEST, 100);
    CHECK_INT(zt_ckpt_open(k.dir, &c, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "manifest.json: its checksum is wrong"));
    unmake(&k);
}

/* A text that a stranger made, with its right checksum. */
static void check_refused(const char *body, const char *message)
{
    struct zt_str text = {0};
    struct zt_manifest m;
    struct zt_err err;
    struct zt_ckpt_sum sum = zt_ckpt_sum_of(body, strlen(body));
    zt_str_puts(&text, "{\"sum\": \"");
    for (int i = 0; i < 16; i++)
        zt_str_printf(&text, "%02x", sum.bytes[i]);
    zt_str_printf(&text, "\",\n%s", body);
    int rc = zt_manifest_parse("x", text.buf, text.len, &m, &err);
    zt_str_release(&text);
    if (rc != ZT_EINPUT || !strstr(err.msg, message))
        FAIL("\"%s\" is not in \"%s\"", message, rc ? err.msg : "(accepted)");
}

/* The text of a good one, with `from` replaced by `to`. */
static void check_changed(const struct made *k, const char *from, const char *to,
                          const char *message)
{
    struct zt_str text = {0}, body = {0};
    zt_manifest_print(&k->m, &text);
    const char *start = strchr(text.buf, '\n') + 1, *at = strstr(start, from);
    CHECK(at);
    zt_str_add(&body, start, (size_t)(at - start));
    zt_str_puts(&body, to);
    zt_str_puts(&body, at + strlen(from));
    check_refused(body.buf, message);
    zt_str_release(&text);
    zt_str_release(&body);
}

TEST(checkpoint_manifest_refuses_what_is_not_consistent)
{
    struct made k;
    make(&k, 2);
    check_refused("", "line 2");
    check_refused("\"format\": \"x\"}", "\"format\" is not");
    check_changed(&k, "\"version\": 1", "\"version\": 2", "version 2; this program reads up to 1");
    check_changed(&k, "\"step\": 200", "\"step\": -1", "\"step\" is missing, or no whole number");
    check_changed(&k, "\"position\": 6400", "\"position\": 1.5", "\"position\"");
    check_changed(&k, "\"updates\": 198", "\"updates\": 9223372036854775807",
                  "\"updates\" is missing, or no whole number from 0 to 2^53");
    check_changed(&k, "\"scale\": 0.333333", "\"scale\": 1e300, \"x\": 0.3", "no fp32 number");
    check_changed(&k, "\"shard\": 2", "\"shard\": 0", "\"shard\"");
    check_changed(&k, "\"block_bytes\": 4194304", "\"block_bytes\": 1", "\"block_bytes\" is 1");
    check_changed(&k, "\"block_bytes\": 4194304", "\"block_bytes\": 67108864",
                  "one for each block");
    check_changed(&k, "rank-00001.safe", "../../x", "is no name of a file in this folder");
    check_changed(&k, "rank-00001.safetensors", "manifest.json", "is no name of a file");
    check_changed(&k, "\"sums\": [\"", "\"sums\": [\"x", "a checksum is not 32 digits");
    check_changed(&k, "\"file\": 1", "\"file\": 2", "\"file\" is 2; at most 1");
    check_changed(&k, "\"begin\": 0", "\"begin\": 1", "do not follow on 0");
    check_changed(&k, "\"offset\": 4096", "\"offset\": 9223372036854775807", "\"offset\"");
    check_changed(&k, "\"offset\": 4096", "\"offset\": 9007199254740992", "lie outside of rank");
    check_changed(&k, "\"shape\": [3001, 501]", "\"shape\": [3001, 502]", "its pieces end at");
    check_changed(&k, "\"shape\": [3001, 501]", "\"shape\": [4294967296, 4294967296]",
                  "is no size");
    check_changed(&k, "\"name\": \"b\"", "\"name\": \"h.0.a\"", "stands there twice");
    check_changed(&k, "\"stage\": 2", "\"stage\": 2, \"stage\": 2", "duplicate object key");
    unmake(&k);
}

TEST_MAIN()
