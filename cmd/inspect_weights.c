/*
 * Weights: safetensors files, folders of Hugging Face, model files of llm.c.
 */
#include <dirent.h>
#include <errno.h>

#include "base/arena.h"
#include "ckpt/llmc.h"
#include "ckpt/safetensors.h"
#include "inspect.h"
#include "model_in.h"

enum { CHUNK = 4096 }; /* elements */

/* ---- safetensors ---- */

static int64_t count_not_finite(const struct zt_st_tensor *t)
{
    float x[CHUNK];
    int64_t count = 0;
    for (int64_t i = 0; i < t->n_elems; i += CHUNK) {
        int64_t n = ZT_MIN(t->n_elems - i, (int64_t)CHUNK);
        zt_st_read_f32(t, i, n, x);
        for (int64_t j = 0; j < n; j++)
            count += (zt_f32_bits(x[j]) & 0x7f800000u) == 0x7f800000u;
    }
    return count;
}

/* Values that are NaN or infinite belong to no trained model. */
static void check_finite(struct inspection *in, const struct zt_st_file *f)
{
    char text[512];
    for (int i = 0; i < f->n_tensors; i++) {
        const struct zt_st_tensor *t = &f->tensors[i];
        int64_t bad = t->dtype < 0 ? 0 : count_not_finite(t);
        if (!bad)
            continue;
        snprintf(text, sizeof text, "%.200s: %.200s: %lld of %lld values are not finite", f->path,
                 t->name, (long long)bad, (long long)t->n_elems);
        inspect_problem(in, text);
    }
}

static json_t *shape_json(const struct zt_st_tensor *t)
{
    json_t *shape = json_array();
    for (int i = 0; i < t->n_dims; i++)
        json_array_append_new(shape, json_integer(t->dims[i]));
    return shape;
}

struct totals {
    json_t *tensors;
    int64_t n_elems;
    size_t bytes;
};

/* `file` NULL: there is but one. */
static void add_tensors(struct totals *sum, const struct zt_st_file *f, const char *file)
{
    for (int i = 0; i < f->n_tensors; i++) {
        const struct zt_st_tensor *t = &f->tensors[i];
        json_t *row = json_pack("{s:s, s:s, s:o}", "name", t->name, "dtype", t->dtype_name, "shape",
                                shape_json(t));
        if (file)
            json_object_set_new(row, "file", json_string(file));
        json_array_append_new(sum->tensors, row);
        sum->n_elems += t->n_elems;
        sum->bytes += t->bytes;
    }
}

static void set_totals(struct inspection *in, struct totals *sum)
{
    inspect_int(in, "elements", sum->n_elems);
    inspect_int(in, "bytes", (int64_t)sum->bytes);
    inspect_int(in, "tensor_count", (int64_t)json_array_size(sum->tensors));
    inspect_set(in, "tensors", sum->tensors);
}

int inspect_safetensors(struct inspection *in, const char *path, struct zt_err *err)
{
    struct zt_st_file f;
    struct totals sum = {0};
    int rc = zt_st_open(path, &f, err);
    if (rc)
        return rc;
    sum.tensors = json_array();
    inspect_str(in, "kind", "safetensors file");
    add_tensors(&sum, &f, NULL);
    set_totals(in, &sum);
    if (in->verify)
        check_finite(in, &f);
    zt_st_close(&f);
    return 0;
}

/* ---- folders ---- */

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_safetensors(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0;
}

/* Each file of weights by itself; what is wrong with one is a problem, and the others are shown. */
static int add_files(struct inspection *in, const char *dir, struct totals *sum, int *n_files,
                     struct zt_err *err)
{
    struct dirent **entries;
    int n = scandir(dir, &entries, is_safetensors, by_name);
    if (n < 0)
        return zt_err_errno(err, ZT_EINPUT, "%s", dir);
    for (int i = 0; i < n; i++) {
        struct zt_str path = {0};
        struct zt_st_file f;
        struct zt_err why;
        zt_str_printf(&path, "%s/%s", dir, entries[i]->d_name);
        if (zt_st_open(path.buf, &f, &why)) {
            inspect_problem(in, why.msg);
        } else {
            add_tensors(sum, &f, n > 1 ? entries[i]->d_name : NULL);
            if (in->verify)
                check_finite(in, &f);
            zt_st_close(&f);
        }
        zt_str_release(&path);
        free(entries[i]);
    }
    free(entries);
    *n_files = n;
    return 0;
}

/* Does config.json tell of a model that we know, and do the weights fit it? */
static void check_model(struct inspection *in, const char *dir)
{
    struct model_in m;
    struct zt_err err;
    struct zt_str notes = {0};
    struct zt_export_tried tried = {0}; /* a folder of weights: nothing is tried */
    int rc = model_in_open(dir, ZT_EXPORT_NEWEST, &tried, &m, &notes, &err);
    zt_str_release(&notes);
    if (rc == ZT_EUNSUPPORTED) {
        inspect_str(in, "model", err.msg);
    } else if (rc) {
        inspect_problem(in, err.msg);
    } else {
        inspect_str(in, "model", m.r->model.model_type);
        inspect_int(in, "parameters", m.model->n_elems);
        inspect_int(in, "layers", m.model->cfg.n_layer);
        inspect_int(in, "heads", m.model->cfg.n_head);
        inspect_int(in, "width", m.model->cfg.n_embd);
        inspect_int(in, "positions", m.model->cfg.n_positions);
        inspect_int(in, "vocabulary", m.model->cfg.vocab_size);
        inspect_set(in, "tied_head", json_boolean(m.model->cfg.tie_embeddings));
        model_in_close(&m);
    }
}

int inspect_hf_folder(struct inspection *in, const char *dir, struct zt_err *err)
{
    struct totals sum = {0};
    int n_files;
    inspect_str(in, "kind", "Hugging Face folder");
    check_model(in, dir);
    sum.tensors = json_array();
    int rc = add_files(in, dir, &sum, &n_files, err);
    if (rc) {
        json_decref(sum.tensors);
        return rc;
    }
    inspect_int(in, "file_count", n_files);
    set_totals(in, &sum);
    return 0;
}

/* ---- llm.c ---- */

static void check_llmc_finite(struct inspection *in, const struct zt_mapped *map,
                              const struct zt_llmc_header *h)
{
    const struct zt_st_tensor all = {
        .dtype = h->dtype,
        .n_elems = (int64_t)((map->bytes - ZT_LLMC_HEADER_BYTES) / zt_dtype_bytes(h->dtype)),
        .data = map->data + ZT_LLMC_HEADER_BYTES,
    };
    char text[512];
    int64_t bad = count_not_finite(&all);
    if (!bad)
        return;
    snprintf(text, sizeof text, "%.300s: %lld of %lld values are not finite", in->path,
             (long long)bad, (long long)all.n_elems);
    inspect_problem(in, text);
}

int inspect_llmc_model(struct inspection *in, const struct zt_mapped *map, struct zt_err *err)
{
    struct zt_llmc_header h;
    int rc = zt_llmc_check(in->path, map->data, map->bytes, &h, err);
    if (rc)
        return rc;
    int64_t padding = (h.padded_vocab_size - h.vocab_size) * h.n_embd;
    int64_t elems =
        (int64_t)((map->bytes - ZT_LLMC_HEADER_BYTES) / zt_dtype_bytes(h.dtype)) - padding;
    inspect_str(in, "kind", "llm.c model file");
    inspect_str(in, "model", "gpt2");
    inspect_str(in, "dtype", zt_dtype_name(h.dtype));
    inspect_int(in, "parameters", elems);
    inspect_int(in, "layers", h.n_layer);
    inspect_int(in, "heads", h.n_head);
    inspect_int(in, "width", h.n_embd);
    inspect_int(in, "positions", h.n_positions);
    inspect_int(in, "vocabulary", h.vocab_size);
    inspect_int(in, "padded_vocabulary", h.padded_vocab_size);
    inspect_int(in, "bytes", (int64_t)map->bytes);
    if (in->verify)
        check_llmc_finite(in, map, &h);
    return 0;
}
