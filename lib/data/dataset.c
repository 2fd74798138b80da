#include "data/data.h"

#include "base/arena.h"
#include "base/io.h"
#include "base/rng.h"
#include "base/size.h"
#include "data/paths.h"
#include "data/token_file.h"

/* Below the kernel's usual limit of 65530 mappings of a process. */
enum { MAX_MAPPED_FILES = 32768 };

/* The part of a file that lies in the range and gives at least one sample. */
struct part {
    struct zt_mapped map;
    struct zt_token_file file;
    int64_t begin;        /* first token */
    int64_t first_sample; /* of the dataset */
};

struct zt_dataset {
    struct zt_dataset_opts opts;
    struct zt_arena arena;
    struct part *parts;
    size_t n_parts, parts_cap;
    int64_t n_samples;
    int64_t n_tokens;   /* inside the range, of all files */
    int64_t all_tokens; /* of all files */
    int64_t longest;    /* tokens of the longest part */
    int n_files;        /* that overlap the range */
    int n_short;        /* of these: too short for a sample */
    int n_left_out;
    const char *first_name; /* decides the kind of all */
    enum zt_token_kind kind;
};

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
    return 0;
}

/* Whether a file found in a folder is data at all. */
static bool is_data(const struct zt_data_path *p, const struct zt_mapped *m,
                    enum zt_data_format format)
{
    switch (format) {
    case ZT_DATA_LLMC:
    case ZT_DATA_RAW_U16:
        return zt_is_bin_name(p->path);
    case ZT_DATA_AUTO:
        if (zt_is_llmc(m->data, m->bytes))
            return true;
        break;
    case ZT_DATA_TEXT:
        break;
    }
    return !zt_is_binary(m->data, m->bytes) && !zt_is_bin_name(p->path);
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
 * Count the next file of the concatenation, and keep its mapping if it holds a sample of the range;
 * then *m is emptied.
 */
static int take(struct zt_dataset *d, struct zt_mapped *m, const struct zt_token_file *f,
                struct zt_err *err)
{
    int64_t at = d->all_tokens;
    if (!zt_add_i64(at, f->n_tokens, &d->all_tokens))
        return zt_err_set(err, ZT_EINPUT, "%s: more than 2^63 tokens in all", f->name);
    int64_t begin = ZT_MAX(d->opts.range[0], at), end = d->all_tokens;
    if (d->opts.range[1] != -1)
        end = ZT_MIN(end, d->opts.range[1]);
    if (begin >= end)
        return 0;
    int64_t n = end - begin, samples = (n - 1) / d->opts.seq_len;
    d->n_files++;
    d->n_tokens += n;
    d->longest = ZT_MAX(d->longest, n);
    if (samples == 0) {
        d->n_short++;
        return 0;
    }
    if (d->n_parts == MAX_MAPPED_FILES)
        return zt_err_set(err, ZT_EINPUT, "%s: more than %d files; concatenate them", f->name,
                          MAX_MAPPED_FILES);
    ZT_GROW(d->parts, d->n_parts + 1, d->parts_cap);
    d->parts[d->n_parts++] = (struct part){*m, *f, begin - at, d->n_samples};
    d->n_samples += samples;
    memset(m, 0, sizeof *m);
    return 0;
}

static int add_file(struct zt_dataset *d, const struct zt_data_path *p, struct zt_err *err)
{
    struct zt_mapped m;
    struct zt_token_file f;
    int rc = zt_map_file(p->path, &m, err);
    if (rc)
        return rc;
    if (p->in_folder && !is_data(p, &m, d->opts.format)) {
        d->n_left_out++;
        goto out;
    }
    rc = zt_token_file_parse(p->path, m.data, m.bytes, d->opts.format, &f, err);
    if (!rc)
        rc = check_kind(d, &f, err);
    if (!rc)
        rc = take(d, &m, &f, err);
out:
    zt_unmap_file(&m);
    return rc;
}

static int check_found(const struct zt_dataset *d, struct zt_err *err)
{
    const struct zt_dataset_opts *o = &d->opts;
    int64_t need = ZT_MAX(o->range[0] + 1, o->range[1]);
    if (!d->first_name)
        return zt_err_set(
            err, ZT_EINPUT,
            "%s: no data in %s: %d files left out; set data.format, or name the files",
            o->paths.items[0], o->paths.n > 1 ? "it and the others" : "it", d->n_left_out);
    if (need > d->all_tokens)
        return zt_err_set(
            err, ZT_EINPUT, "token range [%lld, %lld) reaches past the %lld tokens of the data",
            (long long)ZT_MAX(o->range[0], 0),
            (long long)(o->range[1] == -1 ? d->all_tokens : o->range[1]), (long long)d->all_tokens);
    if (d->n_samples == 0)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: no sample: seq_len %lld needs a file with %lld tokens in the range, "
                          "but the longest of %d has %lld; give more data or a smaller seq_len",
                          d->first_name, (long long)o->seq_len, (long long)o->seq_len + 1,
                          d->n_files, (long long)d->longest);
    return 0;
}

int zt_dataset_open(const struct zt_dataset_opts *opts, struct zt_dataset **out, struct zt_err *err)
{
    int rc = check_opts(opts, err);
    if (rc)
        return rc;
    struct zt_dataset *d = zt_xcalloc(1, sizeof *d);
    struct zt_data_paths paths = {0};
    d->opts = *opts;
    rc = zt_data_paths_find(&opts->paths, &d->arena, &paths, err);
    for (size_t i = 0; !rc && i < paths.n; i++)
        rc = add_file(d, &paths.items[i], err);
    if (!rc)
        rc = check_found(d, err);
    free(paths.items);
    d->opts.paths = (struct zt_str_list){0}; /* the caller's */
    if (rc) {
        zt_dataset_free(d);
        d = NULL;
    }
    *out = d;
    return rc;
}

void zt_dataset_free(struct zt_dataset *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n_parts; i++)
        zt_unmap_file(&d->parts[i].map);
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

int zt_dataset_files(const struct zt_dataset *d)
{
    return d->n_files;
}

bool zt_dataset_is_text(const struct zt_dataset *d)
{
    return d->kind == ZT_TOKENS_TEXT;
}

void zt_dataset_describe(const struct zt_dataset *d, struct zt_str *out)
{
    zt_str_printf(out, "%d file%s, %lld tokens (%s), %lld sample%s of %lld", d->n_files,
                  d->n_files == 1 ? "" : "s", (long long)d->n_tokens, zt_token_kind_name(d->kind),
                  (long long)d->n_samples, d->n_samples == 1 ? "" : "s",
                  (long long)d->opts.seq_len);
    if (d->n_short)
        zt_str_printf(out, "; %d too short for a sample", d->n_short);
    if (d->n_left_out)
        zt_str_printf(out, "; %d left out: not %s", d->n_left_out,
                      d->kind == ZT_TOKENS_TEXT ? "text" : "tokens");
}

/* The part that sample `i` lies in. */
static const struct part *find_part(const struct zt_dataset *d, int64_t i)
{
    size_t lo = 0, hi = d->n_parts;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (d->parts[mid].first_sample <= i)
            lo = mid;
        else
            hi = mid;
    }
    return &d->parts[lo];
}

int zt_dataset_get(const struct zt_dataset *d, int64_t pos, int32_t *tokens, int32_t *targets,
                   struct zt_err *err)
{
    ZT_ASSERT_CMP(pos, >=, 0);
    int64_t n = d->opts.seq_len, i = pos % d->n_samples;
    if (d->opts.shuffle)
        i = zt_permute(d->opts.seed, (uint64_t)(pos / d->n_samples), d->n_samples, i);
    const struct part *p = find_part(d, i);
    int64_t begin = p->begin + (i - p->first_sample) * n;
    int rc = zt_token_file_read(&p->file, begin, n, d->opts.vocab_size, tokens, err);
    if (rc)
        return rc;
    memcpy(targets, tokens + 1, (size_t)(n - 1) * sizeof *targets);
    return zt_token_file_read(&p->file, begin + n, 1, d->opts.vocab_size, targets + n - 1, err);
}
