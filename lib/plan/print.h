/* print.h: how a row is named in lists; inside lib/plan only. */
#ifndef ZT_PLAN_PRINT_H
#define ZT_PLAN_PRINT_H

#include "plan/plan.h"

struct json_t;

/* The document (NULL: memory ran out), indented; taken over. */
void zt_json_print(struct json_t *doc, struct zt_str *out);

/* The unit or segment that a row works on, or "". */
const char *zt_op_subject(const struct zt_plan *p, const struct zt_op *op);

/* "r", "w" or "rw". */
const char *zt_mode_name(int mode);

/* "param", "x_in", ... */
const char *zt_role_name(enum zt_role r);

/* "FLOP", "net bytes", ...: the unit of zt_op.cost. */
const char *zt_cost_name(enum zt_cost_kind k);

/* "shard", "data", "world", or "" for no group. */
const char *zt_group_name(zt_axes group);

#endif
