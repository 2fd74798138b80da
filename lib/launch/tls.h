/*
 * tls.h: TLS 1.3 over a socket between two ends that know a secret, without blocking. The secret is an external
 * pre-shared key (RFC 8446, 2.2), and nothing else counts: there are no certificates, no other version, no tickets and
 * no early data. Each end shows the other that it knows the secret, and the keys of a connection come from a
 * Diffie-Hellman exchange of its own as well (psk_dhe_ke), so who learns the secret later cannot read what he recorded.
 * Who is in between can pass bytes on or end the connection; bytes that are changed, repeated or put in end it too.
 *
 * The end that dials says a name first, in the clear: it tells the other whether to go on at all.
 *
 * An end of the connection without an alert (close_notify) is an end like any other: what is carried says itself
 * when it is complete (proto.h), and a cable may be cut at any time.
 */
#ifndef ZT_LAUNCH_TLS_H
#define ZT_LAUNCH_TLS_H

#include "base/compat.h"

#include <sys/types.h>

#include "base/err.h"

enum {
    ZT_TLS_SECRET_BYTES = 32,
    ZT_TLS_NAME_MAX = 64, /* bytes of a name */
};

struct zt_tls_ctx; /* a secret, ready for any number of connections */
struct zt_tls;     /* a connection */

/* Whether somebody who calls himself so may try. He has proven nothing yet. */
typedef bool zt_tls_may_come(void *arg, const void *name, size_t bytes);

/* The secret is copied. may_come: NULL where we only dial; arg is given to it. */
int zt_tls_ctx_create(const uint8_t secret[ZT_TLS_SECRET_BYTES], zt_tls_may_come *may_come,
                      void *arg, struct zt_tls_ctx **out, struct zt_err *err) ZT_MUST_CHECK;
void zt_tls_ctx_free(struct zt_tls_ctx *ctx); /* accepts NULL. After the handshakes made with it */

/* fd is a non-blocking socket, which stays the caller's. Nothing is sent yet. */
int zt_tls_dial(struct zt_tls_ctx *ctx, int fd, const void *name, size_t bytes, struct zt_tls **out,
                struct zt_err *err) ZT_MUST_CHECK;
int zt_tls_accept(struct zt_tls_ctx *ctx, int fd, struct zt_tls **out,
                  struct zt_err *err) ZT_MUST_CHECK;
void zt_tls_free(struct zt_tls *t); /* accepts NULL */

enum zt_tls_state {
    ZT_TLS_GOING_ON,     /* again when the socket has something to read, or room to write */
    ZT_TLS_PROVEN,       /* done: the other end knows the secret */
    ZT_TLS_OTHER_SECRET, /* it has another one, or bytes were changed on the way */
    ZT_TLS_FAILED,       /* it ended the connection, may not come, or does not speak this at all */
};

/* As far as it goes. No more than 16 KB are taken in before it is proven, so a stranger costs little. */
enum zt_tls_state zt_tls_handshake(struct zt_tls *t);

/* What to poll for while it is going on. */
short zt_tls_events(const struct zt_tls *t);

/* How the end that dialled calls itself; 0 bytes: not known yet. */
const void *zt_tls_name(const struct zt_tls *t, size_t *bytes);

/*
 * When proven: as recv() and send() of a non-blocking socket. EBADMSG: what came is not what the other end has sent,
 * or the other end says so of us; nothing more goes over this connection. After EAGAIN zt_tls_write() is called
 * again with the same bytes, and more if you like, before any others. A record is read whole into a buffer of 16 KB
 * or more; into a smaller one the rest stays here, and poll() does not tell of it.
 */
ssize_t zt_tls_read(struct zt_tls *t, void *buf, size_t n);
ssize_t zt_tls_write(struct zt_tls *t, const void *buf, size_t n);

/* So many records are sent by one key; 2^23 where this is not called, too many to wait for in a test. */
void zt_tls_renew_after(struct zt_tls *t, uint32_t n_records);

/* A socket, and TLS over it; NULL: as it is. */
struct zt_conn {
    int fd; /* -1: none */
    struct zt_tls *tls;
};
void zt_conn_close(struct zt_conn *c); /* accepts one without a socket */

#endif
