/* From a checkpoint to a Hugging Face folder, bit for bit; which checkpoint a path means. */
#include "harness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/export.h"
#include "ckpt/folder.h"
#include "ckpt/hf.h"
#include "unit/ckpt/ckpt_file.h"
#include "unit/models.h"

#define FIXTURE "test/cases/fixture_gpt2"

struct bench {
    char dir[64];
    struct zt_arena arena;
    struct zt_model *model;
    struct zt_weights weights;
    struct zt_ckpt ckpt;
    struct zt_str notes;
    struct zt_err err;
};

static struct zt_model *make_model(struct zt_arena *a, int n_layer, int64_t n_inner)
{
    struct zt_model_config cfg = gpt2_fixture;
    struct zt_model *m = NULL;
    struct zt_err err;
    cfg.n_layer = n_layer;
    cfg.n_inner = n_inner;
    if (zt_model_build(&cfg, a, &m, &err))
        abort();
    return m;
}

static const char *step_path(struct bench *b, int64_t step)
{
    struct zt_str path = {0};
    zt_ckpt_step_path(b->dir, step, &path);
    const char *out = zt_arena_strdup(&b->arena, path.buf);
    zt_str_release(&path);
    return out;
}

static void add_step(struct bench *b, int64_t step)
{
    const char *path = step_path(b, step);
    CHECK(mkdir(path, 0777) == 0);
    CHECK_OK(ckpt_write(path, b->model, &b->weights, "recipe", step, &b->err), b->err);
}

static void bench_init(struct bench *b)
{
    memset(b, 0, sizeof *b);
    b->model = make_model(&b->arena, 2, 0);
    CHECK_OK(zt_weights_open(FIXTURE, b->model, &b->weights, &b->err), b->err);
    snprintf(b->dir, sizeof b->dir, "build/test-export-XXXXXX");
    if ((mkdir("build", 0777) && access("build", W_OK)) || !mkdtemp(b->dir))
        FAIL("no folder under build/");
    add_step(b, 9);
    add_step(b, 10);
}

static void bench_release(struct bench *b)
{
    char cmd[128];
    zt_weights_close(&b->weights);
    zt_str_release(&b->notes);
    zt_arena_release(&b->arena);
    snprintf(cmd, sizeof cmd, "rm -r '%s'", b->dir);
    CHECK_INT(system(cmd), 0);
}

static int pick(struct bench *b, const char *path, int64_t step)
{
    zt_str_reset(&b->notes);
    struct zt_export_tried tried = {0};
    int rc = zt_export_pick(path, step, &tried, &b->ckpt, &b->notes, &b->err);
    free(tried.steps);
    return rc;
}

static void picks(struct bench *b, const char *path, int64_t step, int64_t want)
{
    CHECK_OK(pick(b, path, step), b->err);
    CHECK_INT(b->ckpt.m.at.step, want);
    zt_ckpt_close(&b->ckpt);
}

static void remove_step(struct bench *b, int64_t step)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", step_path(b, step));
    CHECK_INT(system(cmd), 0);
}

static void picks_next(struct bench *b, struct zt_export_tried *tried, int64_t want)
{
    CHECK_OK(zt_export_pick(b->dir, ZT_EXPORT_NEWEST, tried, &b->ckpt, &b->notes, &b->err), b->err);
    CHECK_INT(b->ckpt.m.at.step, want);
    zt_ckpt_close(&b->ckpt);
}

/* A run goes on: the one that was picked is removed, and there is a newer one. None is tried twice. */
TEST(export_picks_what_was_not_tried)
{
    struct bench b;
    struct zt_export_tried tried = {0};
    bench_init(&b);
    picks_next(&b, &tried, 10);
    remove_step(&b, 10);
    add_step(&b, 11);
    picks_next(&b, &tried, 11);
    picks_next(&b, &tried, 9);
    CHECK_INT(b.notes.len, 0);
    CHECK_INT(zt_export_pick(b.dir, ZT_EXPORT_NEWEST, &tried, &b.ckpt, &b.notes, &b.err),
              ZT_EINPUT);
    CHECK(strstr(b.err.msg, "none of its 3 checkpoints is valid"));
    free(tried.steps);
    bench_release(&b);
}

/* By its folder's number it would be the newest. */
TEST(export_passes_over_a_folder_that_was_renamed)
{
    struct bench b;
    bench_init(&b);
    CHECK(rename(step_path(&b, 9), step_path(&b, 12)) == 0);
    picks(&b, b.dir, ZT_EXPORT_NEWEST, 10);
    CHECK(strstr(zt_str_get(&b.notes), "step-000012: holds the checkpoint of step 9"));
    CHECK_INT(pick(&b, step_path(&b, 12), ZT_EXPORT_NEWEST), ZT_EINPUT);
    CHECK_INT(pick(&b, b.dir, 12), ZT_EINPUT);
    bench_release(&b);
}

/* Newest by number: 10 after 9. */
TEST(export_picks)
{
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    CHECK(zt_export_is_run(b.dir) && !zt_ckpt_is_one(b.dir));
    CHECK(zt_ckpt_is_one(step_path(&b, 9)) && !zt_export_is_run(step_path(&b, 9)));
    picks(&b, b.dir, ZT_EXPORT_NEWEST, 10);
    CHECK_STR(zt_str_get(&b.notes), "");
    picks(&b, b.dir, 9, 9);
    picks(&b, step_path(&b, 9), ZT_EXPORT_NEWEST, 9);
    picks(&b, step_path(&b, 9), 9, 9);
    CHECK_INT(pick(&b, step_path(&b, 9), 10), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "is the checkpoint of step 9, not of 10"));
    CHECK_INT(pick(&b, b.dir, 8), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "no checkpoint of step 8; there are 2, from 9 to 10"));
    CHECK_INT(pick(&b, "test", ZT_EXPORT_NEWEST), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "no checkpoint: it has neither manifest.json nor folders step-N"));
    bench_release(&b);
}

TEST(export_passes_over_what_is_not_valid)
{
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    const char *file = zt_arena_printf(&b.arena, "%s/rank-00001.safetensors", step_path(&b, 10));
    CHECK(truncate(file, 100) == 0);
    picks(&b, b.dir, ZT_EXPORT_NEWEST, 9);
    CHECK(strstr(zt_str_get(&b.notes), "rank-00001.safetensors: has 100 bytes"));
    CHECK(strstr(zt_str_get(&b.notes), "it is passed over"));
    CHECK_INT(pick(&b, b.dir, 10), ZT_EINPUT);
    CHECK(unlink(zt_arena_printf(&b.arena, "%s/manifest.json", step_path(&b, 9))) == 0);
    CHECK_INT(pick(&b, b.dir, ZT_EXPORT_NEWEST), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "none of its 2 checkpoints is valid"));
    bench_release(&b);
}

TEST(export_matches)
{
    struct bench b;
    const struct zt_ckpt_tensor *tensors[64];
    bench_init(&b);
    RETURN_IF_FAILED();
    CHECK_OK(pick(&b, b.dir, 9), b.err);
    CHECK_OK(zt_export_match(&b.ckpt, b.model, tensors, &b.err), b.err);
    CHECK_STR(tensors[0]->name, "wte.weight");
    CHECK_INT(zt_export_match(&b.ckpt, make_model(&b.arena, 3, 0), tensors, &b.err), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "no tensor h.2.ln_1.weight"));
    CHECK_INT(zt_export_match(&b.ckpt, make_model(&b.arena, 1, 0), tensors, &b.err), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "28 tensors, but the model of its recipe has 16"));
    CHECK_INT(zt_export_match(&b.ckpt, make_model(&b.arena, 2, 20), tensors, &b.err), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "h.0.mlp.c_fc.weight has another shape"));
    zt_ckpt_close(&b.ckpt);
    bench_release(&b);
}

struct from_ckpt {
    struct zt_ckpt *c;
    const struct zt_ckpt_tensor *tensors[64];
};

static int read_ckpt(void *ctx, int param, int64_t begin, int64_t n, float *out, struct zt_err *err)
{
    struct from_ckpt *f = ctx;
    return zt_ckpt_read_f32(f->c, f->tensors[param], ZT_CKPT_PARAM, begin, n, out, err);
}

static int write_folder(struct bench *b, const char *out)
{
    struct from_ckpt from = {&b->ckpt, {NULL}};
    struct zt_hf_source source = {&from, read_ckpt};
    struct zt_hf_result result;
    struct zt_hf_opts opts = {.dir = out,
                              .model = b->model,
                              .model_type = "gpt2",
                              .dtype = ZT_F32,
                              .max_shard_bytes = 1000};
    int rc = zt_export_match(&b->ckpt, b->model, from.tensors, &b->err);
    return rc ? rc : zt_hf_write(&opts, &source, &result, &b->err);
}

TEST(export_keeps_every_bit)
{
    struct bench b;
    struct zt_weights again;
    bench_init(&b);
    RETURN_IF_FAILED();
    const char *out = zt_arena_printf(&b.arena, "%s/out", b.dir);
    CHECK_OK(pick(&b, b.dir, ZT_EXPORT_NEWEST), b.err);
    CHECK_OK(write_folder(&b, out), b.err);
    zt_ckpt_close(&b.ckpt);
    CHECK_OK(zt_weights_open(out, b.model, &again, &b.err), b.err);
    for (int i = 0; i < b.model->n_params; i++) {
        float got[64], want[64];
        const int64_t n = b.model->params[i].n_elems;
        zt_weights_read_f32(&again, i, 0, n, got);
        zt_weights_read_f32(&b.weights, i, 0, n, want);
        if (memcmp(got, want, (size_t)n * sizeof *got) != 0)
            FAIL("%s differs", b.model->params[i].name);
    }
    zt_weights_close(&again);
    bench_release(&b);
}

/* A flipped bit is found while it is exported, and no folder is left. */
TEST(export_of_a_damaged_file)
{
    struct bench b;
    bench_init(&b);
    RETURN_IF_FAILED();
    const char *out = zt_arena_printf(&b.arena, "%s/out", b.dir);
    const char *file = zt_arena_printf(&b.arena, "%s/rank-00000.safetensors", step_path(&b, 10));
    int fd = open(file, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, "x", 1, 4096 + 77) == 1 && close(fd) == 0);
    CHECK_OK(pick(&b, b.dir, ZT_EXPORT_NEWEST), b.err);
    CHECK_INT(write_folder(&b, out), ZT_EINPUT);
    CHECK(strstr(b.err.msg, "rank-00000.safetensors: the checksum of bytes"));
    CHECK(access(out, F_OK) != 0);
    zt_ckpt_close(&b.ckpt);
    bench_release(&b);
}

TEST_MAIN()
