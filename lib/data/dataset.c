#include "data/data.h"

#include <unistd.h>

#include "base/size.h"
#include "data/dataset_internal.h"
#include "data/megatron.h"
#include "data/paths.h"

/* Below the kernel's usual limit of 65530 mappings of a process: a file has up to three. */
enum { MAX_MAPPED_FILES = 20000 };

static int check_opts(const struct zt_dataset_opts *o, struct zt_err *err)
{
    if (o->paths.n < 1)
        return zt_err_set(err, ZT_EINPUT, "no data file is named");
    if (o->seq_len < 1)
        return zt_err_set(err, ZT_EINPUT, "seq_len is %lld; must be 1 or more",
                          (long long)o->seq_len);
    if (o->vocab_size < 1 || o->vocab_size > INT32_MAX)
        return zt_err_set(err, ZT_EINPUT, "vocab_size is %lld; must be 1 to %d",
                          (long long)o->vocab_size, INT32_MAX);
    if (o->range[0] < -1 || o->range[1] < -1 ||
        (o->range[1] != -1 && o->range[1] <= ZT_MAX(o->range[0], 0)))
        return zt_err_set(err, ZT_EINPUT, "token range [%lld, %lld) is empty",
                          (long long)o->range[0], (long long)o->range[1]);
    if (o->separator >= o->vocab_size)
        return zt_err_set(
            err, ZT_EINPUT, "document_separator is %lld, but vocab_size is %lld (ids 0 to %lld)",
            (long long)o->separator, (long long)o->vocab_size, (long long)o->vocab_size - 1);
    return 0;
}

/* Whether a file found in a folder is data at all. */
static bool is_data(const struct zt_data_path *path, const struct zt_data_part *p,
                    enum zt_data_format format)
{
    switch (format) {
    case ZT_DATA_LLMC:
    case ZT_DATA_RAW_U16:
        return zt_is_bin_name(path->path);
    case ZT_DATA_MEGATRON:
        return p->index_name != NULL;
    case ZT_DATA_AUTO:
        if (p->index_name || zt_is_llmc(p->map.data, p->map.bytes))
            return true;
        break;
    case ZT_DATA_TEXT:
        break;
    }
    return !zt_is_binary(p->map.data, p->map.bytes) && !zt_is_bin_name(path->path);
}

/* Map the index beside a .bin that is, or may be, one of Megatron's. */
static int map_index(struct zt_dataset *d, const char *path, struct zt_data_part *p,
                     struct zt_err *err)
{
    bool wanted = d->opts.format == ZT_DATA_MEGATRON;
    bool possible = d->opts.format == ZT_DATA_AUTO && !zt_is_llmc(p->map.data, p->map.bytes);
    if (!zt_is_bin_name(path) || !(wanted || possible))
        return 0;
    const char *name = zt_arena_printf(&d->arena, "%.*s.idx", (int)strlen(path) - 4, path);
    if (!wanted && access(name, F_OK))
        return 0;
    int rc = zt_map_file(name, &p->index, err);
    if (!rc && (wanted || zt_is_megatron_index(p->index.data, p->index.bytes)))
        p->index_name = name;
    return rc;
}

static int check_kind(struct zt_dataset *d, const struct zt_token_file *f, struct zt_err *err)
{
    if (!d->first_name) {
        d->first_name = f->name;
        d->kind = f->kind;
    }
    if (f->kind == d->kind)
        return 0;
    return zt_err_set(err, ZT_EINPUT,
                      "%s is %s, but %s is %s: their ids mean different things; keep one kind, or "
                      "set data.format",
                      f->name, zt_token_kind_name(f->kind), d->first_name,
                      zt_token_kind_name(d->kind));
}

/*
 * Count the next file of the concatenation, and keep its mappings if the range has use for them;
 * then they are emptied in *p.
 */
static int take(struct zt_dataset *d, struct zt_data_part *p, struct zt_err *err)
{
    int64_t at = d->all_tokens;
    if (!zt_add_i64(at, p->file.n_tokens, &d->all_tokens))
        return zt_err_set(err, ZT_EINPUT, "%s: more than 2^63 tokens in all", p->file.name);
    int64_t begin = ZT_MAX(d->opts.range[0], at), end = d->all_tokens;
    if (d->opts.range[1] != -1)
        end = ZT_MIN(end, d->opts.range[1]);
    if (begin >= end)
        return 0;
    int64_t n = end - begin, samples = (n - 1) / d->opts.seq_len;
    int64_t first = d->opts.packed ? d->n_tokens : d->n_samples;
    d->n_files++;
    d->n_tokens += n;
    d->longest = ZT_MAX(d->longest, n);
    d->n_samples = d->opts.packed ? (d->n_tokens - 1) / d->opts.seq_len : d->n_samples + samples;
    if (!d->opts.packed && samples == 0) {
        d->n_short++;
        return 0;
    }
    if (d->n_parts == MAX_MAPPED_FILES)
        return zt_err_set(err, ZT_EINPUT, "%s: more than %d files; concatenate them", p->file.name,
                          MAX_MAPPED_FILES);
    p->begin = begin - at;
    p->n = n;
    p->first = first;
    ZT_GROW(d->parts, d->n_parts + 1, d->parts_cap);
    d->parts[d->n_parts++] = *p;
    memset(p, 0, sizeof *p);
    return 0;
}

/* The mask that belongs to the next token file. */
static int map_mask(const struct zt_dataset *d, const struct zt_data_paths *masks,
                    struct zt_data_part *p, struct zt_err *err)
{
    if (masks->n == 0)
        return 0;
    if (d->n_taken >= masks->n)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: no mask file for it: there are %zu mask files, one for each token "
                          "file in the same order",
                          p->file.name, masks->n);
    p->mask_name = masks->items[d->n_taken].path;
    int rc = zt_map_file(p->mask_name, &p->mask, err);
    if (!rc && p->mask.bytes != (size_t)p->file.n_tokens)
        rc = zt_err_set(err, ZT_EINPUT,
                        "%s: %zu bytes, but %s has %lld tokens; a mask has one byte for each",
                        p->mask_name, p->mask.bytes, p->file.name, (long long)p->file.n_tokens);
    return rc;
}

static int parse(const struct zt_dataset *d, const char *path, struct zt_data_part *p,
                 struct zt_err *err)
{
    struct zt_bytes bin = {path, p->map.data, p->map.bytes};
    struct zt_bytes index = {p->index_name, p->index.data, p->index.bytes};
    if (p->index_name)
        return zt_megatron_parse(&index, &bin, &p->file, err);
    return zt_token_file_parse(path, bin.data, bin.n, d->opts.format, &p->file, err);
}

static void unmap(struct zt_data_part *p)
{
    zt_unmap_file(&p->map);
    zt_unmap_file(&p->index);
    zt_unmap_file(&p->mask);
}

static int add_file(struct zt_dataset *d, const struct zt_data_path *path,
                    const struct zt_data_paths *masks, struct zt_err *err)
{
    struct zt_data_part p = {0};
    int rc = zt_map_file(path->path, &p.map, err);
    if (!rc)
        rc = map_index(d, path->path, &p, err);
    if (!rc && path->in_folder && !is_data(path, &p, d->opts.format)) {
        d->n_left_out++;
        unmap(&p);
        return 0;
    }
    if (!rc)
        rc = parse(d, path->path, &p, err);
    if (!rc)
        rc = check_kind(d, &p.file, err);
    if (!rc)
        rc = map_mask(d, masks, &p, err);
    d->n_taken++;
    if (!rc)
        rc = take(d, &p, err);
    unmap(&p);
    return rc;
}

static int check_found(const struct zt_dataset *d, struct zt_err *err)
{
    const struct zt_dataset_opts *o = &d->opts;
    if (!d->first_name)
        return zt_err_set(
            err, ZT_EINPUT,
            "%s: no data in %s: %d files left out; set data.format, or name the files",
            o->paths.items[0], o->paths.n > 1 ? "it and the others" : "it", d->n_left_out);
    if (o->range[0] >= d->all_tokens || o->range[1] > d->all_tokens)
        return zt_err_set(
            err, ZT_EINPUT, "token range [%lld, %lld) reaches past the %lld tokens of the data",
            (long long)ZT_MAX(o->range[0], 0),
            (long long)(o->range[1] == -1 ? d->all_tokens : o->range[1]), (long long)d->all_tokens);
    if (d->n_samples == 0 && o->packed)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: no sample: seq_len %lld needs %lld tokens in the range, but there "
                          "are %lld; give more data or a smaller seq_len",
                          d->first_name, (long long)o->seq_len, (long long)o->seq_len + 1,
                          (long long)d->n_tokens);
    if (d->n_samples == 0)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: no sample: seq_len %lld needs a file with %lld tokens in the range, "
                          "but the longest of %d has %lld; give more data or a smaller seq_len",
                          d->first_name, (long long)o->seq_len, (long long)o->seq_len + 1,
                          d->n_files, (long long)d->longest);
    return 0;
}

static int add_files(struct zt_dataset *d, struct zt_err *err)
{
    struct zt_data_paths paths = {0}, masks = {0};
    int rc = zt_data_paths_find(&d->opts.paths, &d->arena, &paths, err);
    if (!rc)
        rc = zt_data_paths_find(&d->opts.masks, &d->arena, &masks, err);
    for (size_t i = 0; !rc && i < paths.n; i++)
        rc = add_file(d, &paths.items[i], &masks, err);
    if (!rc)
        rc = check_found(d, err);
    if (!rc && masks.n > d->n_taken)
        rc = zt_err_set(err, ZT_EINPUT,
                        "%s: one mask file too many: there are %zu for %zu token files",
                        masks.items[d->n_taken].path, masks.n, d->n_taken);
    free(paths.items);
    free(masks.items);
    return rc;
}

static int open_files(const struct zt_dataset_opts *opts, struct zt_dataset **out,
                      struct zt_err *err)
{
    struct zt_dataset *d = zt_xcalloc(1, sizeof *d);
    d->opts = *opts;
    int rc = add_files(d, err);
    d->opts.paths = d->opts.masks = (struct zt_str_list){0}; /* the caller's */
    *out = d;
    return rc;
}

/* Source i, which must be of the same kind as those before it. */
static int add_source(struct zt_dataset *d, int i, struct zt_err *err)
{
    struct zt_dataset_opts o = d->opts;
    o.paths = (struct zt_str_list){1, &d->opts.paths.items[i]};
    o.seed += (uint64_t)i; /* equally many samples are not in the same order */
    int rc = open_files(&o, &d->sources[i], err);
    if (rc)
        return rc;
    const struct zt_dataset *source = d->sources[i];
    struct zt_token_file first = {.name = source->first_name, .kind = source->kind};
    d->n_files += source->n_files;
    if (!zt_add_i64(d->n_samples, source->n_samples, &d->n_samples) ||
        !zt_add_i64(d->n_tokens, source->n_tokens, &d->n_tokens))
        return zt_err_set(err, ZT_EINPUT, "%s: more than 2^63 tokens in all", first.name);
    return check_kind(d, &first, err);
}

static int open_sources(const struct zt_dataset_opts *opts, struct zt_dataset **out,
                        struct zt_err *err)
{
    struct zt_dataset *d = zt_xcalloc(1, sizeof *d);
    d->opts = *opts;
    *out = d;
    int rc = zt_blend_init(&d->blend, opts->weights, opts->paths.n, err);
    if (rc)
        return rc;
    d->sources = zt_xcalloc((size_t)opts->paths.n, sizeof(struct zt_dataset *));
    for (int i = 0; !rc && i < opts->paths.n; i++)
        rc = add_source(d, i, err);
    d->opts.paths = d->opts.masks = (struct zt_str_list){0}; /* the caller's */
    d->opts.weights = NULL;
    return rc;
}

int zt_dataset_open(const struct zt_dataset_opts *opts, struct zt_dataset **out, struct zt_err *err)
{
    int rc = check_opts(opts, err);
    if (rc)
        return rc;
    rc = opts->weights ? open_sources(opts, out, err) : open_files(opts, out, err);
    if (rc) {
        zt_dataset_free(*out);
        *out = NULL;
    }
    return rc;
}

void zt_dataset_free(struct zt_dataset *d)
{
    if (!d)
        return;
    for (int i = 0; d->sources && i < d->blend.n_sources; i++)
        zt_dataset_free(d->sources[i]);
    free(d->sources);
    zt_blend_release(&d->blend);
    for (size_t i = 0; i < d->n_parts; i++)
        unmap(&d->parts[i]);
    free(d->parts);
    zt_arena_release(&d->arena);
    free(d);
}

int64_t zt_dataset_samples(const struct zt_dataset *d)
{
    return d->n_samples;
}

int64_t zt_dataset_tokens(const struct zt_dataset *d)
{
    return d->n_tokens;
}

bool zt_dataset_is_text(const struct zt_dataset *d)
{
    return d->kind == ZT_TOKENS_TEXT;
}

static void add_marks(const struct zt_data_part *p, struct zt_marks *out)
{
    const struct zt_token_file *f = &p->file;
    const struct zt_mark tokens = {.name = f->name,
                                   .kind = zt_token_kind_name(f->kind),
                                   .unit = "tokens",
                                   .n = p->n,
                                   .data = f->data + p->begin * f->token_bytes,
                                   .bytes = (size_t)(p->n * f->token_bytes)};
    const struct zt_mark index = {p->index_name,  "an index", "documents", f->n_docs, p->index.data,
                                  p->index.bytes, 0};
    const struct zt_mark mask = {p->mask_name, "a mask", "tokens", p->n, p->mask.data + p->begin,
                                 (size_t)p->n, 0};
    zt_marks_add(out, &tokens);
    if (p->index_name)
        zt_marks_add(out, &index);
    if (p->mask_name)
        zt_marks_add(out, &mask);
}

void zt_dataset_marks(const struct zt_dataset *d, struct zt_marks *out)
{
    for (int i = 0; d->sources && i < d->blend.n_sources; i++)
        zt_dataset_marks(d->sources[i], out);
    for (size_t i = 0; i < d->n_parts; i++)
        add_marks(&d->parts[i], out);
}

static void describe_sources(const struct zt_dataset *d, struct zt_str *out)
{
    zt_str_printf(out, "%d sources in turns", d->blend.n_sources);
    for (int i = 0; i < d->blend.n_sources; i++) {
        zt_str_printf(out, "; %.4g %% of the samples from ",
                      100.0 * d->blend.counts[i] / d->blend.period);
        zt_dataset_describe(d->sources[i], out);
    }
}

void zt_dataset_describe(const struct zt_dataset *d, struct zt_str *out)
{
    if (d->sources) {
        describe_sources(d, out);
        return;
    }
    zt_str_printf(out, "%d file%s, %lld tokens (%s), %lld sample%s of %lld", d->n_files,
                  d->n_files == 1 ? "" : "s", (long long)d->n_tokens, zt_token_kind_name(d->kind),
                  (long long)d->n_samples, d->n_samples == 1 ? "" : "s",
                  (long long)d->opts.seq_len);
    if (d->opts.packed) {
        zt_str_puts(out, ", packed: documents end with ");
        if (d->opts.separator >= 0)
            zt_str_printf(out, "token %lld and with ", (long long)d->opts.separator);
        zt_str_puts(out, d->kind == ZT_TOKENS_MEGATRON ? "their index" : "their file");
    }
    if (d->n_parts && d->parts[0].mask_name)
        zt_str_puts(out, ", targets masked");
    if (d->n_short)
        zt_str_printf(out, "; %d too short for a sample", d->n_short);
    if (d->n_left_out)
        zt_str_printf(out, "; %d left out: not %s", d->n_left_out,
                      d->kind == ZT_TOKENS_TEXT ? "text" : "tokens");
}
