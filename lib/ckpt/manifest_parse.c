#include "ckpt/manifest_words.h"

#include <float.h>
#include <jansson.h>
#include <math.h>

#include "base/size.h"

#define MAX_NUMBER                                                                                 \
    ((int64_t)1 << 53) /* what every JSON reader keeps; sums of two do not overflow */

enum { MIN_BLOCK_BYTES = 64 << 10, MAX_BLOCK_BYTES = 64 << 20, MAX_TENSORS = 1 << 20 };

struct parser {
    struct zt_manifest *m;
    struct zt_err *err;
};

#define BAD(p, ...) zt_err_set((p)->err, ZT_EINPUT, __VA_ARGS__)

/* ---- values ---- */

static int get_i64(const struct parser *p, const json_t *o, const char *key, int64_t least,
                   int64_t *out)
{
    const json_t *v = json_object_get(o, key);
    *out = json_integer_value(v);
    if (!json_is_integer(v) || *out < least || *out > MAX_NUMBER)
        return BAD(p, "\"%s\" is missing, or no whole number from %lld to 2^53", key,
                   (long long)least);
    return 0;
}

static int get_int(const struct parser *p, const json_t *o, const char *key, int least, int most,
                   int *out)
{
    int64_t v;
    int rc = get_i64(p, o, key, least, &v);
    if (!rc && v > most)
        rc = BAD(p, "\"%s\" is %lld; at most %d", key, (long long)v, most);
    *out = rc ? 0 : (int)v;
    return rc;
}

static int get_size(const struct parser *p, const json_t *o, const char *key, size_t *out)
{
    int64_t v;
    int rc = get_i64(p, o, key, 0, &v);
    *out = (size_t)v;
    return rc;
}

static int get_string(const struct parser *p, const json_t *o, const char *key, const char **out)
{
    const char *s = json_string_value(json_object_get(o, key));
    if (!s)
        return BAD(p, "\"%s\" is missing, or no text", key);
    *out = zt_arena_strdup(&p->m->arena, s);
    return 0;
}

static int get_word(const struct parser *p, const json_t *o, const char *key,
                    const char *const *words, int n_words, int *out)
{
    const char *s = json_string_value(json_object_get(o, key));
    for (int i = 0; s && i < n_words; i++) {
        if (!words[i] || strcmp(words[i], s) != 0)
            continue;
        *out = i;
        return 0;
    }
    return BAD(p, "\"%s\" is missing, or unknown: \"%.64s\"", key, s ? s : "");
}

static int parse_hex(const struct parser *p, const char *s, struct zt_ckpt_sum *out)
{
    static const char digits[] = "0123456789abcdef";
    if (!s || strlen(s) != ZT_MANIFEST_HEX)
        return BAD(p, "a checksum is not %d digits", ZT_MANIFEST_HEX);
    for (size_t i = 0; i < ZT_MANIFEST_HEX; i++) {
        const char *d = strchr(digits, s[i]);
        if (!d)
            return BAD(p, "a checksum has other digits than 0-9 and a-f");
        unsigned char *b = &out->bytes[i / 2];
        *b = (unsigned char)(i % 2 ? *b | (d - digits) : (d - digits) << 4);
    }
    return 0;
}

/* ---- parts of the manifest ---- */

static int parse_loss_scale(const struct parser *p, const json_t *root)
{
    struct zt_ckpt_progress *at = &p->m->at;
    const json_t *o = json_object_get(root, "loss_scale");
    const json_t *scale = json_object_get(o, "scale");
    at->has_loss_scale = json_is_object(o);
    if (!at->has_loss_scale)
        return json_is_null(o) ? 0 : BAD(p, "\"loss_scale\" is missing, or no object");
    at->loss_scale = json_number_value(scale);
    if (!json_is_number(scale) || !(at->loss_scale >= FLT_MIN && at->loss_scale <= FLT_MAX))
        return BAD(p, "\"loss_scale\": \"scale\" is missing, or no fp32 number above 0");
    int rc = get_i64(p, o, "patience", 0, &at->scale_patience);
    return rc ? rc : get_i64(p, o, "last_overflow", -1, &at->scale_last_overflow);
}

static int parse_progress(const struct parser *p, const json_t *root)
{
    struct zt_ckpt_progress *at = &p->m->at;
    const json_t *data = json_object_get(root, "data");
    const json_t *best = json_object_get(root, "best_val_loss");
    int rc = get_i64(p, root, "step", 0, &at->step);
    if (!rc)
        rc = get_i64(p, root, "updates", 0, &at->updates);
    if (!rc)
        rc = get_i64(p, root, "skipped", 0, &at->skipped);
    if (!rc)
        rc = get_i64(p, data, "position", 0, &at->position);
    if (!rc)
        rc = get_i64(p, data, "samples", 1, &at->samples);
    if (!rc)
        rc = get_i64(p, data, "seq_len", 1, &at->seq_len);
    if (!rc)
        rc = get_i64(p, root, "seed", 0, &at->seed);
    if (!rc)
        rc = parse_loss_scale(p, root);
    if (!rc && !json_is_number(best) && !json_is_null(best))
        rc = BAD(p, "\"best_val_loss\" is missing, or no number");
    at->best_val_loss = json_is_number(best) ? json_number_value(best) : (double)NAN;
    return rc;
}

static int parse_mesh(const struct parser *p, const json_t *root)
{
    const json_t *mesh = json_object_get(root, "mesh");
    int64_t world = 1;
    for (int a = 0; a < ZT_N_AXES; a++) {
        int rc = get_int(p, mesh, zt_manifest_axes[a], 1, INT32_MAX, &p->m->mesh.size[a]);
        if (rc)
            return rc;
        if (!zt_mul_i64(world, p->m->mesh.size[a], &world) || world > INT32_MAX)
            return BAD(p, "\"mesh\" has more ranks than there can be");
    }
    return 0;
}

/* A file of the folder itself, and none of those with a meaning of their own. */
static bool name_ok(const char *s)
{
    return *s && *s != '.' && !strchr(s, '/') && strlen(s) < 256 && strcmp(s, ZT_CKPT_MANIFEST);
}

static int parse_file(const struct parser *p, const json_t *o, struct zt_ckpt_file *f)
{
    int rc = get_string(p, o, "name", &f->name);
    if (!rc)
        rc = get_size(p, o, "bytes", &f->bytes);
    if (rc)
        return rc;
    if (!name_ok(f->name))
        return BAD(p, "\"%.200s\" is no name of a file in this folder", f->name);
    const json_t *sums = json_object_get(o, "sums");
    f->n_sums = json_array_size(sums);
    if (f->n_sums != (f->bytes + p->m->block_bytes - 1) / p->m->block_bytes)
        return BAD(p, "%s: %zu checksums are not one for each block", f->name, f->n_sums);
    f->sums = zt_arena_alloc(&p->m->arena, f->n_sums, sizeof *f->sums);
    for (size_t i = 0; i < f->n_sums && !rc; i++)
        rc = parse_hex(p, json_string_value(json_array_get(sums, i)), &f->sums[i]);
    return rc ? zt_err_wrap(p->err, "%s", f->name) : 0;
}

static int parse_files(const struct parser *p, const json_t *root)
{
    struct zt_manifest *m = p->m;
    const json_t *files = json_object_get(root, "files");
    size_t n = json_array_size(files);
    if (n < 1 || n > ZT_CKPT_MAX_FILES)
        return BAD(p, "\"files\" has %zu entries; from 1 to %d are possible", n, ZT_CKPT_MAX_FILES);
    m->n_files = (int)n;
    m->files = zt_arena_alloc(&m->arena, n, sizeof *m->files);
    for (size_t i = 0; i < n; i++) {
        int rc = parse_file(p, json_array_get(files, i), &m->files[i]);
        if (rc)
            return rc;
    }
    return 0;
}

/* Inside its file, and where the piece before it ends. */
static int parse_piece(const struct parser *p, const json_t *o, size_t elem, int64_t from,
                       struct zt_ckpt_piece *out)
{
    int rc = get_int(p, o, "file", 0, p->m->n_files - 1, &out->file);
    if (!rc)
        rc = get_i64(p, o, "begin", 0, &out->begin);
    if (!rc)
        rc = get_i64(p, o, "end", 1, &out->end);
    if (!rc)
        rc = get_size(p, o, "offset", &out->offset);
    if (rc)
        return rc;
    if (out->begin != from || out->end <= from)
        return BAD(p, "elements [%lld, %lld) do not follow on %lld", (long long)out->begin,
                   (long long)out->end, (long long)from);
    const size_t bytes = p->m->files[out->file].bytes;
    size_t need;
    if (!zt_mul_size((size_t)(out->end - out->begin), elem, &need) || need > bytes ||
        out->offset > bytes - need)
        return BAD(p, "elements [%lld, %lld) lie outside of %s", (long long)out->begin,
                   (long long)out->end, p->m->files[out->file].name);
    return 0;
}

static int parse_part(const struct parser *p, const json_t *o, int64_t n_elems,
                      struct zt_ckpt_part *part)
{
    int dtype = 0;
    if (!o)
        return 0;
    int rc = get_word(p, o, "dtype", zt_manifest_dtypes, ZT_N_DTYPES, &dtype);
    if (rc)
        return rc;
    const json_t *pieces = json_object_get(o, "pieces");
    const size_t n = json_array_size(pieces), elem = zt_dtype_bytes((enum zt_dtype)dtype);
    if (n < 1 || n > ZT_CKPT_MAX_FILES)
        return BAD(p, "\"pieces\" has %zu entries; from 1 to %d are possible", n,
                   ZT_CKPT_MAX_FILES);
    part->dtype = (enum zt_dtype)dtype;
    part->n = (int)n;
    part->pieces = zt_arena_alloc(&p->m->arena, n, sizeof *part->pieces);
    int64_t from = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        rc = parse_piece(p, json_array_get(pieces, i), elem, from, &part->pieces[i]);
        from = part->pieces[i].end;
    }
    if (!rc && from != n_elems)
        rc = BAD(p, "its pieces end at element %lld of %lld", (long long)from, (long long)n_elems);
    return rc;
}

static int parse_shape(const struct parser *p, const json_t *shape, struct zt_ckpt_tensor *t)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > ZT_CKPT_MAX_DIMS)
        return BAD(p, "\"shape\" is missing, or has more than %d dimensions", ZT_CKPT_MAX_DIMS);
    t->n_dims = (int)n;
    t->n_elems = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(shape, i);
        t->dims[i] = json_integer_value(dim);
        if (t->dims[i] < 1 || !zt_mul_i64(t->n_elems, t->dims[i], &t->n_elems))
            return BAD(p, "\"shape\"[%zu] is no size", i);
    }
    return 0;
}

static int parse_tensor(const struct parser *p, const json_t *o, struct zt_ckpt_tensor *t)
{
    int rc = get_string(p, o, "name", &t->name);
    if (rc)
        return rc;
    rc = parse_shape(p, json_object_get(o, "shape"), t);
    for (int k = 0; k < ZT_CKPT_N_PARTS && !rc; k++) {
        const char *part = zt_ckpt_part_name((enum zt_ckpt_part_kind)k);
        rc = parse_part(p, json_object_get(o, part), t->n_elems, &t->parts[k]);
        if (rc)
            zt_err_wrap(p->err, "\"%s\"", part);
    }
    if (!rc && !t->parts[ZT_CKPT_PARAM].n)
        rc = BAD(p, "it has no values");
    return rc ? zt_err_wrap(p->err, "tensor %.200s", t->name) : 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Each name stands once. */
static int check_names(const struct parser *p)
{
    const struct zt_manifest *m = p->m;
    const char **names = zt_xcalloc((size_t)m->n_tensors, sizeof *names);
    int rc = 0;
    for (int i = 0; i < m->n_tensors; i++)
        names[i] = m->tensors[i].name;
    qsort(names, (size_t)m->n_tensors, sizeof *names, by_name);
    for (int i = 1; i < m->n_tensors && !rc; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            rc = BAD(p, "tensor %.200s stands there twice", names[i]);
    free(names);
    return rc;
}

static int parse_tensors(const struct parser *p, const json_t *root)
{
    struct zt_manifest *m = p->m;
    const json_t *tensors = json_object_get(root, "tensors");
    size_t n = json_array_size(tensors);
    if (n < 1 || n > MAX_TENSORS)
        return BAD(p, "\"tensors\" has %zu entries; from 1 to %d are possible", n, MAX_TENSORS);
    m->n_tensors = (int)n;
    m->tensors = zt_arena_alloc(&m->arena, n, sizeof *m->tensors);
    for (size_t i = 0; i < n; i++) {
        int rc = parse_tensor(p, json_array_get(tensors, i), &m->tensors[i]);
        if (rc)
            return rc;
    }
    return check_names(p);
}

static int parse_format(const struct parser *p, const json_t *root)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *checksum = json_string_value(json_object_get(root, "checksum"));
    int64_t version;
    if (!format || strcmp(format, ZT_MANIFEST_FORMAT) != 0)
        return BAD(p, "\"format\" is not \"" ZT_MANIFEST_FORMAT "\"");
    int rc = get_i64(p, root, "version", 1, &version);
    if (!rc && version > ZT_CKPT_VERSION)
        rc = BAD(p, "version %lld; this program reads up to %d", (long long)version,
                 ZT_CKPT_VERSION);
    if (!rc && (!checksum || strcmp(checksum, ZT_MANIFEST_CHECKSUM) != 0))
        rc = BAD(p, "\"checksum\" is not \"" ZT_MANIFEST_CHECKSUM "\"");
    return rc;
}

static int parse_root(const struct parser *p, const json_t *root)
{
    struct zt_manifest *m = p->m;
    int dtype = 0;
    int rc = parse_format(p, root);
    if (!rc)
        rc = get_string(p, root, "program", &m->program);
    if (!rc)
        rc = get_string(p, root, "recipe", &m->recipe);
    if (!rc)
        rc = get_string(p, root, "optimizer", &m->optimizer);
    if (!rc)
        rc = get_int(p, root, "stage", 0, 3, &m->stage);
    if (!rc)
        rc = get_word(p, root, "dtype", zt_manifest_dtypes, ZT_N_DTYPES, &dtype);
    m->dtype = (enum zt_dtype)dtype;
    if (!rc)
        rc = parse_mesh(p, root);
    if (!rc)
        rc = parse_progress(p, root);
    if (!rc)
        rc = get_size(p, root, "block_bytes", &m->block_bytes);
    if (!rc && (m->block_bytes < MIN_BLOCK_BYTES || m->block_bytes > MAX_BLOCK_BYTES))
        rc = BAD(p, "\"block_bytes\" is %zu; from %d to %d are possible", m->block_bytes,
                 MIN_BLOCK_BYTES, MAX_BLOCK_BYTES);
    if (!rc)
        rc = parse_files(p, root);
    return rc ? rc : parse_tensors(p, root);
}

/* The first line, and that its sum is the rest's. */
static int check_sum(const struct parser *p, const char *text, size_t n)
{
    char line[ZT_MANIFEST_LINE_BYTES + 1], hex[ZT_MANIFEST_HEX + 1];
    if (n < ZT_MANIFEST_LINE_BYTES)
        return BAD(p, "%zu bytes are no manifest; the file was cut", n);
    struct zt_ckpt_sum sum =
        zt_ckpt_sum_of(text + ZT_MANIFEST_LINE_BYTES, n - ZT_MANIFEST_LINE_BYTES);
    snprintf(line, sizeof line, ZT_MANIFEST_FIRST_LINE, zt_manifest_hex(&sum, hex));
    if (memcmp(text, line, ZT_MANIFEST_LINE_BYTES) != 0)
        return BAD(p, "its checksum is wrong: the file was changed or cut, or is no manifest");
    return 0;
}

int zt_manifest_parse(const char *name, const void *bytes, size_t n, struct zt_manifest *m,
                      struct zt_err *err)
{
    struct parser p = {m, err};
    json_error_t je;
    memset(m, 0, sizeof *m);
    int rc = check_sum(&p, bytes, n);
    json_t *root = rc ? NULL : json_loadb(bytes, n, JSON_REJECT_DUPLICATES, &je);
    if (!rc && !root)
        rc = BAD(&p, "line %d: %s", je.line, je.text);
    if (!rc)
        rc = parse_root(&p, root);
    json_decref(root);
    if (!rc)
        return 0;
    zt_manifest_release(m);
    return zt_err_wrap(err, "%s", name);
}
