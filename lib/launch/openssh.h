/*
 * openssh.h: a node's agent on another host: which host that is, the command line of the OpenSSH client, and
 * what it means when the way to the agent ends, whichever launcher made it. Nothing is run; known_hosts files are read
 * where they have an old key. The login shell of the other
 * host sees nothing but `exec PROGRAM agent`; environment, recipe and secret travel in frames over the
 * command's stdin and stdout.
 */
#ifndef ZT_LAUNCH_OPENSSH_H
#define ZT_LAUNCH_OPENSSH_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

struct zt_ssh_config;
struct zt_ssh_keys;

struct zt_ssh_target {
    const char *host;
    const char *user;                   /* NULL: as ssh's configuration says */
    int port;                           /* 0: likewise */
    const char *program;                /* zerotrain's absolute path on that host */
    const struct zt_ssh_config *config; /* what ssh -G says of it; NULL: not known */
    bool by_client; /* go there by the OpenSSH client; else by libssh2 (ssh2.h), and needs config */
    /*
     * For libssh2: the keys (ssh_keys.h), the same for all hosts; outlives the job, so that nobody is asked again in
     * the next. NULL: the job's own.
     */
    struct zt_ssh_keys *keys;
};

/*
 * What `program` may be: an absolute path that every login shell takes literally between single quotes (sh,
 * csh and fish differ in what else they do). ZT_EINPUT says what is wrong.
 */
int zt_openssh_check_program(const char *program, struct zt_err *err) ZT_MUST_CHECK;

/* What the login shell is given. */
const char *zt_ssh_command(const struct zt_ssh_target *t, struct zt_arena *arena);

/*
 * argv, NULL-terminated, in the arena. The client asks nothing (BatchMode), takes no key that known_hosts does
 * not have, notices a silent host in 9 s, and neither uses nor leaves a shared connection. `program` was checked.
 */
const char *const *zt_openssh_argv(const struct zt_ssh_target *t, struct zt_arena *arena);

/* "-p 2222 me@node-a": the arguments by which a person reaches the host. */
void zt_ssh_put_reach(const struct zt_ssh_target *t, struct zt_str *out);

enum zt_ssh_cause {
    ZT_SSH_EXITED,      /* the command there ended with `code` */
    ZT_SSH_SIGNALLED,   /* a signal ended it; `text` is its name */
    ZT_SSH_KILLED,      /* the client here ended with signal `code` */
    ZT_SSH_BROKEN,      /* the connection broke after the agent had answered; `text` may be "" */
    ZT_SSH_FAILED,      /* no connection, for another reason than these: */
    ZT_SSH_NO_NAME,     /* the name does not resolve */
    ZT_SSH_NO_ANSWER,   /* nobody can be reached there */
    ZT_SSH_DROPPED,     /* the connection was closed before it was asked who we are, for too long */
    ZT_SSH_NO_PROXY,    /* the ProxyCommand by which it is reached cannot be run */
    ZT_SSH_KEY_UNKNOWN, /* these are the client's; of libssh2 `text` says all */
    ZT_SSH_KEY_CHANGED,
    ZT_SSH_KEY_REVOKED,
    ZT_SSH_REFUSED, /* no key of ours lets us in */
};

/* How the way to an agent ended. */
struct zt_ssh_end {
    enum zt_ssh_cause cause;
    int code;
    char text[1500];
};

/* Of the OpenSSH client: its status of waitpid(), and what came on its stderr. */
void zt_openssh_end(int status, const char *said, bool greeted, struct zt_ssh_end *out);

/*
 * Append one line on why the agent is not there (any more), and what to do. `said`: what came on the way's
 * stderr; `greeted`: the agent had answered before.
 */
void zt_ssh_explain(const struct zt_ssh_target *t, const struct zt_ssh_end *end, const char *said,
                    bool greeted, struct zt_str *out);

#endif
