/*
 * ssh_key.h: a private key of the user's, decrypted once, that signs for any number of connections. libssh2
 * would read and decrypt it for each of them. OpenSSH's own format and PEM; keys of the types ed25519, ecdsa and RSA.
 *
 * A key with a passphrase begins locked: its public half stands beside the rest in OpenSSH's format, for PEM in
 * PATH.pub, so a host can be asked whether it would take the key before a person is.
 */
#ifndef ZT_LAUNCH_SSH_KEY_H
#define ZT_LAUNCH_SSH_KEY_H

#include "base/err.h"
#include "base/str.h"

struct evp_pkey_st; /* OpenSSL's EVP_PKEY */

struct zt_ssh_key {
    char *path;
    uint8_t *blob; /* the public key, as it stands in the protocol */
    size_t blob_len;
    struct evp_pkey_st *pkey; /* NULL: locked */
    struct zt_str text;       /* the file, while locked */
};

/*
 * ZT_EINPUT: there is no such file. ZT_EUNSUPPORTED: it is one that we cannot use, and the OpenSSH client
 * perhaps can (a type or cipher we do not have, permissions it would complain of); err->msg says why.
 */
int zt_ssh_key_read(const char *path, struct zt_ssh_key *key, struct zt_err *err) ZT_MUST_CHECK;

/* Of a key that zt_ssh_key_read() could not take: the public half alone, from PATH.pub or PATH, if it is there. */
void zt_ssh_key_read_public(const char *path, struct zt_ssh_key *key);

/* Takes up to a second. ZT_EINPUT: it is another passphrase. ZT_EUNSUPPORTED: as above. */
int zt_ssh_key_unlock(struct zt_ssh_key *key, const char *pass, struct zt_err *err) ZT_MUST_CHECK;

/* How a key of type ssh-rsa signs (RFC 8332): agents know the ways by these numbers. Other keys have one way. */
enum zt_ssh_rsa { ZT_SSH_RSA_NONE, ZT_SSH_RSA_SHA256 = 2, ZT_SSH_RSA_SHA512 = 4 };

/* "rsa-sha2-512"; NULL of ZT_SSH_RSA_NONE. */
const char *zt_ssh_rsa_name(enum zt_ssh_rsa rsa);

/* The signature without its type, as libssh2 wants it; free() it. Not of a locked key. */
int zt_ssh_key_sign(const struct zt_ssh_key *key, enum zt_ssh_rsa rsa, const uint8_t *data,
                    size_t len, uint8_t **sig, size_t *sig_len, struct zt_err *err) ZT_MUST_CHECK;

void zt_ssh_key_release(struct zt_ssh_key *key);

/* Whether we can sign with keys of this type: what the blob begins with. */
bool zt_ssh_key_type_served(const uint8_t *blob, size_t len);
bool zt_ssh_key_is_rsa(const uint8_t *blob, size_t len);

/* "ssh-ed25519"; "" for what is no key. Valid as long as the blob; not terminated. */
const char *zt_ssh_key_type(const uint8_t *blob, size_t len, size_t *type_len);

/* ---- the protocol's strings (RFC 4251, 5), as keys, signatures and agents use them ---- */

struct zt_ssh_bytes {
    const uint8_t *p;
    size_t left;
    bool bad; /* what was wanted was not there */
};

uint32_t zt_ssh_get_u32(struct zt_ssh_bytes *b);
const uint8_t *zt_ssh_get_string(struct zt_ssh_bytes *b, size_t *len); /* NULL when bad */
void zt_ssh_put_u32(struct zt_str *out, uint32_t v);
void zt_ssh_put_string(struct zt_str *out, const void *bytes, size_t n);

#endif
