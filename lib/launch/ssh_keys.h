/*
 * ssh_keys.h: the keys by which hosts may let us in, each read, and its passphrase asked for, once for all hosts.
 * One thread at a time.
 */
#ifndef ZT_LAUNCH_SSH_KEYS_H
#define ZT_LAUNCH_SSH_KEYS_H

#include "launch/ssh_agent.h"
#include "launch/ssh_config.h"
#include "launch/ssh_key.h"

struct zt_ssh_keys;

enum zt_ssh_key_state {
    ZT_SSH_KEY_READY,
    ZT_SSH_KEY_LOCKED,
    ZT_SSH_KEY_KEPT,   /* nobody has told its passphrase; see `why` */
    ZT_SSH_KEY_UNUSED, /* not one that we can use; see `why` */
    ZT_SSH_KEY_ABSENT, /* there is no such file */
};

struct zt_ssh_key_file {
    char *path;
    struct zt_ssh_key key;
    enum zt_ssh_key_state state;
    const char *why;
};

/* A key to offer: of an agent, or of a file. */
struct zt_ssh_identity {
    struct zt_ssh_agent *agent;
    const struct zt_ssh_agent_key *held;
    struct zt_ssh_key_file *file;
};

struct zt_ssh_identities {
    struct zt_ssh_identity *v;
    int n;
    /* A key that only the OpenSSH client can use, in words; NULL: there is none. */
    const char *other;
};

struct zt_ssh_keys *zt_ssh_keys_create(void);
void zt_ssh_keys_free(struct zt_ssh_keys *k); /* accepts NULL */

/* Nobody is asked any more, and agents are left; the keys of files stay. */
void zt_ssh_keys_rest(struct zt_ssh_keys *k);

/*
 * What a host is offered, in ssh's order: those of the agent that the configuration names, others of the agent
 * unless IdentitiesOnly, then the files that the agent does not have. Lives until k is freed, or rests. rsa: whether
 * the connection can sign with RSA keys.
 */
void zt_ssh_keys_for(struct zt_ssh_keys *k, const struct zt_ssh_config *c, bool rsa,
                     struct zt_ssh_identities *out);

/* The public key, as it stands in the protocol. */
const uint8_t *zt_ssh_identity_blob(const struct zt_ssh_identity *id, size_t *len);

/* 1: its passphrase is not known yet. Else as zt_ssh_key_sign(). */
int zt_ssh_identity_sign(const struct zt_ssh_identity *id, enum zt_ssh_rsa rsa, const uint8_t *data,
                         size_t len, uint8_t **sig, size_t *sig_len,
                         struct zt_err *err) ZT_MUST_CHECK;

/*
 * Ask for a passphrase on the terminal, without waiting for it: the key is no longer locked once it is known, or
 * nobody can be asked, or three were wrong. While another key is asked for, nothing happens: come again.
 */
void zt_ssh_keys_ask(struct zt_ssh_keys *k, struct zt_ssh_key_file *file);
int zt_ssh_keys_ask_fd(const struct zt_ssh_keys *k); /* -1: nothing is asked now */
void zt_ssh_keys_answer(struct zt_ssh_keys *k);      /* that is readable */

#endif
