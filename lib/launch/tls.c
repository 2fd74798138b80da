#include "launch/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"

enum {
    HANDSHAKE_MAX_BYTES = 16 << 10,
    KEY_RECORDS = 1 << 23, /* sent by one key; AES-GCM is good for 2^24 (RFC 8446, 5.5) */
};

struct zt_tls_ctx {
    SSL_CTX *ssl;
    uint8_t secret[ZT_TLS_SECRET_BYTES];
    zt_tls_may_come *may_come;
    void *arg;
};

struct zt_tls {
    SSL *ssl;
    BIO_METHOD *method;
    const struct zt_tls_ctx *ctx;
    int fd;
    uint8_t name[ZT_TLS_NAME_MAX];
    size_t name_bytes;
    bool proven;
    size_t n_read;        /* bytes, until proven */
    uint32_t n_records;   /* sent by this key */
    uint32_t renew_after; /* how many that may be */
    int io_error; /* errno of the last call on the socket; 0: it gave something, or its end */
};

static int set_error(struct zt_err *err, const char *what)
{
    char text[160] = "out of memory";
    unsigned long code = ERR_peek_last_error();
    if (code)
        ERR_error_string_n(code, text, sizeof text);
    return zt_err_set(err, ZT_ESYS, "%s: %s", what, text);
}

/* ---- bytes: OpenSSL's own would raise SIGPIPE ---- */

static int bio_write(BIO *b, const char *bytes, int n)
{
    struct zt_tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    ssize_t k = send(t->fd, bytes, (size_t)n, MSG_NOSIGNAL);
    t->io_error = k < 0 ? errno : 0;
    if (t->io_error == EAGAIN || t->io_error == EINTR)
        BIO_set_retry_write(b);
    return (int)k;
}

static int bio_read(BIO *b, char *bytes, int n)
{
    struct zt_tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    const size_t most = t->proven ? (size_t)n : ZT_MIN((size_t)n, HANDSHAKE_MAX_BYTES - t->n_read);
    if (most == 0) {
        t->io_error = EMSGSIZE;
        return -1;
    }
    ssize_t k = recv(t->fd, bytes, most, 0);
    t->io_error = k < 0 ? errno : 0;
    t->n_read += k > 0 ? (size_t)k : 0;
    if (t->io_error == EAGAIN || t->io_error == EINTR)
        BIO_set_retry_read(b);
    return (int)k;
}

static long bio_ctrl(BIO *b, int what, long n, void *p)
{
    (void)b, (void)n, (void)p;
    return what == BIO_CTRL_FLUSH; /* nothing is kept here */
}

static bool use_socket(struct zt_tls *t)
{
    t->method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "socket");
    if (!t->method || !BIO_meth_set_write(t->method, bio_write) ||
        !BIO_meth_set_read(t->method, bio_read) || !BIO_meth_set_ctrl(t->method, bio_ctrl))
        return false;
    BIO *b = BIO_new(t->method);
    if (!b)
        return false;
    BIO_set_data(b, t);
    BIO_set_init(b, 1);
    SSL_set_bio(t->ssl, b, b);
    return true;
}

/* ---- the secret ---- */

static const unsigned char suite[] = {0x13, 0x02}; /* TLS_AES_256_GCM_SHA384 */

static SSL_SESSION *session_of(SSL *ssl)
{
    const struct zt_tls *t = SSL_get_app_data(ssl);
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
    SSL_SESSION *s = SSL_SESSION_new();
    if (s && cipher && SSL_SESSION_set1_master_key(s, t->ctx->secret, sizeof t->ctx->secret) &&
        SSL_SESSION_set_cipher(s, cipher) && SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    SSL_SESSION_free(s);
    return NULL;
}

static int on_dialling(SSL *ssl, const EVP_MD *hash, const unsigned char **name, size_t *bytes,
                       SSL_SESSION **out)
{
    const struct zt_tls *t = SSL_get_app_data(ssl);
    (void)hash; /* there is one suite */
    *name = t->name;
    *bytes = t->name_bytes;
    *out = session_of(ssl);
    return *out != NULL;
}

static int on_name(SSL *ssl, const unsigned char *name, size_t bytes, SSL_SESSION **out)
{
    struct zt_tls *t = SSL_get_app_data(ssl);
    *out = NULL;
    if (bytes > sizeof t->name || !t->ctx->may_come(t->ctx->arg, name, bytes))
        return 1; /* without a key in common, and we have no certificate: the handshake ends */
    memcpy(t->name, name, bytes);
    t->name_bytes = bytes;
    *out = session_of(ssl);
    return *out != NULL;
}

static bool set_up(SSL_CTX *c, bool listens)
{
    if (!SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) ||
        !SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(c, "TLS_AES_256_GCM_SHA384") || !SSL_CTX_set_num_tickets(c, 0))
        return false;
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
    if (listens) {
        SSL_CTX_set_psk_find_session_callback(c, on_name);
    } else {
        SSL_CTX_set_psk_use_session_callback(c, on_dialling);
        SSL_CTX_set_verify(c, SSL_VERIFY_PEER,
                           NULL); /* a certificate: there is none that we trust */
    }
    return true;
}

int zt_tls_ctx_create(const uint8_t secret[ZT_TLS_SECRET_BYTES], zt_tls_may_come *may_come,
                      void *arg, struct zt_tls_ctx **out, struct zt_err *err)
{
    ERR_clear_error();
    SSL_CTX *ssl = SSL_CTX_new(TLS_method());
    if (!ssl || !set_up(ssl, may_come != NULL)) {
        SSL_CTX_free(ssl);
        return set_error(err, "OpenSSL cannot do TLS 1.3 with TLS_AES_256_GCM_SHA384");
    }
    struct zt_tls_ctx *ctx = zt_xcalloc(1, sizeof *ctx);
    *ctx = (struct zt_tls_ctx){.ssl = ssl, .may_come = may_come, .arg = arg};
    memcpy(ctx->secret, secret, sizeof ctx->secret);
    *out = ctx;
    return 0;
}

void zt_tls_ctx_free(struct zt_tls_ctx *ctx)
{
    if (!ctx)
        return;
    SSL_CTX_free(ctx->ssl);
    explicit_bzero(ctx, sizeof *ctx);
    free(ctx);
}

/* ---- a connection ---- */

static int open_conn(struct zt_tls_ctx *ctx, int fd, struct zt_tls **out, struct zt_err *err)
{
    struct zt_tls *t = zt_xcalloc(1, sizeof *t);
    ERR_clear_error();
    *t =
        (struct zt_tls){.ssl = SSL_new(ctx->ssl), .ctx = ctx, .fd = fd, .renew_after = KEY_RECORDS};
    if (!t->ssl || !SSL_set_app_data(t->ssl, t) || !use_socket(t)) {
        zt_tls_free(t);
        return set_error(err, "a TLS connection");
    }
    *out = t;
    return 0;
}

int zt_tls_dial(struct zt_tls_ctx *ctx, int fd, const void *name, size_t bytes, struct zt_tls **out,
                struct zt_err *err)
{
    ZT_ASSERT(bytes > 0 && bytes <= ZT_TLS_NAME_MAX);
    int rc = open_conn(ctx, fd, out, err);
    if (rc)
        return rc;
    memcpy((*out)->name, name, bytes);
    (*out)->name_bytes = bytes;
    SSL_set_connect_state((*out)->ssl);
    return 0;
}

int zt_tls_accept(struct zt_tls_ctx *ctx, int fd, struct zt_tls **out, struct zt_err *err)
{
    int rc = open_conn(ctx, fd, out, err);
    if (!rc)
        SSL_set_accept_state((*out)->ssl);
    return rc;
}

void zt_tls_free(struct zt_tls *t)
{
    if (!t)
        return;
    SSL_free(t->ssl);
    BIO_meth_free(t->method);
    free(t);
}

void zt_conn_close(struct zt_conn *c)
{
    zt_tls_free(c->tls);
    if (c->fd >= 0)
        close(c->fd);
    *c = (struct zt_conn){.fd = -1};
}

static bool tells_of_a_secret(unsigned long code)
{
    if (ERR_GET_LIB(code) != ERR_LIB_SSL)
        return false;
    switch (ERR_GET_REASON(code)) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:              /* as we see it, */
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:       /* and are told of it; */
    case SSL_R_DIGEST_CHECK_FAILED:                 /* of the handshake as a whole, */
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:           /* likewise; */
    case SSL_R_SSLV3_ALERT_BAD_RECORD_MAC:          /* and of what was encrypted in it, */
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC: /* likewise */
        return true;
    default:
        return false;
    }
}

/* Why a handshake ended. From OpenSSL 3.2 on the last word is only that records failed; why was said before it. */
static enum zt_tls_state failure(void)
{
    unsigned long code;
    while ((code = ERR_get_error()) != 0)
        if (tells_of_a_secret(code))
            return ZT_TLS_OTHER_SECRET;
    return ZT_TLS_FAILED;
}

enum zt_tls_state zt_tls_handshake(struct zt_tls *t)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(t->ssl);
    if (rc == 1) {
        t->proven = SSL_session_reused(t->ssl); /* by the key in common */
        return t->proven ? ZT_TLS_PROVEN : ZT_TLS_FAILED;
    }
    rc = SSL_get_error(t->ssl, rc);
    if (rc == SSL_ERROR_WANT_READ || rc == SSL_ERROR_WANT_WRITE)
        return ZT_TLS_GOING_ON;
    return rc == SSL_ERROR_SSL ? failure() : ZT_TLS_FAILED;
}

short zt_tls_events(const struct zt_tls *t)
{
    return SSL_want_write(t->ssl) ? POLLOUT : POLLIN;
}

const void *zt_tls_name(const struct zt_tls *t, size_t *bytes)
{
    *bytes = t->name_bytes;
    return t->name;
}

/* What errno is to be after SSL_read() or SSL_write(); 0: the other end has ended the connection. */
static int why_not(const struct zt_tls *t, int rc)
{
    switch (SSL_get_error(t->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        return t->io_error;
    default:
        return EBADMSG;
    }
}

ssize_t zt_tls_read(struct zt_tls *t, void *buf, size_t n)
{
    size_t got;
    ERR_clear_error();
    int rc = SSL_read_ex(t->ssl, buf, n, &got);
    if (rc > 0)
        return (ssize_t)got;
    errno = why_not(t, rc);
    return errno ? -1 : 0;
}

void zt_tls_renew_after(struct zt_tls *t, uint32_t n_records)
{
    t->renew_after = n_records;
}

/* What tells the other end is sent at once, and only where it has room: OpenSSL does not read while it waits for that. */
static void renew_key(struct zt_tls *t)
{
    struct pollfd p = {.fd = t->fd, .events = POLLOUT};
    if (poll(&p, 1, 0) == 1 && SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) &&
        SSL_do_handshake(t->ssl) == 1)
        t->n_records = 0;
}

ssize_t zt_tls_write(struct zt_tls *t, const void *buf, size_t n)
{
    size_t sent;
    ERR_clear_error();
    int rc = SSL_write_ex(t->ssl, buf, n, &sent);
    if (rc <= 0) {
        errno = why_not(t, rc);
        errno = errno ? errno : EPIPE;
        return -1;
    }
    if (++t->n_records >= t->renew_after)
        renew_key(t);
    return (ssize_t)sent;
}
