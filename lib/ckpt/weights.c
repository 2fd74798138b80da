#include "ckpt/safetensors.h"

#include <jansson.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_INDEX_BYTES = 100000000, MAX_SHARDS = 4096, MAX_LISTED_BYTES = 2800 };

/* Problems found so far: those that fit a message, the rest as a number. */
struct problems {
    struct zt_str text;
    int n, n_unlisted;
};

struct matcher {
    const char *dir;
    const struct zt_model *model;
    struct zt_weights *w;
    size_t files_cap;
    json_t *index;   /* weight_map, or NULL: a single file */
    json_t *shards;  /* shard name -> index in w->files, or -1: cannot be opened */
    bool incomplete; /* a shard could not be opened: what is missing is no news */
    struct problems problems;
    struct zt_err *err; /* scratch until the end */
};

static void problem(struct matcher *k, const char *fmt, ...) ZT_PRINTF(2, 3);

static void problem(struct matcher *k, const char *fmt, ...)
{
    char line[512];
    struct problems *p = &k->problems;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    p->n++;
    if (p->text.len + strlen(line) < MAX_LISTED_BYTES)
        zt_str_printf(&p->text, "\n  %s", line);
    else
        p->n_unlisted++;
}

static int report(struct matcher *k, struct zt_err *err)
{
    struct problems *p = &k->problems;
    if (!p->n)
        return 0;
    if (p->n_unlisted)
        zt_str_printf(&p->text, "\n  and %d more", p->n_unlisted);
    return zt_err_set(err, ZT_EINPUT, "%.1000s: the weights do not fit the model:%s", k->dir,
                      zt_str_get(&p->text));
}

static const char *skip_prefix(const char *s, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : s;
}

/* ---- files ---- */

static int open_file(struct matcher *k, const char *name)
{
    struct zt_str path = {0};
    struct zt_weights *w = k->w;
    zt_str_printf(&path, "%s/%s", k->dir, name);
    ZT_GROW(w->files, w->n_files + 1, k->files_cap);
    int rc = zt_st_open(path.buf, &w->files[w->n_files], k->err);
    if (!rc)
        w->n_files++;
    zt_str_release(&path);
    return rc;
}

/* A shard's name comes from a file: it must not lead out of the folder. */
static bool shard_name_ok(const char *name)
{
    return name && *name && name[0] != '.' && !strchr(name, '/') && strlen(name) < 256;
}

static int open_shards(struct matcher *k)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(k->index, tensor, value)
    {
        const char *shard = json_string_value(value);
        if (!shard_name_ok(shard)) {
            problem(k, "index: %.200s: \"%.200s\" is no name of a file in this folder", tensor,
                    shard ? shard : "");
            k->incomplete = true;
            continue;
        }
        if (json_object_get(k->shards, shard))
            continue;
        if (k->w->n_files == MAX_SHARDS)
            return zt_err_set(k->err, ZT_EINPUT, "%s: more than %d shards", k->dir, MAX_SHARDS);
        int at = k->w->n_files;
        if (open_file(k, shard)) {
            const char *why = skip_prefix(skip_prefix(k->err->msg, k->dir), "/");
            problem(k, "index: %.100s: shard %.350s", tensor, why);
            k->incomplete = true;
            at = -1;
        }
        if (json_object_set_new(k->shards, shard, json_integer(at)))
            return zt_err_set(k->err, ZT_ENOMEM, "%s: out of memory", k->dir);
    }
    return 0;
}

/* Index and shards must name each other's tensors. */
static void check_index(struct matcher *k)
{
    json_t *left = json_copy(k->index), *value;
    const char *name;
    for (int i = 0; i < k->w->n_files; i++) {
        const struct zt_st_file *f = &k->w->files[i];
        const char *shard = f->path + strlen(k->dir) + 1;
        for (int j = 0; j < f->n_tensors; j++) {
            name = f->tensors[j].name;
            const char *said = json_string_value(json_object_get(k->index, name));
            if (!said)
                problem(k, "%.200s: %.200s is not in the index", shard, name);
            else if (strcmp(said, shard) == 0)
                json_object_del(left, name);
        }
    }
    json_object_foreach(left, name, value)
    {
        const char *shard = json_string_value(value);
        const json_t *at = shard ? json_object_get(k->shards, shard) : NULL;
        if (at && json_integer_value(at) >= 0)
            problem(k, "index: %.200s is not in its shard %.200s", name, shard);
    }
    json_decref(left);
}

static int open_index(struct matcher *k, const char *path)
{
    struct zt_mapped map;
    json_error_t je;
    int rc = zt_map_file(path, &map, k->err);
    if (rc)
        return rc;
    json_t *root = NULL;
    if (map.bytes > MAX_INDEX_BYTES)
        rc = zt_err_set(k->err, ZT_EINPUT, "%s: larger than %d bytes", path, MAX_INDEX_BYTES);
    else if (!(root = json_loadb((const char *)map.data, map.bytes, JSON_REJECT_DUPLICATES, &je)))
        rc = zt_err_set(k->err, ZT_EINPUT, "%s:%d:%d: %s", path, je.line, je.column, je.text);
    else if (!json_is_object(json_object_get(root, "weight_map")))
        rc = zt_err_set(k->err, ZT_EINPUT, "%s: no weight_map", path);
    else
        k->index = json_incref(json_object_get(root, "weight_map"));
    json_decref(root);
    zt_unmap_file(&map);
    if (rc)
        return rc;
    k->shards = json_object();
    rc = open_shards(k);
    if (!rc)
        check_index(k);
    return rc;
}

static int open_files(struct matcher *k)
{
    static const char one[] = "model.safetensors", many[] = "model.safetensors.index.json";
    struct zt_str path = {0};
    int rc;
    zt_str_printf(&path, "%s/%s", k->dir, one);
    if (access(path.buf, F_OK) == 0) {
        rc = open_file(k, one);
    } else {
        zt_str_reset(&path);
        zt_str_printf(&path, "%s/%s", k->dir, many);
        if (access(path.buf, F_OK) == 0)
            rc = open_index(k, path.buf);
        else
            rc = zt_err_set(k->err, ZT_EINPUT,
                            "%s: neither %s nor %s is there; weights of another format must be "
                            "converted to safetensors first",
                            k->dir, one, many);
    }
    zt_str_release(&path);
    return rc;
}

/* ---- names ---- */

/* "PREFIXN.REST": REST, or NULL. */
static const char *behind_layer(const char *name, const char *prefix)
{
    const char *s = skip_prefix(name, prefix);
    size_t digits = strspn(s, "0123456789");
    return s != name && digits && s[digits] == '.' ? s + digits + 1 : NULL;
}

/*
 * Tensors of old files that are no parameters. GPT-2's hold each layer's causal mask, h.N.attn.bias
 * (1, 1, n, n), and the value put where it is 0; not to be mixed up with the weight
 * h.N.attn.c_attn.bias (case D09). Llama's hold the frequencies of the rotary angles.
 */
static bool is_buffer(const struct matcher *k, const struct zt_st_tensor *t)
{
    const struct zt_model_config *cfg = &k->model->cfg;
    if (cfg->type == ZT_MODEL_LLAMA) {
        const char *s = behind_layer(skip_prefix(t->name, "model."), "layers.");
        return s && strcmp(s, "self_attn.rotary_emb.inv_freq") == 0 &&
               t->n_elems == cfg->head_dim / 2;
    }
    const char *s = behind_layer(skip_prefix(t->name, "transformer."), "h.");
    if (!s)
        return false;
    if (strcmp(s, "attn.masked_bias") == 0)
        return t->n_elems == 1;
    return strcmp(s, "attn.bias") == 0 && t->n_dims == 4 && t->dims[0] == 1 && t->dims[1] == 1 &&
           t->dims[2] == t->dims[3];
}

static void check_tensor(struct matcher *k, const struct zt_param_spec *want,
                         const struct zt_st_tensor *t)
{
    bool same = t->n_dims == want->n_dims, transposed = same && t->n_dims == 2;
    for (int i = 0; same && i < t->n_dims; i++)
        same = t->dims[i] == want->dims[i];
    transposed = transposed && t->dims[0] == want->dims[1] && t->dims[1] == want->dims[0];
    if (t->dtype < 0)
        problem(k, "%.200s: type %s; weights are F32, F16 or BF16", t->name, t->dtype_name);
    if (!same) {
        char has[200], needs[200];
        problem(k, "%.200s: shape (%s), the model has (%s)%s", t->name,
                zt_fmt_dims(has, sizeof has, t->n_dims, t->dims),
                zt_fmt_dims(needs, sizeof needs, want->n_dims, want->dims),
                transposed ? " (transposed?)" : "");
    }
}

/* A head that shares the embedding may be stored again, with the same values (case S06). */
static void check_tied_head(struct matcher *k, const struct zt_st_tensor *head)
{
    const struct zt_st_tensor *emb = k->w->tensors[0];
    if (emb->dtype < 0)
        return; /* reported already */
    bool same = head->dtype >= 0 && head->n_dims == emb->n_dims &&
                memcmp(head->dims, emb->dims, (size_t)emb->n_dims * sizeof emb->dims[0]) == 0;
    float a[1024], b[1024];
    for (int64_t i = 0; same && i < emb->n_elems; i += 1024) {
        int64_t n = ZT_MIN((int64_t)1024, emb->n_elems - i);
        zt_st_read_f32(head, i, n, a);
        zt_st_read_f32(emb, i, n, b);
        same = memcmp(a, b, (size_t)n * sizeof a[0]) == 0;
    }
    if (!same)
        problem(k,
                "%.200s differs from %.200s, but tie_word_embeddings is true; set it to false or "
                "leave one out",
                head->name, emb->name);
}

/*
 * The embedding, parameter 0, is the head of a model that ties them. Of tensors that share memory
 * safetensors' save_model() stores the one whose name comes first: that may be the head alone.
 */
static void place_tied_head(struct matcher *k, const struct zt_st_tensor *head)
{
    if (k->w->tensors[0]) {
        check_tied_head(k, head);
    } else if (!k->incomplete) {
        k->w->tensors[0] = head;
        check_tensor(k, &k->model->params[0], head);
    }
}

/* Where a tensor goes: a parameter, the tied head, or nowhere. */
static void match_tensor(struct matcher *k, const struct zt_st_tensor *t,
                         const struct zt_st_tensor **tied_head)
{
    int i = zt_model_find_param(k->model, t->name);
    const struct zt_st_tensor **place = NULL;
    if (is_buffer(k, t))
        return;
    if (i >= 0)
        place = &k->w->tensors[i];
    else if (k->model->cfg.tie_embeddings && strcmp(t->name, "lm_head.weight") == 0)
        place = tied_head;
    if (!place) {
        problem(k, "%.200s: the model has no such parameter", t->name);
    } else if (*place) {
        problem(k, "%.200s is there twice, also as %.200s", t->name, (*place)->name);
    } else {
        *place = t;
        if (i >= 0)
            check_tensor(k, &k->model->params[i], t);
    }
}

static void match(struct matcher *k)
{
    const struct zt_st_tensor *tied_head = NULL;
    for (int i = 0; i < k->w->n_files; i++) {
        const struct zt_st_file *f = &k->w->files[i];
        for (int j = 0; j < f->n_tensors; j++)
            match_tensor(k, &f->tensors[j], &tied_head);
    }
    if (tied_head)
        place_tied_head(k, tied_head);
    for (int i = 0; i < k->model->n_params && !k->incomplete; i++) {
        if (!k->w->tensors[i])
            problem(k, "%.200s is missing", k->model->params[i].name);
    }
}

static int open_folder(const char *dir, const struct zt_model *m, struct zt_weights *w,
                       struct zt_err *err)
{
    struct matcher k = {.dir = dir, .model = m, .w = w, .err = err};
    w->tensors = zt_xcalloc((size_t)m->n_params, sizeof(const struct zt_st_tensor *));
    int rc = open_files(&k);
    if (!rc)
        match(&k);
    if (!rc)
        rc = report(&k, err);
    json_decref(k.index);
    json_decref(k.shards);
    zt_str_release(&k.problems.text);
    return rc;
}

static int open_llmc(const char *path, const struct zt_model *m, struct zt_weights *w,
                     struct zt_err *err)
{
    int rc = zt_map_file(path, &w->map, err);
    return rc ? rc : zt_llmc_parse(path, w->map.data, w->map.bytes, m, &w->arena, &w->llmc, err);
}

int zt_weights_open(const char *path, const struct zt_model *m, struct zt_weights *w,
                    struct zt_err *err)
{
    struct stat st;
    memset(w, 0, sizeof *w);
    bool is_file = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    int rc = (is_file ? open_llmc : open_folder)(path, m, w, err);
    if (rc)
        zt_weights_close(w);
    return rc;
}

void zt_weights_close(struct zt_weights *w)
{
    for (int i = 0; i < w->n_files; i++)
        zt_st_close(&w->files[i]);
    free(w->files);
    free(w->tensors);
    zt_unmap_file(&w->map);
    zt_arena_release(&w->arena);
    memset(w, 0, sizeof *w);
}

void zt_weights_marks(const struct zt_weights *w, const struct zt_model *m, struct zt_marks *out)
{
    for (int i = 0; i < m->n_params; i++) {
        struct zt_mark mark = {
            .name = m->params[i].name, .unit = "values", .n = m->params[i].n_elems};
        if (w->tensors) {
            mark.kind = w->tensors[i]->dtype_name;
            mark.data = w->tensors[i]->data;
            mark.bytes = w->tensors[i]->bytes;
        } else {
            const enum zt_dtype dtype = w->llmc.header.dtype;
            mark.kind = dtype == ZT_F32 ? "llm.c fp32" : "llm.c bf16";
            mark.data = w->llmc.tensors[i].data;
            mark.bytes = (size_t)mark.n * zt_dtype_bytes(dtype);
        }
        zt_marks_add(out, &mark);
    }
}

void zt_weights_read_f32(const struct zt_weights *w, int param, int64_t begin, int64_t n,
                         float *out)
{
    if (w->tensors)
        zt_st_read_f32(w->tensors[param], begin, n, out);
    else
        zt_llmc_read_f32(&w->llmc, param, begin, n, out);
}
