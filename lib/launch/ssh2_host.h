/* ssh2_host.h: inside of ssh2.h. All but `dropped`, `done` and `asks` is the carrier thread's. */
#ifndef ZT_LAUNCH_SSH2_HOST_H
#define ZT_LAUNCH_SSH2_HOST_H

#include <libssh2.h>
#include <stdatomic.h>

#include "launch/known_hosts.h"
#include "launch/lookup.h"
#include "launch/ssh2.h"
#include "launch/ssh_keys.h"
#include "launch/turns.h"

enum {
    SSH2_WINDOW = 1 << 20,       /* bytes that a host may be ahead of us */
    SSH2_CHUNK = 32 << 10,       /* of a read or write */
    SSH2_CONNECT_MS = 10 * 1000, /* for each address */
    SSH2_GREET_MS = 20 * 1000,   /* from then until keys are exchanged */
    SSH2_LOGIN_MS = 30 * 1000,   /* from then until the agent is started */
    SSH2_SILENCE_MS = 9 * 1000, /* bytes of ours unanswered for so long: the connection is broken */
};

enum ssh2_state {
    SSH2_WAITING,    /* for a place */
    SSH2_LOOKING_UP, /* from here to SSH2_LOGGING_IN it has a place */
    SSH2_CONNECTING,
    SSH2_GREETING,
    SSH2_LOGGING_IN,
    SSH2_LOCKED, /* the key that it wants has a passphrase */
    SSH2_OPENING,
    SSH2_STARTING,
    SSH2_RUNNING,
    SSH2_CLOSING,
    SSH2_DONE,
};

/* Bytes on their way. */
struct ssh2_buf {
    char b[SSH2_CHUNK];
    size_t at, len; /* len bytes from `at` on are to be passed on */
};

struct ssh2_host {
    struct zt_ssh2 *s;
    const struct zt_ssh_target *target;
    const struct zt_ssh_config *config;
    struct zt_turn *turn;
    int fd, err_fd;
    enum ssh2_state state;
    int sock; /* -1: none */
    LIBSSH2_SESSION *session;
    LIBSSH2_CHANNEL *channel;
    struct ssh2_block *blocks; /* what libssh2 has allocated for them */
    struct zt_lookup *lookup;
    const struct addrinfo *address; /* the one being tried */
    int64_t deadline_ns;            /* of the state; 0: none */
    struct zt_ssh_identities keys;
    int at_key;
    int n_offered;   /* keys, in this connection */
    bool was_locked; /* likewise */
    void *self;      /* what libssh2 gives to the function that signs */
    struct ssh2_buf up, err, down;
    bool down_ended, eof_sent, up_ended, err_ended;
    bool more;            /* it was interrupted, for the others */
    const char *why_kept; /* a key that was wanted, and why it was not used */
    atomic_bool dropped, done;
    bool taken; /* the front end's */
    struct zt_ssh2_outcome outcome;
};

struct known_file {
    const char *path;
    struct zt_str text;
};

struct zt_ssh2 {
    struct ssh2_host *hosts;
    int n;
    struct zt_ssh_keys *keys, *own_keys; /* own_keys: NULL, or these */
    struct known_file *known;            /* (n_known), read once */
    size_t n_known, cap_known;
    struct zt_arena arena;
    int wake_fd, event_fd;
    atomic_bool stop, asks;
    bool rsa; /* libssh2 can check RSA host keys, and show ours */
    pthread_t thread;
};

/* Whether the host has got a step further, and may get another at once. */
bool ssh2_step(struct ssh2_host *h, int64_t now_ns);

/* The same, of logging in; and of moving bytes. */
bool ssh2_log_in(struct ssh2_host *h);
bool ssh2_pump(struct ssh2_host *h);
bool ssh2_is_blocked(const struct ssh2_host *h); /* bytes, or their end, wait to go there */

/* Types of host keys, in the order to ask for; ZT_EUNSUPPORTED: libssh2 has none that is known. */
int ssh2_host_key_methods(struct ssh2_host *h, struct zt_str *out,
                          struct zt_err *err) ZT_MUST_CHECK;

/* The host's key, once it has shown it; when it is not good the host is done. */
bool ssh2_check_host_key(struct ssh2_host *h);

/* It is over, one way or another; always returns false. */
ZT_PRINTF(3, 4) bool ssh2_end(struct ssh2_host *h, enum zt_ssh_cause cause, const char *fmt, ...);
ZT_PRINTF(2, 3) bool ssh2_need_client(struct ssh2_host *h, const char *fmt, ...);

/* The connection is gone, and nothing is lost by it: begin again. Always returns false. */
bool ssh2_begin_again(struct ssh2_host *h);

/* A session, or NULL; and the end of h->session, which may be NULL. Its memory is ours. */
LIBSSH2_SESSION *ssh2_new_session(struct ssh2_host *h);
void ssh2_free_session(struct ssh2_host *h);
void *ssh2_alloc(struct ssh2_host *h, size_t n); /* what libssh2 is to free */

/* What libssh2 says of its last failure. */
const char *ssh2_error(const struct ssh2_host *h);
bool ssh2_is_broken(int rc); /* the connection is gone */

#endif
