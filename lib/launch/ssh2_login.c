#include "base/clock.h"
#include "base/io.h"
#include "launch/ssh2_host.h"

/* ---- the host proves who it is ---- */

/* A file that is not there knows nobody. */
static struct zt_known_hosts known_file(struct zt_ssh2 *s, const char *path)
{
    struct zt_err err;
    size_t i = 0;
    while (i < s->n_known && strcmp(s->known[i].path, path))
        i++;
    if (i == s->n_known) {
        struct known_file f = {.path = zt_arena_strdup(&s->arena, path)};
        if (zt_read_file(path, ZT_KNOWN_HOSTS_MAX_BYTES, &f.text, &err))
            zt_str_reset(&f.text);
        ZT_GROW(s->known, s->n_known + 1, s->cap_known);
        s->known[s->n_known++] = f;
    }
    const struct known_file *f = &s->known[i];
    return (struct zt_known_hosts){f->path, zt_str_get(&f->text), f->text.len};
}

enum { MOST_FILES = 2 * ZT_SSH_MAX_FILES };

static int known_files(struct ssh2_host *h, struct zt_known_hosts out[MOST_FILES])
{
    const struct zt_ssh_files *both[] = {&h->config->user_known_hosts,
                                         &h->config->global_known_hosts};
    int n = 0;
    for (size_t i = 0; i < ZT_ARRAY_LEN(both); i++)
        for (int j = 0; j < both[i]->n; j++)
            out[n++] = known_file(h->s, both[i]->v[j]);
    return n;
}

/* Types that a host's key may have for libssh2; of a known_hosts line, and as they are asked for. */
static const struct {
    const char *type, *methods;
    bool rsa;
} served[] = {
    {"ssh-ed25519", "ssh-ed25519", false},
    {"ecdsa-sha2-nistp256", "ecdsa-sha2-nistp256", false},
    {"ecdsa-sha2-nistp384", "ecdsa-sha2-nistp384", false},
    {"ecdsa-sha2-nistp521", "ecdsa-sha2-nistp521", false},
    {"ssh-rsa", "rsa-sha2-512,rsa-sha2-256", true},
};

/* Those that are known, and then the others; whether some that is known is among them. */
static bool put_methods(const struct ssh2_host *h, const char *known, struct zt_str *out)
{
    bool any = false;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < ZT_ARRAY_LEN(served); i++) {
            const bool is_known = zt_name_list_has(known, served[i].type, strlen(served[i].type));
            if ((served[i].rsa && !h->s->rsa) || is_known != (pass == 0))
                continue;
            any = any || is_known;
            zt_str_printf(out, "%s%s", out->len ? "," : "", served[i].methods);
        }
    }
    return any;
}

int ssh2_host_key_methods(struct ssh2_host *h, struct zt_str *out, struct zt_err *err)
{
    struct zt_known_hosts files[MOST_FILES];
    struct zt_str types = {0};
    int port, n = known_files(h, files);
    const char *name = zt_ssh_config_known_as(h->config, &port);
    int rc = zt_known_hosts_types(files, n, name, port, &types, err);
    if (!rc && !put_methods(h, zt_str_get(&types), out) && types.len)
        rc = zt_err_set(err, ZT_EUNSUPPORTED,
                        "known_hosts has its key of type %s, which libssh2 %s cannot check",
                        types.buf, libssh2_version(0));
    zt_str_release(&types);
    return rc;
}

/* Another of its keys is known, of a type that only the client can check. */
static bool client_knows_other(struct ssh2_host *h, const struct zt_known_hosts *files, int n)
{
    struct zt_str types = {0};
    struct zt_err err;
    int port;
    const char *name = zt_ssh_config_known_as(h->config, &port);
    bool other = false;
    if (zt_known_hosts_types(files, n, name, port, &types, &err) == 0)
        for (size_t i = 0; i < ZT_ARRAY_LEN(served); i++)
            other = other ||
                    (served[i].rsa && !h->s->rsa &&
                     zt_name_list_has(zt_str_get(&types), served[i].type, strlen(served[i].type)));
    zt_str_release(&types);
    return other;
}

bool ssh2_check_host_key(struct ssh2_host *h)
{
    struct zt_known_hosts files[MOST_FILES];
    struct zt_trust trust;
    struct zt_str reach = {0};
    struct zt_err err;
    size_t len;
    int type, port, n = known_files(h, files);
    const char *name = zt_ssh_config_known_as(h->config, &port);
    const char *blob = libssh2_session_hostkey(h->session, &len, &type);
    const struct zt_host_key key = {(const uint8_t *)blob, blob ? len : 0};
    if (zt_known_hosts_check(files, n, name, port, key, &trust, &err))
        return ssh2_end(h, ZT_SSH_FAILED, "%s", err.msg);
    if (trust.kind != ZT_TRUST_KNOWN && trust.kind != ZT_TRUST_REVOKED && trust.has_authority)
        return ssh2_need_client(h, "its key may have a certificate of an authority that "
                                   "known_hosts has");
    if (trust.kind == ZT_TRUST_UNKNOWN && client_knows_other(h, files, n))
        return ssh2_need_client(h, "known_hosts has a key of it that libssh2 %s cannot check",
                                libssh2_version(0));
    zt_ssh_put_reach(h->target, &reach);
    int rc = zt_trust_require(&trust, files, n, name, port, reach.buf, key, &err);
    zt_str_release(&reach);
    return rc == 0 || ssh2_end(h, ZT_SSH_FAILED, "%s", err.msg);
}

/* ---- we prove who we are ---- */

static void skip_byte(struct zt_ssh_bytes *b)
{
    b->bad = b->bad || b->left == 0;
    b->p += b->left > 0;
    b->left -= b->left > 0;
}

/* What libssh2 agreed on with the host stands in the request that is to be signed (RFC 4252, 7). */
static enum zt_ssh_rsa rsa_of(const uint8_t *data, size_t len)
{
    static const enum zt_ssh_rsa ways[] = {ZT_SSH_RSA_SHA512, ZT_SSH_RSA_SHA256};
    struct zt_ssh_bytes b = {data, len, false};
    size_t n;
    zt_ssh_get_string(&b, &n);  /* the session's */
    skip_byte(&b);              /* which message */
    for (int i = 0; i < 3; i++) /* user, service, "publickey" */
        zt_ssh_get_string(&b, &n);
    skip_byte(&b); /* it is signed */
    const uint8_t *method = zt_ssh_get_string(&b, &n);
    for (size_t i = 0; method && i < ZT_ARRAY_LEN(ways); i++)
        if (strlen(zt_ssh_rsa_name(ways[i])) == n && !memcmp(method, zt_ssh_rsa_name(ways[i]), n))
            return ways[i];
    return ZT_SSH_RSA_NONE;
}

static bool is_rsa(const struct zt_ssh_identity *id)
{
    size_t len;
    const uint8_t *blob = zt_ssh_identity_blob(id, &len);
    return zt_ssh_key_is_rsa(blob, len);
}

/* The client may be allowed to. */
static void leave_sha1(struct ssh2_host *h)
{
    if (!h->keys.other)
        h->keys.other = "its sshd would take signatures of an RSA key with SHA-1 alone";
}

/* Called by libssh2 once the host has said that it would take the key. */
static int sign(LIBSSH2_SESSION *session, unsigned char **sig, size_t *sig_len,
                const unsigned char *data, size_t len, void **abstract)
{
    struct ssh2_host *h = *abstract;
    const struct zt_ssh_identity *id = &h->keys.v[h->at_key];
    struct zt_err err;
    (void)session;
    uint8_t *made;
    const enum zt_ssh_rsa rsa = rsa_of(data, len);
    if (rsa == ZT_SSH_RSA_NONE && is_rsa(id)) {
        leave_sha1(h);
        return -1;
    }
    int rc = zt_ssh_identity_sign(id, rsa, data, len, &made, sig_len, &err);
    if (rc == 0) {
        *sig = ssh2_alloc(h, *sig_len);
        memcpy(*sig, made, *sig_len);
        free(made);
        return 0;
    }
    if (rc > 0) {
        h->state = SSH2_LOCKED;
        h->was_locked = true;
        return LIBSSH2_ERROR_EAGAIN;
    }
    h->why_kept = zt_arena_strdup(&h->s->arena, err.msg);
    return -1;
}

static bool refused(struct ssh2_host *h)
{
    if (h->keys.other)
        return ssh2_need_client(h, "%s", h->keys.other);
    return ssh2_end(h, ZT_SSH_REFUSED, "%s@%s: Permission denied (publickey)%s%s", h->config->user,
                    h->target->host, h->why_kept ? ": " : "", h->why_kept ? h->why_kept : "");
}

/* Not every key may be tried in one connection (MaxAuthTries), and nobody waits long for a passphrase. */
static bool connection_lost(struct ssh2_host *h)
{
    if (h->n_offered > 0 || h->was_locked) /* so it gets further each time */
        return ssh2_begin_again(h);
    return ssh2_end(h, ZT_SSH_FAILED, "%s: the connection broke while logging in: %s",
                    h->target->host, ssh2_error(h));
}

bool ssh2_log_in(struct ssh2_host *h)
{
    if (h->at_key >= h->keys.n)
        return refused(h);
    size_t len;
    const uint8_t *blob = zt_ssh_identity_blob(&h->keys.v[h->at_key], &len);
    int rc = libssh2_userauth_publickey(h->session, h->config->user, blob, len, sign, &h->self);
    if (h->state == SSH2_LOCKED) {
        h->deadline_ns = 0;
        return true;
    }
    if (rc == LIBSSH2_ERROR_EAGAIN)
        return false;
    if (rc == 0) {
        h->state = SSH2_OPENING;
        zt_turn_leave(h->turn);
        return true;
    }
    /* Of a host that says nothing more and one that does not take a signature libssh2 gives the same code. */
    const bool silent =
        rc == LIBSSH2_ERROR_PUBLICKEY_UNVERIFIED && strstr(ssh2_error(h), "Waiting for");
    if (silent || ssh2_is_broken(rc))
        return connection_lost(h);
    h->at_key++;
    h->n_offered++;
    if (rc != LIBSSH2_ERROR_METHOD_NONE)
        return true;
    leave_sha1(h);
    return ssh2_begin_again(h); /* libssh2 1.11 would offer the next key as of this one's type */
}
