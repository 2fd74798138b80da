/* run_folder.h: the folder of a run: recipe.yaml, metrics.jsonl, summary.json. */
#ifndef ZT_CMD_RUN_FOLDER_H
#define ZT_CMD_RUN_FOLDER_H

#include <stdio.h>

#include "cmd.h"

/*
 * Make it, where --log_dir or log.dir say or as runs/NAME-TIME; its path goes into `dir`. `metrics` becomes its
 * metrics.jsonl, to append to: as long as it is open, the folder is no other run's.
 */
int cmd_run_folder(const struct cmd_options *o, const struct zt_recipe *r, struct zt_str *dir,
                   FILE **metrics, struct zt_err *err) ZT_MUST_CHECK;

#endif
