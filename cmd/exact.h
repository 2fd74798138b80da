/*
 * exact.h: options whose names are exact. getopt_long() takes any unambiguous beginning of a name, so that --deepspeed
 * would be --deepspeed_config and take the next word.
 */
#ifndef ZT_CMD_EXACT_H
#define ZT_CMD_EXACT_H

#include <getopt.h>

/*
 * getopt_long() with an abbreviated name as '?'. `shorts` says ':' first. *given: what was given, "--name", "--name=value"
 * or "-x"; only to be read after '?' and ':'. It lives as long as argv, or until the next call.
 */
int cmd_getopt(int argc, char *const *argv, const char *shorts, const struct option *longs,
               const char **given);

#endif
