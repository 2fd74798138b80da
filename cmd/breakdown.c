#include "breakdown.h"

#include "metrics/metrics.h"

enum { MAX_ROWS = 16 };

static int rank_of(const json_t *row)
{
    return (int)json_integer_value(json_object_get(row, "rank"));
}

void breakdowns_add(struct breakdowns *b, int rank, const json_t *report)
{
    json_t *row = json_pack("{s:i, s:O}", "rank", rank, "steps", json_object_get(report, "steps"));
    if (!row || json_object_update(row, json_object_get(report, "breakdown_ms"))) {
        json_decref(row);
        return;
    }
    if (!b->ranks)
        b->ranks = json_array();
    size_t at = json_array_size(b->ranks); /* ranks come in any order */
    while (at > 0 && rank_of(json_array_get(b->ranks, at - 1)) > rank)
        at--;
    json_array_insert_new(b->ranks, at, row);
}

static double number(const json_t *row, const char *part, const char *suffix)
{
    char key[32];
    snprintf(key, sizeof key, "%s%s", part, suffix);
    return json_number_value(json_object_get(row, key));
}

void breakdowns_print(const struct breakdowns *b, struct zt_str *out)
{
    size_t n = json_array_size(b->ranks);
    if (n == 0)
        return;
    long long steps = json_integer_value(json_object_get(json_array_get(b->ranks, 0), "steps"));
    zt_str_printf(
        out,
        "\ntime of a step in ms, mean of %lld; of reduce and gather what computing did not "
        "hide, and all\n  %5s%10s",
        steps, "rank", "step");
    for (int p = 0; p < ZT_N_PARTS; p++)
        zt_str_printf(out, "%10s%s", zt_part_name((enum zt_part)p),
                      zt_part_is_beside(p) ? "       all" : "");
    zt_str_puts(out, "\n");
    for (size_t i = 0; i < n && i < MAX_ROWS; i++) {
        const json_t *row = json_array_get(b->ranks, i);
        zt_str_printf(out, "  %5d%10.2f", rank_of(row), number(row, "total", ""));
        for (int p = 0; p < ZT_N_PARTS; p++) {
            const char *part = zt_part_name((enum zt_part)p);
            if (zt_part_is_beside(p))
                zt_str_printf(out, "%10.2f", number(row, part, "_exposed"));
            zt_str_printf(out, "%10.2f", number(row, part, ""));
        }
        zt_str_puts(out, "\n");
    }
    if (n > MAX_ROWS)
        zt_str_printf(out, "  and %zu more ranks in summary.json\n", n - MAX_ROWS);
}

void breakdowns_release(struct breakdowns *b)
{
    json_decref(b->ranks);
    b->ranks = NULL;
}
