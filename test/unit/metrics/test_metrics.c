#include "harness.h"

#include "metrics/metrics.h"

static const struct zt_metrics sample = {
    .step = 100,
    .loss = 2.3456,
    .lr = 1e-3,
    .grad_norm = 0.53,
    .grad_norm_clipped = 0.53,
    .loss_scale = 1,
    .tokens = 1638400,
    .targets = 16000,
    .tokens_per_s = 12345.6,
    .step_ms = 6.5,
    .mfu = 0.412,
    .device_peak_bytes = 1200000000,
    .host_peak_bytes = 300000000,
};

TEST(metrics_mfu)
{
    struct zt_mfu m = {.peak = 100};
    bool raised;
    CHECK_NEAR(zt_mfu_step(&m, 20, 0.4, &raised), 0.5, 1e-12);
    CHECK_NEAR(zt_mfu_step(&m, 30, 0.1, &raised), 1, 0); /* one reported late: it counts as 1, */
    CHECK(!raised && m.peak == 100);                     /* and nothing follows from it */
    CHECK_NEAR(zt_mfu_step(&m, 150, 0.5, &raised), 1, 0);
    CHECK(raised && m.peak == 200); /* 200 FLOPs in a second */
    CHECK_NEAR(zt_mfu_step(&m, 100, 1, &raised), 0.5, 1e-12);
    CHECK(!raised && m.peak == 200);
    m = (struct zt_mfu){0};
    CHECK(isnan(zt_mfu_step(&m, 100, 1, &raised)) && !raised);
}

TEST(metrics_json_text)
{
    struct zt_str s = {0};
    zt_metrics_to_json(&sample, &s);
    CHECK_STR(
        zt_str_get(&s),
        "{\"type\": \"step\", \"step\": 100, \"loss\": 2.3456, \"lr\": 0.001, "
        "\"grad_norm\": 0.53, \"grad_norm_clipped\": 0.53, \"loss_scale\": 1, \"skipped\": 0, "
        "\"tokens\": 1638400, \"targets\": 16000, \"tokens_per_s\": 12345.6, \"step_ms\": 6.5, "
        "\"mfu\": 0.412, "
        "\"device_peak_bytes\": 1200000000, \"host_peak_bytes\": 300000000}");
    zt_str_release(&s);
}

/* Every double comes back bit for bit, every non-finite one as NAN. */
TEST(metrics_json_round_trip)
{
    static const double numbers[] = {
        0.1,   1.0 / 3, 2.654794190765, 5e-324,   1.7976931348623157e308, -0.125, 6e-5,
        65536, NAN,     INFINITY,       -INFINITY};
    for (size_t i = 0; i < ZT_ARRAY_LEN(numbers); i++) {
        struct zt_metrics m = sample, back;
        struct zt_str s = {0};
        struct zt_err err;
        m.loss = m.grad_norm = m.val_loss = numbers[i];
        m.has_val = i % 2;
        m.tokens = INT64_MAX;
        zt_metrics_to_json(&m, &s);
        CHECK_OK(zt_metrics_from_json(s.buf, s.len, &back, &err), err);
        zt_str_release(&s);
        CHECK(isfinite(numbers[i]) ? back.loss == numbers[i] : isnan(back.loss));
        CHECK(isfinite(numbers[i]) ? back.grad_norm == numbers[i] : isnan(back.grad_norm));
        CHECK_INT(back.has_val, m.has_val);
        CHECK(!m.has_val || !isfinite(numbers[i]) || back.val_loss == numbers[i]);
        CHECK_INT(back.tokens, INT64_MAX);
        CHECK_INT(back.step, 100);
        CHECK(back.lr == m.lr && back.mfu == m.mfu && back.step_ms == m.step_ms);
        CHECK_INT(back.device_peak_bytes, m.device_peak_bytes);
    }
}

TEST(metrics_json_breakdown)
{
    struct zt_metrics m = sample, back;
    struct zt_str s = {0};
    struct zt_err err;
    char line[160];
    m.has_breakdown = true;
    m.breakdown = (struct zt_breakdown){
        .busy_ms = {2.125, 4.25, 0.5, 1.5, 0.75, 0.125},
        .exposed_ms = {2.125, 4.25, 0.5, 0.25, 0, 0.125},
        .total_ms = 7.25,
    };
    zt_metrics_to_json(&m, &s);
    CHECK(strstr(s.buf,
                 ", \"breakdown_ms\": {\"total\": 7.25, \"forward\": 2.125, \"backward\": 4.25, "
                 "\"update\": 0.5, \"reduce\": 1.5, \"reduce_exposed\": 0.25, \"gather\": 0.75, "
                 "\"gather_exposed\": 0, \"wait\": 0.125}}"));
    CHECK_OK(zt_metrics_from_json(s.buf, s.len, &back, &err), err);
    zt_str_release(&s);
    CHECK(back.has_breakdown);
    CHECK(memcmp(&back.breakdown, &m.breakdown, sizeof m.breakdown) == 0);
    CHECK_STR(
        zt_breakdown_line(&m.breakdown, line, sizeof line),
        "forward 2.1, backward 4.2, update 0.5, reduce 0.2 of 1.5, gather 0.0 of 0.8, wait 0.1 ms");
    static const char bad[] = "{\"step\": 1, \"breakdown_ms\": {\"wait\": \"long\"}}";
    CHECK_INT(zt_metrics_from_json(bad, strlen(bad), &back, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "wait is neither"));
}

TEST(metrics_json_from_elsewhere)
{
    static const struct {
        const char *json, *message; /* NULL: accepted */
    } cases[] = {
        {"{\"step\": 3}", NULL},
        {"{\"step\": 3, \"loss\": null, \"lr\": 1, \"new\": [1]}", NULL},
        {"{}", "no step"},
        {"{\"step\": 1.5}", "no step"},
        {"{\"step\": 1, \"loss\": \"2\"}", "loss is neither"},
        {"{\"step\": 1, \"tokens\": 2.5}", "tokens is no integer"},
        {"{\"step\": 1, \"step\": 2}", "duplicate"},
        {"{\"step\": 1, \"loss\": NaN}", "metrics: column"},
        {"", "metrics: column"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_metrics m;
        struct zt_err err = {0};
        int rc = zt_metrics_from_json(cases[i].json, strlen(cases[i].json), &m, &err);
        if (cases[i].message ? rc != ZT_EINPUT || !strstr(err.msg, cases[i].message) : rc != 0)
            FAIL("%s: %s", cases[i].json, err.msg);
        if (!rc)
            CHECK(m.step == 3 && isnan(m.loss) && !m.has_val && m.tokens == 0);
    }
}

TEST(metrics_line_of_a_step)
{
    char buf[256];
    struct zt_metrics m = sample;
    CHECK_STR(
        zt_metrics_line(&m, 2000, buf, sizeof buf),
        "step 100/2000 loss 2.3456 lr 1.0e-03 norm 0.53 12.3k tok/s mfu 41% 1.20 GB eta 0:12");
    m.has_val = true;
    m.val_loss = 2.5;
    m.loss_scale = 65536;
    m.skipped = 3;
    CHECK_STR(
        zt_metrics_line(&m, 100, buf, sizeof buf),
        "step 100/100 loss 2.3456 val 2.5000 lr 1.0e-03 norm 0.53 12.3k tok/s mfu 41% 1.20 GB "
        "scale 65536 skipped 3 eta 0:00");
    CHECK_STR(zt_metrics_line(&m, 100, buf, 13), "step 100/100");
}

TEST(metrics_line_leaves_out_the_unknown)
{
    char buf[256];
    struct zt_metrics m = {.step = 1, .loss = NAN, .lr = 6e-4, .grad_norm = INFINITY, .mfu = NAN};
    m.tokens_per_s = m.step_ms = NAN;
    m.targets = 8;
    CHECK_STR(zt_metrics_line(&m, 10, buf, sizeof buf), "step 1/10 loss nan lr 6.0e-04 norm inf");
    m.targets = 0;
    m.grad_norm = 0;
    CHECK_STR(zt_metrics_line(&m, 10, buf, sizeof buf),
              "step 1/10 no targets lr 6.0e-04 norm 0.00");
}

TEST(metrics_line_units)
{
    static const struct {
        double tokens_per_s, step_ms;
        const char *rate, *eta;
    } cases[] = {
        {950, 600, " 950 tok/s", "eta 0:59"},
        {999.6, 600, " 1.0k tok/s", "eta 0:59"},
        {99949, 36600, " 99.9k tok/s", "eta 1:00:23"},
        {99960, 1, " 100k tok/s", "eta 0:00"},
        {1250000, 2.7e6, " 1.2M tok/s", "eta 3d 02:15"},
        {3, 1e12, " 3 tok/s", "eta 1145833d"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        char buf[256];
        struct zt_metrics m = sample;
        m.step = 1;
        m.tokens_per_s = cases[i].tokens_per_s;
        m.step_ms = cases[i].step_ms;
        zt_metrics_line(&m, 100, buf, sizeof buf);
        if (!strstr(buf, cases[i].rate) || !strstr(buf, cases[i].eta))
            FAIL("%s; not %s, %s", buf, cases[i].rate, cases[i].eta);
    }
}

TEST_MAIN()
