/*
 * openssh.h: a node's agent by way of the OpenSSH client. Pure: the client's command line, and what it means
 * when the client ends. The login shell of the other host sees nothing but `exec PROGRAM agent`; environment,
 * recipe and secret travel in frames over the client's stdin and stdout.
 */
#ifndef ZT_LAUNCH_OPENSSH_H
#define ZT_LAUNCH_OPENSSH_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

struct zt_ssh_target {
    const char *host;
    const char *user;    /* NULL: as ssh's configuration says */
    int port;            /* 0: likewise */
    const char *program; /* zerotrain's absolute path on that host */
};

/*
 * What `program` may be: an absolute path that every login shell takes literally between single quotes (sh,
 * csh and fish differ in what else they do). ZT_EINPUT says what is wrong.
 */
int zt_openssh_check_program(const char *program, struct zt_err *err) ZT_MUST_CHECK;

/*
 * argv, NULL-terminated, in the arena. The client asks nothing (BatchMode), takes no key that known_hosts does
 * not have, notices a silent host in 9 s, and neither uses nor leaves a shared connection. `program` was checked.
 */
const char *const *zt_openssh_argv(const struct zt_ssh_target *t, struct zt_arena *arena);

/*
 * Append one line on why the agent is not there (any more): `status` is the client's, of waitpid(); `said`
 * what came on its stderr; `greeted`: the agent had answered before.
 */
void zt_openssh_explain(const struct zt_ssh_target *t, int status, const char *said, bool greeted,
                        struct zt_str *out);

#endif
