#include "cmd.h"

#include <unistd.h>

#include "launch/launch.h"

/*
 * Hidden: started by the front end, over a socket here and over SSH elsewhere; with "joins" by a process that has
 * joined.
 */
int cmd_agent(int argc, char **argv)
{
    struct zt_err err = {0};
    const bool joins = argc == 2 && strcmp(argv[1], "joins") == 0;
    if (argc > 1 + joins || isatty(STDIN_FILENO)) {
        fprintf(stderr, "zerotrain agent: started by zerotrain itself, not by hand\n");
        return 2;
    }
    int rc = zt_agent_main(joins, &err);
    if (err.msg[0])
        fprintf(stderr, "%s\n", err.msg);
    return rc;
}
