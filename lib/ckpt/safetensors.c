#include "ckpt/safetensors.h"

#include <jansson.h>

#include "base/size.h"

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100000000 };

struct st_dtype {
    const char *name;
    size_t bytes;
    int dtype; /* enum zt_dtype, -1: not one of weights */
};

static const struct st_dtype st_dtypes[] = {
    {"F32", 4, ZT_F32}, {"F16", 2, ZT_F16}, {"BF16", 2, ZT_BF16}, {"F64", 8, -1},
    {"C64", 8, -1},     {"I64", 8, -1},     {"I32", 4, -1},       {"I16", 2, -1},
    {"I8", 1, -1},      {"U64", 8, -1},     {"U32", 4, -1},       {"U16", 2, -1},
    {"U8", 1, -1},      {"BOOL", 1, -1},    {"F8_E4M3", 1, -1},   {"F8_E5M2", 1, -1},
    {"F8_E8M0", 1, -1},
};

static const struct st_dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(st_dtypes); i++) {
        if (strcmp(st_dtypes[i].name, name) == 0)
            return &st_dtypes[i];
    }
    return NULL;
}

/* The header while it is read; `err` carries the file's name. */
struct parser {
    struct zt_st_file *f;
    const unsigned char *data; /* after the header */
    size_t data_bytes;
    struct zt_err *err;
};

#define BAD(p, ...) zt_err_set((p)->err, ZT_EINPUT, __VA_ARGS__)

static int parse_shape(struct parser *p, const json_t *shape, struct zt_st_tensor *t)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape))
        return BAD(p, "tensor %s: no shape", t->name);
    if (n > ZT_ST_MAX_DIMS)
        return BAD(p, "tensor %s: %zu dimensions; at most %d", t->name, n, ZT_ST_MAX_DIMS);
    t->n_dims = (int)n;
    t->n_elems = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(shape, i);
        t->dims[i] = json_integer_value(dim);
        if (!json_is_integer(dim) || t->dims[i] < 0)
            return BAD(p, "tensor %s: shape[%zu] is no size", t->name, i);
        if (!zt_mul_i64(t->n_elems, t->dims[i], &t->n_elems))
            return BAD(p, "tensor %s: shape has more than 2^63 elements", t->name);
    }
    return 0;
}

static int parse_offsets(struct parser *p, const json_t *offsets, struct zt_st_tensor *t)
{
    const json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);
    json_int_t begin = json_integer_value(b), end = json_integer_value(e);
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return BAD(p, "tensor %s: data_offsets must be two integers", t->name);
    if (begin < 0 || begin > end || (uint64_t)end > p->data_bytes)
        return BAD(p, "tensor %s: data_offsets [%lld, %lld] are not inside the %zu bytes of data",
                   t->name, (long long)begin, (long long)end, p->data_bytes);
    t->data = p->data + begin;
    t->bytes = (size_t)(end - begin);
    return 0;
}

static int parse_tensor(struct parser *p, const char *name, const json_t *info,
                        struct zt_st_tensor *t)
{
    t->name = zt_arena_strdup(&p->f->arena, name);
    const char *word = json_string_value(json_object_get(info, "dtype"));
    if (!word)
        return BAD(p, "tensor %s: no dtype", name);
    const struct st_dtype *d = find_dtype(word);
    if (!d)
        return BAD(p, "tensor %s: unknown dtype \"%.32s\"", name, word);
    t->dtype = d->dtype;
    t->dtype_name = d->name;
    int rc = parse_shape(p, json_object_get(info, "shape"), t);
    if (!rc)
        rc = parse_offsets(p, json_object_get(info, "data_offsets"), t);
    size_t want;
    if (!rc && (!zt_mul_size((size_t)t->n_elems, d->bytes, &want) || want != t->bytes))
        rc = BAD(p, "tensor %s: %zu bytes, but its shape has %lld elements of %zu", name, t->bytes,
                 (long long)t->n_elems, d->bytes);
    return rc;
}

static int check_metadata(struct parser *p, json_t *meta)
{
    const char *key;
    json_t *value;
    if (!json_is_object(meta))
        return BAD(p, "__metadata__ is no object");
    json_object_foreach(meta, key, value)
    {
        if (!json_is_string(value))
            return BAD(p, "__metadata__: \"%.64s\" is no string", key);
    }
    return 0;
}

static int by_data(const void *a, const void *b)
{
    const struct zt_st_tensor *x = a, *y = b;
    uintptr_t xb = (uintptr_t)x->data, yb = (uintptr_t)y->data;
    if (xb != yb)
        return xb < yb ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

/* Sort the tensors by their bytes and check that these follow on one another to the end. */
static int check_cover(struct parser *p)
{
    struct zt_st_file *f = p->f;
    const unsigned char *at = p->data;
    if (f->n_tensors)
        qsort(f->tensors, (size_t)f->n_tensors, sizeof *f->tensors, by_data);
    for (int i = 0; i < f->n_tensors; i++) {
        const struct zt_st_tensor *t = &f->tensors[i];
        const unsigned char *begin = t->data;
        if (begin != at)
            return BAD(p, "tensor %s begins at byte %td of the data, %s", t->name, begin - p->data,
                       begin > at ? "behind a hole" : "inside another tensor");
        at += t->bytes;
    }
    if (at != p->data + p->data_bytes)
        return BAD(p, "%zu bytes of data, but the tensors end at byte %td", p->data_bytes,
                   at - p->data);
    return 0;
}

static int parse_header(struct parser *p, json_t *root)
{
    struct zt_st_file *f = p->f;
    const char *name;
    json_t *info;
    f->tensors = zt_arena_alloc(&f->arena, json_object_size(root), sizeof *f->tensors);
    json_object_foreach(root, name, info)
    {
        int rc;
        if (strcmp(name, "__metadata__") == 0)
            rc = check_metadata(p, info);
        else
            rc = parse_tensor(p, name, info, &f->tensors[f->n_tensors++]);
        if (rc)
            return rc;
    }
    return check_cover(p);
}

static uint64_t le64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static int parse(const unsigned char *bytes, size_t n, struct zt_st_file *f, struct zt_err *err)
{
    struct parser p = {.f = f, .err = err};
    if (n < LENGTH_BYTES)
        return BAD(&p, "%zu bytes are no safetensors file", n);
    uint64_t header = le64(bytes);
    if (header > MAX_HEADER_BYTES || header > n - LENGTH_BYTES)
        return BAD(&p,
                   "header of %llu bytes in a file of %zu; at most %d; not a safetensors file, or "
                   "a cut one",
                   (unsigned long long)header, n, MAX_HEADER_BYTES);
    const char *text = (const char *)bytes + LENGTH_BYTES;
    if (header == 0 || text[0] != '{')
        return BAD(&p, "the header does not begin with '{'");
    p.data = bytes + LENGTH_BYTES + header;
    p.data_bytes = n - LENGTH_BYTES - (size_t)header;
    json_error_t je;
    json_t *root = json_loadb(text, (size_t)header, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return BAD(&p, "header, byte %d: %s", je.position, je.text);
    int rc = parse_header(&p, root);
    json_decref(root);
    return rc;
}

int zt_st_parse(const char *name, const void *bytes, size_t n, struct zt_st_file *f,
                struct zt_err *err)
{
    memset(f, 0, sizeof *f);
    f->path = zt_arena_strdup(&f->arena, name);
    int rc = parse(bytes, n, f, err);
    if (rc) {
        zt_err_wrap(err, "%s", name);
        zt_st_close(f);
    }
    return rc;
}

int zt_st_open(const char *path, struct zt_st_file *f, struct zt_err *err)
{
    struct zt_mapped map;
    memset(f, 0, sizeof *f);
    int rc = zt_map_file(path, &map, err);
    if (rc)
        return rc;
    rc = zt_st_parse(path, map.data, map.bytes, f, err);
    if (rc)
        zt_unmap_file(&map);
    else
        f->map = map;
    return rc;
}

void zt_st_close(struct zt_st_file *f)
{
    zt_unmap_file(&f->map);
    zt_arena_release(&f->arena);
    memset(f, 0, sizeof *f);
}

void zt_st_read_f32(const struct zt_st_tensor *t, int64_t begin, int64_t n, float *out)
{
    ZT_ASSERT(begin >= 0 && n >= 0 && begin <= t->n_elems - n);
    ZT_ASSERT_CMP(t->dtype, >=, 0);
    if (n == 0)
        return;
    const unsigned char *p = t->data;
    p += (size_t)begin * zt_dtype_bytes((enum zt_dtype)t->dtype);
    if (t->dtype == ZT_F32) {
        memcpy(out, p, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        out[i] = t->dtype == ZT_BF16 ? zt_bf16_to_f32(h) : zt_f16_to_f32(h);
    }
}
