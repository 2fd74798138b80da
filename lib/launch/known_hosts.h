/*
 * known_hosts.h: is a host's key the one that we know? OpenSSH's known_hosts files, over their text: hashed
 * names, [name]:port, wildcards, negated patterns, @revoked, @cert-authority, several types of key. Pure
 * functions; libssh2's own check ignores @revoked and wildcards and gives up at one bad line.
 *
 * Form and rules: "SSH_KNOWN_HOSTS FILE FORMAT" in sshd(8). A line that cannot be read is passed over.
 */
#ifndef ZT_LAUNCH_KNOWN_HOSTS_H
#define ZT_LAUNCH_KNOWN_HOSTS_H

#include "base/err.h"
#include "base/str.h"

/* A key as it stands in the protocol (RFC 4253, 6.6): a string with its type, then the rest. */
struct zt_host_key {
    const uint8_t *blob;
    size_t len;
};

/* Whether a name stands in a list by commas (RFC 4251, 5: a name-list). */
bool zt_name_list_has(const char *list, const char *name, size_t len);

enum { ZT_KNOWN_HOSTS_MAX_BYTES = 64 << 20 };

/* A file, read. */
struct zt_known_hosts {
    const char *path; /* for messages */
    const char *text;
    size_t len;
};

enum zt_trust_kind {
    ZT_TRUST_UNKNOWN, /* no key of this type is known for the host */
    ZT_TRUST_KNOWN,
    ZT_TRUST_CHANGED, /* a key of this type is known, and it is another one */
    ZT_TRUST_REVOKED, /* this key is marked @revoked: never to be accepted, whatever else stands there */
};

struct zt_trust {
    enum zt_trust_kind kind;
    const char *path; /* the line that says so; NULL for unknown */
    int line;
    /* Unknown, but keys of other types are known: ask the host for one of those. */
    bool other_types;
    /* An @cert-authority line is for this host: its certificates may be accepted. */
    bool has_authority;
};

/*
 * Look for `name` (as given to ssh, or its HostKeyAlias) at `port` in all files. As in OpenSSH, a host at
 * another port than 22 is also known by its key under the bare name. ZT_EPROTO: the key is malformed.
 */
int zt_known_hosts_check(const struct zt_known_hosts *files, int n_files, const char *name,
                         int port, struct zt_host_key key, struct zt_trust *out,
                         struct zt_err *err) ZT_MUST_CHECK;

/*
 * The types of the keys that are known for the host, in the order of the files, each once, separated by commas;
 * not those that are revoked.
 */
int zt_known_hosts_types(const struct zt_known_hosts *files, int n_files, const char *name,
                         int port, struct zt_str *out, struct zt_err *err) ZT_MUST_CHECK;

/* "ssh-ed25519 SHA256:...", as ssh-keygen -l shows it. ZT_EPROTO: the key is malformed. */
int zt_host_key_describe(struct zt_host_key key, struct zt_str *out,
                         struct zt_err *err) ZT_MUST_CHECK;

/* ---- what to say, whichever way to the host has found it ---- */

enum { ZT_KNOWN_AS_BYTES = 300 };

/* How known_hosts calls a host: "name", or "[name]:port"; in lower case, which hashes are made of. */
int zt_known_as(const char *name, int port, char out[ZT_KNOWN_AS_BYTES],
                struct zt_err *err) ZT_MUST_CHECK;

enum { ZT_KNOWN_MAX_PATTERNS = 16 };

/* Where in a file the keys of a host stand: not those of markers. */
struct zt_known_place {
    const char *path;
    bool by_name; /* under its name: `ssh-keygen -R` removes them */
    /* Lines of patterns, which may be for other hosts too: there its name is to be excepted. */
    int patterns[ZT_KNOWN_MAX_PATTERNS];
    int n_patterns;
};

/* Of a host that is called so. false: none are there. */
bool zt_known_hosts_find(const struct zt_known_hosts *file, const char *known_as,
                         struct zt_known_place *out);

/* A key that is not to be trusted, or not yet. */
struct zt_key_doubt {
    struct zt_trust trust;
    const char *known_as;
    const char *shown;    /* as zt_host_key_describe(); NULL: the command below shows it */
    const char *key_type; /* of `shown`: the command asks for it; NULL: for any */
    const char *reach;    /* arguments by which ssh(1) goes there: "-p 2222 me@node-a" */
    const struct zt_known_place *places; /* (n_places) other keys of it, to be taken away */
    int n_places;
};

/* The fingerprint, what the known_hosts files say, and the command that accepts the key where its owner confirms it. */
void zt_key_doubt_put(const struct zt_key_doubt *d, struct zt_str *out);

/* 0 for a known key. Else ZT_EINPUT, with these words; of the files only those are named that have the host. */
int zt_trust_require(const struct zt_trust *t, const struct zt_known_hosts *files, int n_files,
                     const char *name, int port, const char *reach, struct zt_host_key key,
                     struct zt_err *err) ZT_MUST_CHECK;

#endif
