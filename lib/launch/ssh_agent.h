/*
 * ssh_agent.h: the user's ssh-agent (draft-ietf-sshm-ssh-agent): which keys it holds, and signatures by them. One
 * connection for all hosts. Calls block, for at most the time that is given to the agent: 5 s.
 */
#ifndef ZT_LAUNCH_SSH_AGENT_H
#define ZT_LAUNCH_SSH_AGENT_H

#include "base/arena.h"
#include "base/err.h"
#include "launch/ssh_key.h"

struct zt_ssh_agent_key {
    const uint8_t *blob;
    size_t blob_len;
    const char *comment;
};

struct zt_ssh_agent {
    int fd; /* -1: there is none */
    int n_keys;
    struct zt_ssh_agent_key *keys;
    struct zt_arena arena;
};

/* Connect to the socket and list the keys. On failure there is nothing to release. */
int zt_ssh_agent_open(const char *path, struct zt_ssh_agent *a, struct zt_err *err) ZT_MUST_CHECK;

/* The signature without its type, from malloc(), as zt_ssh_key_sign(). */
int zt_ssh_agent_sign(struct zt_ssh_agent *a, const uint8_t *blob, size_t blob_len,
                      enum zt_ssh_rsa rsa, const uint8_t *data, size_t len, uint8_t **sig,
                      size_t *sig_len, struct zt_err *err) ZT_MUST_CHECK;

void zt_ssh_agent_release(struct zt_ssh_agent *a);

#endif
