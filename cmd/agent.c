#include "cmd.h"

#include <unistd.h>

#include "launch/launch.h"

/* Hidden: started by the front end, over a socket here and over SSH elsewhere. */
int cmd_agent(int argc, char **argv)
{
    struct zt_err err = {0};
    (void)argv;
    if (argc > 1 || isatty(STDIN_FILENO)) {
        fprintf(stderr, "zerotrain agent: started by zerotrain itself, not by hand\n");
        return 2;
    }
    int rc = zt_agent_main(&err);
    if (err.msg[0])
        fprintf(stderr, "%s\n", err.msg);
    return rc;
}
