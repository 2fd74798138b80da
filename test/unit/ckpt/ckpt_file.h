/* ckpt_file.h: a checkpoint for tests: weights that were read elsewhere, cut over two files. */
#ifndef ZT_TEST_CKPT_FILE_H
#define ZT_TEST_CKPT_FILE_H

#include "base/io.h"
#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"

enum { CKPT_FILES = 2 };

static inline int64_t ckpt_cut(int64_t n, int file)
{
    return file == 0 ? 0 : file == CKPT_FILES ? n : ZT_MIN(n, n / CKPT_FILES + 1);
}

static inline void ckpt_describe(struct zt_manifest *m, const struct zt_model *model,
                                 const char *recipe, int64_t step)
{
    memset(m, 0, sizeof *m);
    m->program = "test";
    m->recipe = recipe;
    m->optimizer = "AdamW";
    m->mesh = (struct zt_mesh){{1, 1, CKPT_FILES, 1, 1}};
    m->stage = 3;
    m->at = (struct zt_ckpt_progress){.step = step,
                                      .updates = step,
                                      .position = 4 * step,
                                      .samples = 4,
                                      .seq_len = 6,
                                      .seed = 1,
                                      .best_val_loss = (double)NAN};
    m->block_bytes = ZT_CKPT_BLOCK_BYTES;
    m->n_files = CKPT_FILES;
    m->n_tensors = model->n_params;
    m->files = zt_arena_alloc(&m->arena, CKPT_FILES, sizeof *m->files);
    m->tensors = zt_arena_alloc(&m->arena, (size_t)model->n_params, sizeof *m->tensors);
    for (int i = 0; i < model->n_params; i++) {
        const struct zt_param_spec *p = &model->params[i];
        struct zt_ckpt_tensor *t = &m->tensors[i];
        struct zt_ckpt_piece *pieces = zt_arena_alloc(&m->arena, CKPT_FILES, sizeof *pieces);
        *t = (struct zt_ckpt_tensor){.name = p->name, .n_dims = p->n_dims, .n_elems = p->n_elems};
        memcpy(t->dims, p->dims, (size_t)p->n_dims * sizeof *p->dims);
        for (int f = 0; f < CKPT_FILES; f++)
            pieces[f] = (struct zt_ckpt_piece){
                .file = f, .begin = ckpt_cut(p->n_elems, f), .end = ckpt_cut(p->n_elems, f + 1)};
        t->parts[ZT_CKPT_PARAM] = (struct zt_ckpt_part){ZT_F32, CKPT_FILES, pieces};
    }
}

static inline int ckpt_write_file(struct zt_manifest *m, const struct zt_weights *w, int file,
                                  const char *dir, struct zt_err *err)
{
    const size_t n = (size_t)m->n_tensors;
    struct zt_shard_piece *pieces = zt_arena_alloc(&m->arena, n, sizeof *pieces);
    size_t *offsets = zt_arena_alloc(&m->arena, n, sizeof *offsets);
    struct zt_ckpt_file *f = &m->files[file];
    struct zt_str header = {0}, path = {0};
    struct zt_shard_writer *out;
    for (size_t i = 0; i < n; i++) {
        const struct zt_ckpt_piece *p = &m->tensors[i].parts[ZT_CKPT_PARAM].pieces[file];
        pieces[i] =
            (struct zt_shard_piece){ZT_CKPT_PARAM, &m->tensors[i], ZT_F32, p->begin, p->end};
    }
    zt_shard_header(pieces, (int)n, &header, offsets, &f->bytes);
    f->name = zt_arena_printf(&m->arena, "rank-%05d.safetensors", file);
    zt_str_printf(&path, "%s/%s", dir, f->name);
    int rc = zt_shard_create(path.buf, f->bytes, &out, err);
    if (!rc)
        rc = zt_shard_put(out, header.buf, header.len, err);
    for (size_t i = 0; i < n && !rc; i++) {
        const int64_t begin = pieces[i].begin, k = pieces[i].end - begin;
        float *x = zt_xcalloc((size_t)k + 1, sizeof *x);
        m->tensors[i].parts[ZT_CKPT_PARAM].pieces[file].offset = offsets[i];
        zt_weights_read_f32(w, (int)i, begin, k, x);
        rc = zt_shard_put(out, x, (size_t)k * sizeof *x, err);
        free(x);
    }
    if (!rc)
        rc = zt_shard_finish(out, &f->sums, &f->n_sums, err);
    zt_str_release(&header);
    zt_str_release(&path);
    return rc;
}

/* Write a whole checkpoint into a folder that is there. */
static inline int ckpt_write(const char *dir, const struct zt_model *model,
                             const struct zt_weights *w, const char *recipe, int64_t step,
                             struct zt_err *err)
{
    struct zt_manifest m;
    struct zt_str text = {0}, path = {0};
    int rc = 0;
    ckpt_describe(&m, model, recipe, step);
    for (int f = 0; f < CKPT_FILES && !rc; f++)
        rc = ckpt_write_file(&m, w, f, dir, err);
    if (!rc) {
        zt_manifest_print(&m, &text);
        zt_str_printf(&path, "%s/" ZT_CKPT_MANIFEST, dir);
        rc = zt_write_file_atomic(path.buf, text.buf, text.len, err);
    }
    for (int f = 0; f < CKPT_FILES; f++)
        free(m.files[f].sums);
    zt_str_release(&text);
    zt_str_release(&path);
    zt_manifest_release(&m);
    return rc;
}

#endif
