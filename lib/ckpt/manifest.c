#include "ckpt/checkpoint.h"

#include <jansson.h>
#include <math.h>
#include <xxhash.h>

#include "ckpt/manifest_words.h"

const char *const zt_manifest_dtypes[ZT_N_DTYPES] = {
    [ZT_F32] = "F32", [ZT_BF16] = "BF16", [ZT_F16] = "F16"};

const char *const zt_manifest_axes[ZT_N_AXES] = {[ZT_AXIS_PIPELINE] = "pipeline",
                                                 [ZT_AXIS_REPLICATE] = "replicate",
                                                 [ZT_AXIS_SHARD] = "shard",
                                                 [ZT_AXIS_CONTEXT] = "context",
                                                 [ZT_AXIS_TENSOR] = "tensor"};

const char *zt_ckpt_part_name(enum zt_ckpt_part_kind k)
{
    static const char *const names[ZT_CKPT_N_PARTS] = {
        [ZT_CKPT_PARAM] = "param", [ZT_CKPT_M] = "m", [ZT_CKPT_V] = "v"};
    return names[k];
}

struct zt_ckpt_sum zt_ckpt_sum_of(const void *bytes, size_t n)
{
    XXH128_canonical_t canonical;
    struct zt_ckpt_sum sum;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, n));
    memcpy(sum.bytes, canonical.digest, sizeof sum.bytes);
    return sum;
}

const char *zt_manifest_hex(const struct zt_ckpt_sum *sum, char out[ZT_MANIFEST_HEX + 1])
{
    for (size_t i = 0; i < sizeof sum->bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", sum->bytes[i]);
    return out;
}

/* A recipe tells where its values come from, and a file's name may be any bytes; JSON is UTF-8. */
static json_t *ascii_of(const char *s)
{
    char *copy = zt_xstrdup(s);
    for (char *c = copy; *c; c++)
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    json_t *value = json_string(copy);
    free(copy);
    return value;
}

/* A JSON string, quotes included. */
static void put_string(struct zt_str *out, const char *s)
{
    json_t *value = json_string(s);
    if (!value)
        value = ascii_of(s);
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    ZT_ASSERT(text);
    zt_str_puts(out, text);
    free(text);
    json_decref(value);
}

static void put_field(struct zt_str *out, const char *key, const char *s)
{
    zt_str_printf(out, "\"%s\": ", key);
    put_string(out, s);
    zt_str_puts(out, ",\n");
}

/* JSON has neither infinity nor NaN. */
static void put_number(struct zt_str *out, double x)
{
    if (isfinite(x))
        zt_str_printf(out, "%.17g", x);
    else
        zt_str_puts(out, "null");
}

static void print_progress(const struct zt_ckpt_progress *at, struct zt_str *out)
{
    zt_str_printf(out, "\"step\": %lld,\n\"updates\": %lld,\n\"skipped\": %lld,\n",
                  (long long)at->step, (long long)at->updates, (long long)at->skipped);
    zt_str_printf(out, "\"data\": {\"position\": %lld, \"samples\": %lld, \"seq_len\": %lld},\n",
                  (long long)at->position, (long long)at->samples, (long long)at->seq_len);
    zt_str_printf(out, "\"seed\": %lld,\n\"loss_scale\": ", (long long)at->seed);
    if (at->has_loss_scale) {
        zt_str_puts(out, "{\"scale\": ");
        put_number(out, at->loss_scale);
        zt_str_printf(out, ", \"patience\": %lld, \"last_overflow\": %lld}",
                      (long long)at->scale_patience, (long long)at->scale_last_overflow);
    } else {
        zt_str_puts(out, "null");
    }
    zt_str_puts(out, ",\n\"best_val_loss\": ");
    put_number(out, at->best_val_loss);
    zt_str_puts(out, ",\n");
}

static void print_file(const struct zt_ckpt_file *f, struct zt_str *out)
{
    char hex[ZT_MANIFEST_HEX + 1];
    zt_str_puts(out, "{\"name\": ");
    put_string(out, f->name);
    zt_str_printf(out, ", \"bytes\": %zu, \"sums\": [", f->bytes);
    for (size_t i = 0; i < f->n_sums; i++)
        zt_str_printf(out, "%s\"%s\"", i ? ", " : "", zt_manifest_hex(&f->sums[i], hex));
    zt_str_puts(out, "]}");
}

static void print_part(const struct zt_ckpt_part *part, struct zt_str *out)
{
    zt_str_printf(out, "{\"dtype\": \"%s\", \"pieces\": [", zt_manifest_dtypes[part->dtype]);
    for (int i = 0; i < part->n; i++) {
        const struct zt_ckpt_piece *p = &part->pieces[i];
        zt_str_printf(out, "%s{\"file\": %d, \"begin\": %lld, \"end\": %lld, \"offset\": %zu}",
                      i ? ", " : "", p->file, (long long)p->begin, (long long)p->end, p->offset);
    }
    zt_str_puts(out, "]}");
}

static void print_tensor(const struct zt_ckpt_tensor *t, struct zt_str *out)
{
    zt_str_puts(out, "{\"name\": ");
    put_string(out, t->name);
    zt_str_puts(out, ", \"shape\": [");
    for (int i = 0; i < t->n_dims; i++)
        zt_str_printf(out, "%s%lld", i ? ", " : "", (long long)t->dims[i]);
    zt_str_puts(out, "]");
    for (int k = 0; k < ZT_CKPT_N_PARTS; k++) {
        if (!t->parts[k].n)
            continue;
        zt_str_printf(out, ",\n \"%s\": ", zt_ckpt_part_name((enum zt_ckpt_part_kind)k));
        print_part(&t->parts[k], out);
    }
    zt_str_puts(out, "}");
}

/* All but the first line. */
static void print_body(const struct zt_manifest *m, struct zt_str *out)
{
    zt_str_printf(out, "\"format\": \"%s\",\n\"version\": %d,\n", ZT_MANIFEST_FORMAT,
                  ZT_CKPT_VERSION);
    put_field(out, "program", m->program);
    print_progress(&m->at, out);
    put_field(out, "optimizer", m->optimizer);
    zt_str_printf(out, "\"stage\": %d,\n\"dtype\": \"%s\",\n\"mesh\": {", m->stage,
                  zt_manifest_dtypes[m->dtype]);
    for (int a = 0; a < ZT_N_AXES; a++)
        zt_str_printf(out, "%s\"%s\": %d", a ? ", " : "", zt_manifest_axes[a], m->mesh.size[a]);
    zt_str_puts(out, "},\n");
    put_field(out, "recipe", m->recipe);
    zt_str_printf(out, "\"checksum\": \"%s\",\n\"block_bytes\": %zu,\n\"files\": [",
                  ZT_MANIFEST_CHECKSUM, m->block_bytes);
    for (int i = 0; i < m->n_files; i++) {
        zt_str_puts(out, i ? ",\n" : "\n");
        print_file(&m->files[i], out);
    }
    zt_str_puts(out, "],\n\"tensors\": [");
    for (int i = 0; i < m->n_tensors; i++) {
        zt_str_puts(out, i ? ",\n" : "\n");
        print_tensor(&m->tensors[i], out);
    }
    zt_str_puts(out, "]}\n");
}

void zt_manifest_print(const struct zt_manifest *m, struct zt_str *out)
{
    struct zt_str body = {0};
    char hex[ZT_MANIFEST_HEX + 1];
    print_body(m, &body);
    struct zt_ckpt_sum sum = zt_ckpt_sum_of(body.buf, body.len);
    zt_str_printf(out, ZT_MANIFEST_FIRST_LINE, zt_manifest_hex(&sum, hex));
    zt_str_add(out, body.buf, body.len);
    zt_str_release(&body);
}

void zt_manifest_release(struct zt_manifest *m)
{
    zt_arena_release(&m->arena);
    memset(m, 0, sizeof *m);
}

const struct zt_ckpt_tensor *zt_manifest_find(const struct zt_manifest *m, const char *name)
{
    for (int i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}
