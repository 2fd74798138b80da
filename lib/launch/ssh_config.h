/*
 * ssh_config.h: what the user's ~/.ssh/config says of a host, as `ssh -G host` resolves it, so that Host, Match,
 * Include and tokens mean exactly what they mean to ssh.
 */
#ifndef ZT_LAUNCH_SSH_CONFIG_H
#define ZT_LAUNCH_SSH_CONFIG_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum { ZT_SSH_MAX_FILES = 32 };

struct zt_ssh_files {
    const char *v[ZT_SSH_MAX_FILES]; /* in the order to be tried, a leading ~/ replaced */
    int n;
};

struct zt_ssh_config;

/* A host of a ProxyJump. */
struct zt_ssh_jump {
    const char *user, *host; /* user NULL and port 0: as the configuration says */
    int port;
    size_t before; /* so much of proxy_jump says by which others it is reached */
    const struct zt_ssh_config *config; /* NULL: not known */
};

enum { ZT_SSH_MAX_JUMPS = 8 };

/* NULL and 0 where ssh has nothing to say, and where it says "none". */
struct zt_ssh_config {
    const char *hostname, *user;
    int port;
    const char *host_key_alias; /* the name that known_hosts knows it by, else hostname */
    const char *proxy_jump, *proxy_command;
    struct zt_ssh_jump jumps[ZT_SSH_MAX_JUMPS]; /* of proxy_jump, in its order */
    int n_jumps;
    const char *client_only;    /* a setting that only the client carries out, or NULL */
    const char *address_family; /* "any", "inet", "inet6" */
    const char *ciphers, *macs, *kex_algorithms; /* that may be used, by commas, best first */
    const char *identity_agent; /* "SSH_AUTH_SOCK" or a path; NULL: that of the environment */
    bool no_agent;              /* identityagent none */
    bool identities_only;       /* of the agent's keys only those of identity_files */
    struct zt_ssh_files identity_files, certificate_files;
    struct zt_ssh_files user_known_hosts, global_known_hosts;
};

/*
 * Output of `ssh -G`, into the arena; `home` replaces ~. What is needed and not there, or cannot be read, is ZT_EPROTO: the
 * text is no such output. Keys that nobody here asks for are passed over.
 */
int zt_ssh_config_parse(const char *text, size_t len, const char *home, struct zt_arena *arena,
                        struct zt_ssh_config *out, struct zt_err *err) ZT_MUST_CHECK;

/* Runs ssh -G, also for its jump hosts, and parses it. user NULL and port 0: as the configuration says. Blocks for some ms. */
int zt_ssh_config_read(const char *host, const char *user, int port, struct zt_arena *arena,
                       struct zt_ssh_config *out, struct zt_err *err) ZT_MUST_CHECK;

/* The name and port by which known_hosts has the host: as with ssh, an alias stands there without a port. */
const char *zt_ssh_config_known_as(const struct zt_ssh_config *c, int *port);

/* Whether this host needs the OpenSSH client; why is appended ("it is reached through ProxyJump bastion"). */
bool zt_ssh_needs_client(const struct zt_ssh_config *c, struct zt_str *why);

#endif
