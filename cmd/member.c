#include "cmd.h"

#include <unistd.h>

#include "launch/srun.h"

/* Hidden: started by our own srun, one on each host. */
int cmd_member(int argc, char **argv)
{
    struct zt_err err = {0};
    struct zt_meeting m;
    const char *host;
    int code = 0;
    (void)argv;
    if (argc > 1 || isatty(STDIN_FILENO)) {
        cmd_error("`member` is started by zerotrain --launcher=slurm, not by hand");
        return ZT_EXIT_USAGE;
    }
    int rc = zt_srun_read_ticket(STDIN_FILENO, &m, &host, &err);
    if (!rc)
        rc = zt_member_run(&m, host, &code, &err);
    explicit_bzero(&m, sizeof m);
    if (rc)
        cmd_error("%s", err.msg);
    return rc ? zt_exit_code(rc) : code;
}
