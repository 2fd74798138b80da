#include "train/engine.h"

#include "data/data.h"

/* A row of no sample: nothing is predicted. */
static void fill_masked(const struct zt_sample *row, int64_t n)
{
    for (int64_t t = 0; t < n; t++) {
        row->tokens[t] = 0;
        row->targets[t] = ZT_IGNORE_TARGET;
        row->positions[t] = (int32_t)t;
        row->seg_start[t] = 0;
    }
}

int64_t zt_feed_first(const struct zt_feed *f, int micro_batch)
{
    return ((int64_t)micro_batch * f->world + f->rank) * f->micro;
}

/* Layout of a batch buffer: per micro-batch tokens, targets, positions, seg_start, (B, T) each. */
int zt_feed_fill(const struct zt_feed *f, int64_t batch, int32_t *hbatch, struct zt_err *err)
{
    int64_t rows = f->micro, T = f->seq_len, plane = rows * T;
    int64_t first = batch * rows * f->world * f->accum + f->skew;
    for (int m = 0; m < f->accum; m++) {
        for (int64_t b = 0; b < rows; b++) {
            int64_t pos = first + zt_feed_first(f, m) + b;
            int32_t *tokens = hbatch + (int64_t)m * 4 * plane + b * T;
            struct zt_sample row = {tokens, tokens + plane, tokens + 2 * plane, tokens + 3 * plane};
            int rc = 0;
            if (f->end >= 0 && pos >= f->end)
                fill_masked(&row, T);
            else
                rc = zt_dataset_get(f->data, pos, &row, err);
            if (rc)
                return rc;
        }
    }
    return 0;
}
