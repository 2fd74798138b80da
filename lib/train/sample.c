#include "train/run.h"

#include <math.h>

#include "base/rng.h"

static int by_logit(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The k-th largest logit: smaller ones are not drawn. */
static float top_k_floor(const float *logits, int64_t vocab, int top_k)
{
    if (top_k <= 0 || top_k >= vocab)
        return -INFINITY;
    float *sorted = zt_xcalloc((size_t)vocab, sizeof *sorted);
    memcpy(sorted, logits, (size_t)vocab * sizeof *sorted);
    qsort(sorted, (size_t)vocab, sizeof *sorted, by_logit);
    float floor_logit = sorted[top_k - 1];
    free(sorted);
    return floor_logit;
}

int32_t zt_pick_token(const float *logits, int64_t vocab, double temperature, int top_k, double u)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    if (temperature <= 0)
        return (int32_t)best;
    float least = top_k_floor(logits, vocab, top_k);
    double sum = 0, at = 0;
    for (int64_t i = 0; i < vocab; i++)
        if (logits[i] >= least)
            sum += exp(((double)logits[i] - (double)logits[best]) / temperature);
    for (int64_t i = 0; i < vocab; i++) {
        if (!(logits[i] >= least))
            continue;
        at += exp(((double)logits[i] - (double)logits[best]) / temperature);
        if (at >= u * sum)
            return (int32_t)i;
    }
    return (int32_t)best;
}

/* Length of the UTF-8 character that p[0..n) starts with and a terminal may be shown; 0: none. */
static size_t shown_bytes(const char *p, size_t n)
{
    uint32_t code = 0;
    const size_t len = zt_utf8_char(p, n, &code);
    const bool control = code < 0x20 ? code != '\n' && code != '\t' : code >= 0x7f && code < 0xa0;
    return len && !control ? len : 0;
}

void zt_printable(const void *bytes, size_t n, struct zt_str *out)
{
    const char *p = bytes;
    while (n > 0) {
        size_t len = shown_bytes(p, n);
        if (len)
            zt_str_add(out, p, len);
        else
            zt_str_printf(out, "\\x%02x", (unsigned char)p[0]);
        len = ZT_MAX(len, (size_t)1);
        p += len;
        n -= len;
    }
}

static void tokens_to_text(const int32_t *tokens, int64_t n, bool is_text, struct zt_str *text)
{
    struct zt_str bytes = {0};
    for (int64_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)tokens[i];
        if (is_text && tokens[i] < 256)
            zt_str_add(&bytes, &byte, 1);
        else
            zt_str_printf(&bytes, "<%d>", tokens[i]);
    }
    zt_printable(zt_str_get(&bytes), bytes.len, text);
    zt_str_release(&bytes);
}

/* Where the last run of a program left its result on the host. */
static const void *result_of(const struct zt_engine *e, enum zt_program_kind k)
{
    const struct zt_program *prog = &e->plan->programs[k];
    for (int i = 0; i < prog->n_ops; i++)
        if (prog->ops[i].kind == ZT_OP_RESULT)
            return zt_engine_operand(e, prog, &prog->ops[i], ZT_R_RESULT, 0);
    return NULL;
}

int zt_run_sample(struct zt_engine *e, const struct zt_sampling *s, int64_t step,
                  struct zt_str *text, struct zt_err *err)
{
    int64_t T = e->plan->cfg.seq_len, vocab = e->plan->model->cfg.vocab_size;
    int64_t n = (int64_t)strlen(s->prompt), total = n + s->n_tokens;
    ZT_ASSERT_CMP(n, >, 0);
    int32_t *tokens = zt_xcalloc((size_t)total, sizeof *tokens);
    int32_t *window = zt_xcalloc((size_t)T, sizeof *window);
    const float *logits = result_of(e, ZT_PROG_GENERATE);
    int rc = 0;
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (unsigned char)s->prompt[i];
    for (; n < total && !rc; n++) {
        int64_t len = ZT_MIN(n, T);
        memset(window, 0, (size_t)T * sizeof *window); /* later positions are not seen */
        memcpy(window, tokens + n - len, (size_t)len * sizeof *window);
        e->prompt = window;
        e->logits_at = len - 1;
        zt_engine_run(e, ZT_PROG_GENERATE);
        rc = zt_engine_drain(e, err);
        if (rc)
            break;
        struct zt_philox_block b = zt_philox(s->seed, ZT_RNG_SAMPLE, (uint64_t)step, (uint64_t)n);
        tokens[n] = zt_pick_token(logits, vocab, s->temperature, s->top_k, zt_uniform(b.v[0]));
    }
    if (!rc)
        tokens_to_text(tokens, n, s->is_text, text);
    free(tokens);
    free(window);
    return rc;
}

int zt_run_eval(struct zt_engine *e, int64_t max_batches, double *loss, int64_t *tokens,
                struct zt_err *err)
{
    const struct zt_feed *f = e->feed_eval;
    int64_t rows = f->micro * f->world;
    int64_t n = (f->end + rows - 1) / rows;
    if (max_batches > 0)
        n = ZT_MIN(n, max_batches);
    double sum = 0;
    *tokens = 0;
    for (int64_t i = 0; i < n; i++) {
        e->next_batch = i;
        zt_engine_run(e, ZT_PROG_EVAL);
        int rc = zt_engine_drain(e, err);
        if (rc)
            return rc;
        const struct zt_eval_record *records = result_of(e, ZT_PROG_EVAL);
        for (int r = 0; r < f->world; r++) {
            sum += records[r].loss_sum;
            *tokens += records[r].count.tokens;
        }
    }
    *loss = *tokens ? sum / (double)*tokens : (double)NAN;
    return 0;
}
