/*
 * foreign.h: what those are told who know DeepSpeed's launcher, or torchrun.
 */
#ifndef ZT_CMD_FOREIGN_H
#define ZT_CMD_FOREIGN_H

/* What to do instead of an option of theirs, "--name" or "-x", in words; NULL: it is none. */
const char *cmd_foreign_option(const char *name);

#endif
