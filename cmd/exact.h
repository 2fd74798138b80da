/*
 * exact.h: the options of every command. Names are exact: getopt_long() takes any unambiguous beginning of a name, so that
 * --deepspeed would be --deepspeed_config and take the next word.
 */
#ifndef ZT_CMD_EXACT_H
#define ZT_CMD_EXACT_H

#include <getopt.h>
#include <stdbool.h>

#include "base/err.h"

struct cmd_optset {
    const char *command;        /* of zerotrain, whose --help lists them */
    const struct option *longs; /* "help" is 'h', and -h too */
    bool in_order;              /* the first operand ends the options */
    /* What to write for an option of another program; NULL: of none */
    const char *(*instead)(const char *name);
};

/* getopt_long(). '?': *err says what is wrong with the option given, and what its name may have meant. */
int cmd_getopt(const struct cmd_optset *set, int argc, char *const *argv, struct zt_err *err);

#endif
