#include "harness.h"

#include "metrics/report.h"

static const struct zt_report_row rows[] = {
    {.name = "a|b",
     .model = "gpt2",
     .offload = "none",
     .precision = "bf16",
     .n_params = 1000,
     .n_ranks = 2,
     .stage = 0,
     .batch = 4,
     .micro = 2,
     .accum = 1,
     .seq_len = 8,
     .steps = 5,
     .n_timed = 3,
     .step_ms = 12.34,
     .step_ms_p10 = 9.5,
     .step_ms_p90 = 1500,
     .tokens_per_s = 2593.2,
     .mfu = 0.4567,
     .device_peak_bytes = 1500000,
     .host_peak_bytes = 2000000,
     .predicted_bytes = 1600000,
     .touched_bytes = 1550000,
     .last_loss = 2.5,
     .best_loss = 2.25,
     .best_val_loss = NAN,
     .exit_code = 0,
     .result = "ok"},
    {.name = "b",
     .n_params = -1,
     .n_ranks = -1,
     .stage = 1,
     .batch = -1,
     .micro = -1,
     .accum = -1,
     .seq_len = -1,
     .steps = -1,
     .n_timed = -1,
     .step_ms = NAN,
     .step_ms_p10 = NAN,
     .step_ms_p90 = NAN,
     .tokens_per_s = NAN,
     .mfu = NAN,
     .device_peak_bytes = -1,
     .host_peak_bytes = -1,
     .predicted_bytes = -1,
     .touched_bytes = -1,
     .last_loss = NAN,
     .best_loss = NAN,
     .best_val_loss = NAN,
     .exit_code = 5,
     .offload = "none",
     .result = "out of memory",
     .message = "no room, \"said\" <it>\x1b[31m"},
};

static void check_table(enum zt_report_format format, const char *want)
{
    struct zt_str s = {0};
    zt_report_table(rows, 2, format, &s);
    CHECK_STR(zt_str_get(&s), want);
    zt_str_release(&s);
}

TEST(table_as_text)
{
    check_table(ZT_REPORT_TEXT,
                "model gpt2, parameters 1000, ranks 2, offload none, precision bf16, batch 4, "
                "micro-batch 2, accumulation 1, sequence 8\n"
                "\n"
                "run  stage  steps  step ms    p10-p90  tokens/s    MFU  device MB  host MB  "
                "predicted MB  touched MB    loss    best  result\n"
                "a|b      0      5     12.3  9.50-1500      2593  45.7%       1.50     2.00  "
                "        1.60        1.55  2.5000  2.2500  ok\n"
                "b        1      -        -          -         -      -          -        -  "
                "           -           -       -       -  out of memory\n"
                "\n"
                "b: no room, \"said\" <it>?[31m\n");
}

TEST(table_as_markdown)
{
    check_table(
        ZT_REPORT_MARKDOWN,
        "model gpt2, parameters 1000, ranks 2, offload none, precision bf16, batch 4, "
        "micro-batch 2, accumulation 1, sequence 8\n"
        "\n"
        "| run | stage | steps | step ms | p10-p90 | tokens/s | MFU | device MB | host MB | "
        "predicted MB | touched MB | loss | best | result |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n"
        "| a\\|b | 0 | 5 | 12.3 | 9.50-1500 | 2593 | 45.7% | 1.50 | 2.00 | 1.60 | 1.55 | "
        "2.5000 | 2.2500 | ok |\n"
        "| b | 1 | - | - | - | - | - | - | - | - | - | - | - | out of memory |\n"
        "\n"
        "- b: no room, \"said\" \\<it\\>?\\[31m\n");
}

TEST(table_as_csv)
{
    check_table(ZT_REPORT_CSV,
                "run,model,parameters,ranks,stage,offload,precision,batch,micro_batch,accumulation,"
                "seq_len,steps,timed_steps,step_ms,step_ms_p10,step_ms_p90,tokens_per_s,mfu,"
                "device_peak_bytes,host_peak_bytes,predicted_bytes,touched_bytes,last_loss,"
                "best_loss,best_val_loss,exit_code,result,message\n"
                "a|b,gpt2,1000,2,0,none,bf16,4,2,1,8,5,3,12.34,9.5,1500,2593.2,0.4567,1500000,"
                "2000000,1600000,1550000,2.5,2.25,,0,ok,\n"
                "b,,,,1,none,,,,,,,,,,,,,,,,,,,,5,out of memory,\"no room, \"\"said\"\" "
                "<it>?[31m\"\n");
}

TEST(text_is_cleaned)
{
    static const char *const cases[][2] = {
        {"ab\tc\x7f", "ab?c?"},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\xc2\x9b", "??"},
        {"\xc0\xaf", "??"},
        {"\xed\xa0\x80", "???"},
        {"\xef\xbf\xbf", "???"},
        {"\xe2\x82", "??"},
        {"\xf5\x80\x80\x80", "????"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_str s = {0};
        zt_report_clean(&s, cases[i][0]);
        CHECK_STR(zt_str_get(&s), cases[i][1]);
        zt_str_release(&s);
    }
}

TEST(svg_of_bars_and_of_what_has_none)
{
    struct zt_str s = {0};
    zt_report_svg(rows, 2, &s);
    CHECK(strstr(s.buf, "<title>a|b: 1.50 MB</title>"));
    CHECK(strstr(s.buf, "<title>a|b: 12.3 ms</title>"));
    CHECK(strstr(s.buf, ">stage 0</text>") && strstr(s.buf, ">stage 1</text>"));
    CHECK(strstr(s.buf, ">out of memory</text>"));
    CHECK(strstr(s.buf, "memory (MB)") && strstr(s.buf, "step time (ms)"));
    CHECK(!strstr(s.buf, "nan") && !strstr(s.buf, "inf<"));
    zt_str_release(&s);
    zt_report_svg(rows, 0, &s);
    CHECK(strstr(s.buf, "</svg>"));
    zt_str_release(&s);
}

/* The same stage twice: bars are named by their runs. */
TEST(svg_names_runs_that_stages_do_not_tell_apart)
{
    struct zt_report_row twice[2] = {rows[0], rows[0]};
    struct zt_str s = {0};
    twice[1].name = "<&\xff\" and a name that goes on and on";
    zt_report_svg(twice, 2, &s);
    CHECK(strstr(s.buf, ">a|b</text>"));
    CHECK(strstr(s.buf, "&lt;&amp;?&quot; and a name that goes on…</text>"));
    zt_str_release(&s);
}

/* Numbers that no run has still give a chart that ends. */
TEST(svg_of_absurd_numbers)
{
    static const double absurd[] = {5e-324, 1e-300, 1e300, 1.7e308};
    for (size_t i = 0; i < ZT_ARRAY_LEN(absurd); i++) {
        struct zt_report_row row = rows[0];
        struct zt_str s = {0};
        row.step_ms = row.step_ms_p10 = row.step_ms_p90 = absurd[i];
        row.device_peak_bytes = INT64_MAX;
        zt_report_svg(&row, 1, &s);
        CHECK(strstr(s.buf, "</svg>"));
        zt_str_release(&s);
    }
}

TEST_MAIN()
