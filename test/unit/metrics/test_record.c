#include "harness.h"

#include <unistd.h>

#include "base/io.h"
#include "metrics/record.h"

static const char three_steps[] =
    "{\"type\": \"step\", \"step\": 1, \"loss\": 5.0, \"tokens\": 128, \"step_ms\": null}\n"
    "{\"type\": \"step\", \"step\": 2, \"loss\": 3.0, \"tokens\": 256, \"step_ms\": 10, \"mfu\": "
    "0.5, "
    "\"device_peak_bytes\": 1000, \"host_peak_bytes\": 70}\n"
    "{\"type\": \"step\", \"step\": 3, \"loss\": 4.0, \"tokens\": 384, \"step_ms\": 20, \"mfu\": "
    "0.25, "
    "\"device_peak_bytes\": 1000, \"host_peak_bytes\": 60, \"val_loss\": 3.5}\n";

/* All at once, or in pieces of `piece` bytes. */
static int read_text(const char *text, size_t piece, int64_t warmup, struct zt_record_steps *s,
                     struct zt_err *err)
{
    struct zt_record_reader r;
    int rc = 0;
    size_t len = strlen(text);
    zt_record_begin(&r, "m.jsonl", s);
    for (size_t at = 0; at < len && !rc; at += piece)
        rc = zt_record_feed(&r, text + at, ZT_MIN(piece, len - at), err);
    if (!rc)
        rc = zt_record_end(&r, warmup, err);
    zt_record_reader_release(&r);
    zt_record_steps_release(s);
    return rc;
}

TEST(steps_in_pieces_of_any_size)
{
    for (size_t piece = 1; piece < sizeof three_steps; piece += 7) {
        struct zt_record_steps s;
        struct zt_err err;
        CHECK_OK(read_text(three_steps, piece, 0, &s, &err), err);
        CHECK_INT(s.steps, 3);
        CHECK_NEAR(s.tokens_per_step, 128, 0);
        CHECK_NEAR(s.last_loss, 4, 0);
        CHECK_NEAR(s.best_loss, 3, 0);
        CHECK_NEAR(s.best_val_loss, 3.5, 0);
        CHECK_INT(s.device_peak_bytes, 1000);
        CHECK_INT(s.host_peak_bytes, 70);
        CHECK_INT(s.step_ms.n, 2); /* the first was not timed */
        CHECK_NEAR(s.step_ms.median, 15, 0);
        CHECK_NEAR(s.mfu, 0.375, 0);
    }
}

TEST(warmup_is_left_out)
{
    struct zt_record_steps s;
    struct zt_err err;
    CHECK_OK(read_text(three_steps, 1000, 1, &s, &err), err);
    CHECK_INT(s.step_ms.n, 1);
    CHECK_NEAR(s.step_ms.median, 20, 0);
    CHECK_OK(read_text(three_steps, 1000, 2, &s, &err), err);
    CHECK_INT(s.step_ms.n, 0);
    CHECK(isnan(s.step_ms.median));
    CHECK_OK(read_text(three_steps, 1000, -1, &s, &err), err);
    CHECK_INT(s.step_ms.n, 1);
}

/* Cut anywhere in its last line, a file says what its whole lines say. */
TEST(a_half_written_last_line_is_left_out)
{
    size_t len = strlen(three_steps), last = len - 1;
    while (three_steps[last - 1] != '\n')
        last--;
    for (size_t cut = last; cut < len; cut++) {
        char text[sizeof three_steps];
        struct zt_record_steps s;
        struct zt_err err;
        snprintf(text, sizeof text, "%.*s", (int)cut, three_steps);
        CHECK_OK(read_text(text, 100, 0, &s, &err), err);
        CHECK_INT(s.steps, cut == len - 1 ? 3 : 2); /* only the newline is missing */
    }
}

TEST(what_is_wrong_is_named_with_its_line)
{
    static const char *const bad[][2] = {
        {"{\"step\": 1}\nnonsense\n{\"step\": 2}\n", "m.jsonl:2: "},
        {"{\"step\": 1}\n\n", "m.jsonl:2: "},
        {"{\"step\": 1}\n{\"step\": \"2\"}\n", "m.jsonl:2: metrics: no step"},
        {"{\"step\": 0}\n", "m.jsonl:1: step and tokens"},
        {"{\"step\": 1, \"tokens\": -1}\n", "m.jsonl:1: step and tokens"},
        {"[1]\n", "m.jsonl:1: "},
        {"{\"step\": 1}\n{\"step\": -2}", "m.jsonl:2: "}, /* whole, but for its newline */
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(bad); i++) {
        struct zt_record_steps s;
        struct zt_err err;
        CHECK_INT(read_text(bad[i][0], 5, -1, &s, &err), ZT_EINPUT);
        if (strncmp(err.msg, bad[i][1], strlen(bad[i][1])) != 0)
            FAIL("\"%s\" does not begin with \"%s\"", err.msg, bad[i][1]);
    }
}

TEST(a_line_has_an_end)
{
    char *text = malloc(ZT_RECORD_MAX_LINE + 2);
    struct zt_record_steps s;
    struct zt_err err;
    CHECK(text);
    memset(text, ' ', ZT_RECORD_MAX_LINE + 1);
    text[ZT_RECORD_MAX_LINE + 1] = '\0';
    CHECK_INT(read_text(text, 1000, -1, &s, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "m.jsonl:1: longer than"));
    text[ZT_RECORD_MAX_LINE] = '\0';
    CHECK_OK(read_text(text, 1000, -1, &s, &err), err);
    CHECK_INT(s.steps, 0);
    free(text);
}

static int parse_summary(const char *text, struct zt_record_summary *s, struct zt_err *err)
{
    return zt_record_parse_summary("s.json", text, strlen(text), s, err);
}

TEST(summary_has_the_fullest_ranks)
{
    struct zt_record_summary s;
    struct zt_err err;
    CHECK_OK(
        parse_summary("{\"exit_code\": 5, \"stopped\": null, \"best_val_loss\": 2.5, \"memory\": "
                      "[{\"rank\": 0, \"touched_bytes\": 9, \"predicted_bytes\": 10},"
                      " {\"rank\": 1, \"touched_bytes\": 7, \"predicted_bytes\": 11, "
                      "\"device_touched_bytes\": 4}]}",
                      &s, &err),
        err);
    CHECK_INT(s.exit_code, 5);
    CHECK_INT(s.stopped, ZT_RECORD_NOT_STOPPED);
    CHECK_NEAR(s.best_val_loss, 2.5, 0);
    CHECK_INT(s.touched_bytes, 9);
    CHECK_INT(s.predicted_bytes, 11);
    CHECK_INT(s.device_touched_bytes, 4);
    CHECK_INT(s.rss_peak_bytes, -1);
    CHECK_OK(parse_summary("{\"exit_code\": 0, \"stopped\": \"loss\"}", &s, &err), err);
    CHECK_INT(s.stopped, ZT_RECORD_STOP_LOSS);
    CHECK(isnan(s.best_val_loss));
}

TEST(summary_errors_have_a_line)
{
    static const char *const bad[][2] = {
        {"", "s.json:1:"},
        {"{\n \"exit_code\": 0,\n", "s.json:3:"},
        {"[]", "s.json:1: not an object"},
        {"{}", "s.json:1: exit_code"},
        {"{\n \"exit_code\": null}", "s.json:2: exit_code"},
        {"{\"exit_code\": 256}", "s.json:1: exit_code"},
        {"{\"exit_code\": 0,\n\"memory\": [{\n\"touched_bytes\": -1}]}", "s.json:3: touched_bytes"},
        {"{\"exit_code\": 0, \"memory\": [{\"touched_bytes\": 1.5}]}", "s.json:1: touched_bytes"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(bad); i++) {
        struct zt_record_summary s;
        struct zt_err err;
        CHECK_INT(parse_summary(bad[i][0], &s, &err), ZT_EINPUT);
        if (strncmp(err.msg, bad[i][1], strlen(bad[i][1])) != 0)
            FAIL("\"%s\" does not begin with \"%s\"", err.msg, bad[i][1]);
    }
}

TEST(sweep_file)
{
    static const char good[] = "{\"stage\": 3, \"offload\": \"nvme\", \"exit_code\": 4, "
                               "\"message\": \"no NVMe\", \"key\": \"x\"}";
    static const char running[] = "{\"stage\": 0, \"offload\": \"none\", \"exit_code\": null}";
    static const char *const bad[] = {"{\"stage\": 4, \"offload\": \"none\", \"exit_code\": 0}",
                                      "{\"stage\": 1, \"offload\": \"tape\", \"exit_code\": 0}",
                                      "{\"stage\": 1, \"exit_code\": 0}", "7"};
    struct zt_record_sweep s;
    struct zt_err err;
    CHECK_OK(zt_record_parse_sweep("w", good, strlen(good), &s, &err), err);
    CHECK_INT(s.stage, 3);
    CHECK_INT(s.exit_code, 4);
    CHECK_STR(s.offload, "nvme");
    CHECK_STR(s.message, "no NVMe");
    zt_record_sweep_release(&s);
    CHECK_OK(zt_record_parse_sweep("w", running, strlen(running), &s, &err), err);
    CHECK_INT(s.exit_code, -1);
    CHECK(!s.message);
    for (size_t i = 0; i < ZT_ARRAY_LEN(bad); i++)
        CHECK_INT(zt_record_parse_sweep("w", bad[i], strlen(bad[i]), &s, &err), ZT_EINPUT);
}

TEST(cut_tells_the_last_step)
{
    static const struct {
        const char *text, *left;
        int64_t step, last;
    } cases[] = {
        {three_steps, three_steps, 3, 3}, {three_steps, three_steps, 9, 3},
        {three_steps, "", 0, -1},         {"", "", 5, -1},
        {"{\"type\": \"st", "", 5, -1},
    };
    char path[] = "/tmp/zt-test-record.XXXXXX";
    const int fd = mkstemp(path);
    struct zt_err err;
    CHECK(fd >= 0);
    close(fd);
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        int64_t last = 0;
        struct zt_str left = {0};
        CHECK_OK(zt_write_file_atomic(path, cases[i].text, strlen(cases[i].text), &err), err);
        CHECK_OK(zt_record_cut(path, cases[i].step, &last, &err), err);
        CHECK_INT(last, cases[i].last);
        CHECK_OK(zt_read_file(path, 1 << 20, &left, &err), err);
        CHECK_STR(zt_str_get(&left), cases[i].left);
        zt_str_release(&left);
    }
    unlink(path);
}

TEST_MAIN()
