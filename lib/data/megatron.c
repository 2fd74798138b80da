#include "data/megatron.h"

#include <inttypes.h>

#include "base/size.h"

enum { HEADER_BYTES = 34, VERSION = 1, BYTES_PER_SEQ = 4 + 8, BYTES_PER_MARK = 8 };

static const char magic[9] = "MMIDIDX\0";

struct header {
    uint8_t code;
    int64_t n_seqs, n_marks;
    const unsigned char *lengths, *pointers, *marks;
};

static uint64_t le(const unsigned char *p, int bytes)
{
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

static int64_t le64(const unsigned char *array, int64_t i)
{
    return (int64_t)le(array + 8 * i, 8);
}

bool zt_is_megatron_index(const void *bytes, size_t n)
{
    return n >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

static int parse_header(const struct zt_bytes *x, struct header *h, struct zt_err *err)
{
    if (x->n < HEADER_BYTES)
        return zt_err_set(err, ZT_EINPUT, "%s: %zu bytes, but a Megatron index has at least %d",
                          x->name, x->n, HEADER_BYTES);
    if (!zt_is_megatron_index(x->data, x->n))
        return zt_err_set(err, ZT_EINPUT, "%s: does not begin with a Megatron index's \"MMIDIDX\"",
                          x->name);
    uint64_t version = le(x->data + 9, 8), seqs = le(x->data + 18, 8), marks = le(x->data + 26, 8);
    h->code = x->data[17];
    if (version != VERSION)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: version %" PRIu64 " of Megatron's index; expected %d", x->name,
                          version, VERSION);
    /* Bounded by division first: the counts may be anything. */
    size_t body = x->n - HEADER_BYTES;
    bool fits = seqs <= body / BYTES_PER_SEQ && marks <= body / BYTES_PER_MARK;
    if (!fits || seqs * BYTES_PER_SEQ + marks * BYTES_PER_MARK != body)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: %zu bytes, which %" PRIu64 " sequences and %" PRIu64
                          " document marks do not make (%d + %d and %d for each); damaged, cut, of "
                          "several modes, or of fairseq, which has no marks",
                          x->name, x->n, seqs, marks, HEADER_BYTES, BYTES_PER_SEQ, BYTES_PER_MARK);
    h->n_seqs = (int64_t)seqs;
    h->n_marks = (int64_t)marks;
    h->lengths = x->data + HEADER_BYTES;
    h->pointers = h->lengths + 4 * seqs;
    h->marks = h->pointers + 8 * seqs;
    return 0;
}

static int check_type(const struct zt_bytes *x, uint8_t code, int *token_bytes, struct zt_err *err)
{
    static const struct {
        const char *name;
        int bytes; /* 0: not read as tokens */
    } types[] = {
        [1] = {"uint8", 1}, [2] = {"int8", 0},    [3] = {"int16", 0},   [4] = {"int32", 4},
        [5] = {"int64", 0}, [6] = {"float64", 0}, [7] = {"float32", 0}, [8] = {"uint16", 2}};
    const char *name = code < ZT_ARRAY_LEN(types) ? types[code].name : NULL;
    *token_bytes = name ? types[code].bytes : 0;
    if (*token_bytes)
        return 0;
    return zt_err_set(err, ZT_EINPUT,
                      "%s: tokens of type %s (code %d); uint8, uint16 and int32 are read", x->name,
                      name ? name : "unknown", code);
}

/* Sequences follow each other without gaps and fill the .bin. */
static int check_sequences(const struct zt_bytes *x, const struct zt_bytes *bin,
                           const struct header *h, int token_bytes, struct zt_err *err)
{
    int64_t at = 0; /* bytes */
    for (int64_t i = 0; i < h->n_seqs; i++) {
        int32_t length = (int32_t)le(h->lengths + 4 * i, 4);
        int64_t first = le64(h->pointers, i);
        if (length < 0)
            return zt_err_set(err, ZT_EINPUT, "%s: sequence %" PRId64 " has length %" PRId32,
                              x->name, i, length);
        if (first != at)
            return zt_err_set(err, ZT_EINPUT,
                              "%s: sequence %" PRId64 " begins at byte %" PRId64
                              ", but byte %" PRId64
                              " is where the one before it ends; %s has %zu bytes",
                              x->name, i, first, at, bin->name, bin->n);
        if (!zt_add_i64(at, (int64_t)length * token_bytes, &at))
            return zt_err_set(err, ZT_EINPUT, "%s: more than 2^63 bytes of tokens", x->name);
    }
    if ((uint64_t)at != bin->n)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: %zu bytes, but its index %s tells of %" PRId64
                          "; one of the two is damaged, cut, or of another file",
                          bin->name, bin->n, x->name, at);
    return 0;
}

static int check_marks(const struct zt_bytes *x, const struct header *h, struct zt_err *err)
{
    int64_t before = 0;
    for (int64_t i = 0; i < h->n_marks; i++) {
        int64_t mark = le64(h->marks, i);
        if (mark < before || mark > h->n_seqs || (i == 0 && mark != 0))
            return zt_err_set(err, ZT_EINPUT,
                              "%s: document mark %" PRId64 " is %" PRId64 "; expected %" PRId64
                              " to %" PRId64,
                              x->name, i, mark, before, i == 0 ? 0 : h->n_seqs);
        before = mark;
    }
    if (h->n_marks < 1 || before != h->n_seqs)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: the last document mark is %" PRId64 ", but there are %" PRId64
                          " sequences; the two must be equal",
                          x->name, before, h->n_seqs);
    return 0;
}

int zt_megatron_parse(const struct zt_bytes *index, const struct zt_bytes *bin,
                      struct zt_token_file *f, struct zt_err *err)
{
    struct header h = {0};
    memset(f, 0, sizeof *f);
    int rc = parse_header(index, &h, err);
    if (!rc)
        rc = check_type(index, h.code, &f->token_bytes, err);
    if (!rc)
        rc = check_sequences(index, bin, &h, f->token_bytes, err);
    if (!rc)
        rc = check_marks(index, &h, err);
    if (rc)
        return rc;
    f->name = bin->name;
    f->kind = ZT_TOKENS_MEGATRON;
    f->data = bin->data;
    f->n_tokens = (int64_t)bin->n / f->token_bytes;
    f->pointers = h.pointers;
    f->marks = h.marks;
    f->n_docs = h.n_marks - 1;
    return 0;
}

/* First token of a document: of its first sequence, or the end if only empty ones follow. */
static int64_t document_start(const struct zt_token_file *f, int64_t doc)
{
    uint64_t seq = le(f->marks + 8 * doc, 8), n_seqs = (uint64_t)(f->marks - f->pointers) / 8;
    return seq < n_seqs ? le64(f->pointers, (int64_t)seq) / f->token_bytes : f->n_tokens;
}

int64_t zt_megatron_next_document(const struct zt_token_file *f, int64_t pos)
{
    /* Starts never fall: below lo they are <= pos, from hi on > pos. */
    int64_t lo = 0, hi = f->n_docs;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (document_start(f, mid) <= pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < f->n_docs ? document_start(f, lo) : f->n_tokens;
}
