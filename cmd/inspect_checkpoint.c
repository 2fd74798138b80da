/*
 * Checkpoints: one, or those of a run.
 */
#include <math.h>

#include "ckpt/export.h"
#include "ckpt/folder.h"
#include "inspect.h"

static void tell_digest(struct inspection *in, const char *key, const char *text)
{
    struct zt_ckpt_sum sum = zt_ckpt_sum_of(text, strlen(text));
    char hex[2 * sizeof sum.bytes + 1];
    for (size_t i = 0; i < sizeof sum.bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum.bytes[i]);
    inspect_str(in, key, hex);
}

/* The axes of the mesh that are larger than one. */
static void tell_mesh(struct inspection *in, const struct zt_mesh *mesh)
{
    static const char *const names[ZT_N_AXES] = {"pipeline", "replicate", "shard", "context",
                                                 "tensor"};
    struct zt_str text = {0};
    for (int a = 0; a < ZT_N_AXES; a++) {
        if (mesh->size[a] > 1)
            zt_str_printf(&text, "%s%s %d", text.len ? " x " : "", names[a], mesh->size[a]);
    }
    inspect_int(in, "ranks", zt_mesh_world(mesh));
    if (text.len)
        inspect_str(in, "mesh", text.buf);
    zt_str_release(&text);
}

static void tell_progress(struct inspection *in, const struct zt_ckpt_progress *at)
{
    inspect_int(in, "step", at->step);
    inspect_int(in, "updates", at->updates);
    inspect_int(in, "skipped", at->skipped);
    inspect_int(in, "data_position", at->position);
    inspect_int(in, "data_samples", at->samples);
    inspect_int(in, "sequence", at->seq_len);
    inspect_int(in, "seed", at->seed);
    if (at->has_loss_scale)
        inspect_set(in, "loss_scale", json_real(at->loss_scale));
    if (isfinite(at->best_val_loss))
        inspect_set(in, "best_val_loss", json_real(at->best_val_loss));
}

static json_t *tensor_json(const struct zt_ckpt_tensor *t)
{
    json_t *shape = json_array();
    struct zt_str parts = {0};
    for (int i = 0; i < t->n_dims; i++)
        json_array_append_new(shape, json_integer(t->dims[i]));
    for (int k = 0; k < ZT_CKPT_N_PARTS; k++) {
        if (t->parts[k].n)
            zt_str_printf(&parts, "%s%s", parts.len ? " " : "",
                          zt_ckpt_part_name((enum zt_ckpt_part_kind)k));
    }
    json_t *row = json_pack("{s:s, s:s, s:o, s:s, s:i}", "name", t->name, "dtype",
                            zt_dtype_name(t->parts[ZT_CKPT_PARAM].dtype), "shape", shape, "parts",
                            zt_str_get(&parts), "pieces", t->parts[ZT_CKPT_PARAM].n);
    zt_str_release(&parts);
    return row;
}

static void tell(struct inspection *in, const struct zt_manifest *m)
{
    json_t *files = json_array(), *tensors = json_array();
    int64_t bytes = 0, elems = 0;
    for (int i = 0; i < m->n_files; i++) {
        const struct zt_ckpt_file *f = &m->files[i];
        bytes += (int64_t)f->bytes;
        json_array_append_new(files,
                              json_pack("{s:s, s:I, s:I}", "name", f->name, "bytes",
                                        (json_int_t)f->bytes, "blocks", (json_int_t)f->n_sums));
    }
    for (int i = 0; i < m->n_tensors; i++) {
        elems += m->tensors[i].n_elems;
        json_array_append_new(tensors, tensor_json(&m->tensors[i]));
    }
    tell_progress(in, &m->at);
    inspect_str(in, "optimizer", m->optimizer);
    inspect_int(in, "stage", m->stage);
    inspect_str(in, "dtype", zt_dtype_name(m->dtype));
    tell_mesh(in, &m->mesh);
    tell_digest(in, "recipe_digest", m->recipe);
    inspect_str(in, "program", m->program);
    inspect_int(in, "parameters", elems);
    inspect_int(in, "bytes", bytes);
    inspect_int(in, "tensor_count", m->n_tensors);
    inspect_set(in, "files", files);
    inspect_set(in, "tensors", tensors);
}

int inspect_checkpoint(struct inspection *in, const char *path, struct zt_err *err)
{
    struct zt_ckpt c;
    struct zt_err bad;
    int rc = zt_ckpt_open(path, &c, err);
    if (rc)
        return rc;
    inspect_str(in, "kind", "checkpoint");
    tell(in, &c.m);
    if (in->verify && zt_ckpt_verify(&c, &bad))
        inspect_problem(in, bad.msg);
    zt_ckpt_close(&c);
    return 0;
}

/* Is the checkpoint of a run whole? What is wrong with it is a problem. */
static bool check_step(struct inspection *in, const char *path)
{
    struct zt_ckpt c;
    struct zt_err err;
    int rc = zt_ckpt_open(path, &c, &err);
    if (!rc) {
        if (in->verify)
            rc = zt_ckpt_verify(&c, &err);
        zt_ckpt_close(&c);
    }
    if (rc)
        inspect_problem(in, err.msg);
    return rc == 0;
}

int inspect_run(struct inspection *in, const char *dir, struct zt_err *err)
{
    int64_t *steps;
    int n;
    struct zt_ckpt c;
    struct zt_str newest = {0};
    int rc = zt_ckpt_steps(dir, &steps, &n, err);
    if (rc)
        return rc;
    json_t *rows = json_array();
    for (int i = 0; i < n; i++) {
        struct zt_str path = {0};
        zt_ckpt_step_path(dir, steps[i], &path);
        bool valid = check_step(in, path.buf);
        if (valid) {
            zt_str_reset(&newest);
            zt_str_puts(&newest, path.buf);
        }
        json_array_append_new(
            rows, json_pack("{s:I, s:b}", "step", (json_int_t)steps[i], "valid", (int)valid));
        zt_str_release(&path);
    }
    free(steps);
    inspect_str(in, "kind", "checkpoints of a run");
    inspect_set(in, "checkpoints", rows);
    if (newest.len)
        rc = zt_ckpt_open(newest.buf, &c, err);
    if (newest.len && !rc) {
        inspect_str(in, "newest", newest.buf);
        tell(in, &c.m);
        zt_ckpt_close(&c);
    }
    zt_str_release(&newest);
    return rc;
}
