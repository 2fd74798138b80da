/*
 * breakdown.h: where each rank's time went, as they report it at the end (wall_clock_breakdown).
 */
#ifndef ZT_CMD_BREAKDOWN_H
#define ZT_CMD_BREAKDOWN_H

#include <jansson.h>

#include "base/str.h"

/* Zero-initialised is empty. */
struct breakdowns {
    json_t *ranks; /* array of {"rank": 0, "steps": 9, "total": 8.1, ...}, by rank */
};

/* Take in a rank's report, {"steps": 9, "breakdown_ms": {...}}. */
void breakdowns_add(struct breakdowns *b, int rank, const json_t *report);

/* A table for a person; nothing when no rank reported. */
void breakdowns_print(const struct breakdowns *b, struct zt_str *out);

void breakdowns_release(struct breakdowns *b);

#endif
