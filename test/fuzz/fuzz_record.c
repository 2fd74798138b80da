/*
 * The files of a run folder from strangers: whatever is read can be shown. The first byte chooses the
 * file; metrics.jsonl comes in pieces of the size that the second byte says, and must not depend on it.
 */
#include <math.h>

#include "metrics/record.h"
#include "metrics/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int read_pieces(const char *text, size_t n, size_t piece, struct zt_record_steps *s)
{
    struct zt_record_reader r;
    struct zt_err err;
    int rc = 0;
    zt_record_begin(&r, "fuzz", s);
    for (size_t at = 0; at < n && !rc; at += piece)
        rc = zt_record_feed(&r, text + at, ZT_MIN(piece, n - at), &err);
    if (!rc)
        rc = zt_record_end(&r, -1, &err);
    zt_record_reader_release(&r);
    zt_record_steps_release(s);
    return rc;
}

static void show(const struct zt_report_row *row)
{
    struct zt_str out = {0};
    for (int f = ZT_REPORT_TEXT; f <= ZT_REPORT_CSV; f++)
        zt_report_table(row, 1, (enum zt_report_format)f, &out);
    zt_report_svg(row, 1, &out);
    ZT_ASSERT(strlen(out.buf) == out.len);
    zt_str_release(&out);
}

static void check_steps(const char *text, size_t n, size_t piece)
{
    struct zt_record_steps s, whole;
    int rc = read_pieces(text, n, piece, &s);
    ZT_ASSERT_CMP(rc, ==, read_pieces(text, n, n + 1, &whole));
    if (rc)
        return;
    ZT_ASSERT(s.steps == whole.steps && s.n_timed == whole.n_timed);
    ZT_ASSERT(s.step_ms.n == 0 || (s.step_ms.p10 <= s.step_ms.median &&
                                   s.step_ms.median <= s.step_ms.p90 && s.step_ms.p10 > 0));
    struct zt_report_row row = {.name = "fuzz",
                                .steps = s.steps,
                                .step_ms = s.step_ms.median,
                                .step_ms_p10 = s.step_ms.p10,
                                .step_ms_p90 = s.step_ms.p90,
                                .tokens_per_s = s.tokens_per_step / s.step_ms.median,
                                .mfu = s.mfu,
                                .device_peak_bytes = s.device_peak_bytes,
                                .host_peak_bytes = s.host_peak_bytes,
                                .last_loss = s.last_loss,
                                .best_loss = s.best_loss,
                                .best_val_loss = s.best_val_loss};
    show(&row);
}

static void check_summary(const char *text, size_t n)
{
    struct zt_record_summary s;
    struct zt_err err;
    if (zt_record_parse_summary("fuzz", text, n, &s, &err))
        return;
    ZT_ASSERT(s.exit_code >= 0 && s.exit_code <= 255 && s.touched_bytes >= -1);
}

static void check_sweep(const char *text, size_t n)
{
    struct zt_record_sweep s;
    struct zt_err err;
    if (zt_record_parse_sweep("fuzz", text, n, &s, &err))
        return;
    struct zt_report_row row = {.name = s.message ? s.message : "fuzz",
                                .offload = s.offload,
                                .stage = s.stage,
                                .exit_code = s.exit_code,
                                .message = s.message,
                                .step_ms = NAN,
                                .device_peak_bytes = -1};
    show(&row);
    zt_record_sweep_release(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2)
        return 0;
    const char *text = (const char *)data + 2;
    if (data[0] % 3 == 0)
        check_steps(text, n - 2, data[1] + (size_t)1);
    else if (data[0] % 3 == 1)
        check_summary(text, n - 2);
    else
        check_sweep(text, n - 2);
    return 0;
}
