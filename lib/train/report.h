/*
 * report.h: what a worker tells the front end, as JSON. Internal to lib/train; carried out in run_report.c.
 */
#ifndef ZT_TRAIN_REPORT_H
#define ZT_TRAIN_REPORT_H

#include <jansson.h>

#include "train/train.h"

int zt_report(const struct zt_train_env *env, json_t *o,
              struct zt_err *err) ZT_MUST_CHECK; /* steals o */

/* A text for the person. */
int zt_report_notice(const struct zt_train_env *env, const char *text,
                     struct zt_err *err) ZT_MUST_CHECK;

#endif
