#include "train/engine.h"

#include "data/data.h"

/* Layout of a batch buffer: per micro-batch tokens, targets, positions, seg_start, (B, T) each. */
int zt_feed_fill(const struct zt_feed *f, int64_t batch, int32_t *hbatch, struct zt_err *err)
{
    int64_t rows = f->micro, T = f->seq_len, plane = rows * T;
    int64_t first = batch * rows * f->world * f->accum;
    for (int m = 0; m < f->accum; m++) {
        int32_t *tokens = hbatch + (int64_t)m * 4 * plane;
        int32_t *targets = tokens + plane, *positions = targets + plane;
        int32_t *seg_start = positions + plane;
        for (int64_t b = 0; b < rows; b++) {
            int64_t pos = first + ((int64_t)m * f->world + f->rank) * rows + b;
            for (int64_t t = 0; t < T; t++) {
                positions[b * T + t] = (int32_t)t;
                seg_start[b * T + t] = 0;
            }
            if (f->end >= 0 && pos >= f->end) {
                for (int64_t t = 0; t < T; t++) {
                    tokens[b * T + t] = 0;
                    targets[b * T + t] = -100;
                }
                continue;
            }
            int rc = zt_dataset_get(f->data, pos, tokens + b * T, targets + b * T, err);
            if (rc)
                return rc;
        }
    }
    return 0;
}
