#include "launch/ssh2_host.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

static const int64_t ms = 1000000;

const char *ssh2_error(const struct ssh2_host *h)
{
    char *text = NULL;
    if (!h->session || !libssh2_session_last_error(h->session, &text, NULL, 0) || !text)
        return "no reason is known";
    return text;
}

bool ssh2_is_broken(int rc)
{
    return rc == LIBSSH2_ERROR_SOCKET_DISCONNECT || rc == LIBSSH2_ERROR_SOCKET_RECV ||
           rc == LIBSSH2_ERROR_SOCKET_SEND || rc == LIBSSH2_ERROR_BANNER_RECV ||
           rc == LIBSSH2_ERROR_BANNER_SEND;
}

/* ---- ends ---- */

static void disconnect(struct ssh2_host *h, bool well)
{
    if (h->session && well)
        libssh2_session_disconnect(h->session, "done");
    if (h->sock >= 0) /* then nothing that libssh2 still wants to send keeps it from freeing */
        shutdown(h->sock, SHUT_RDWR);
    ssh2_free_session(h);
    if (h->sock >= 0)
        close(h->sock);
    h->sock = -1;
    zt_lookup_release(h->lookup);
    h->lookup = NULL;
    zt_turn_leave(h->turn);
}

static bool finish(struct ssh2_host *h)
{
    const bool well = h->outcome.end.cause == ZT_SSH_EXITED && !h->outcome.needs_client;
    disconnect(h, well);
    close(h->fd);
    close(h->err_fd);
    h->state = SSH2_DONE;
    atomic_store(&h->done, true);
    eventfd_write(h->s->event_fd, 1);
    return false;
}

bool ssh2_end(struct ssh2_host *h, enum zt_ssh_cause cause, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    h->outcome.end.cause = cause;
    vsnprintf(h->outcome.end.text, sizeof h->outcome.end.text, fmt, ap);
    va_end(ap);
    return finish(h);
}

bool ssh2_need_client(struct ssh2_host *h, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(h->outcome.end.text, sizeof h->outcome.end.text, fmt, ap);
    va_end(ap);
    h->outcome.needs_client = true;
    return finish(h);
}

bool ssh2_begin_again(struct ssh2_host *h)
{
    disconnect(h, false);
    h->state = SSH2_WAITING;
    h->n_offered = 0;
    h->was_locked = false;
    h->deadline_ns = 0;
    return false;
}

/* ---- a place, an address ---- */

static bool needs_client(struct ssh2_host *h)
{
    struct zt_str why = {0};
    const bool needs = zt_ssh_needs_client(h->config, &why);
    if (needs)
        ssh2_need_client(h, "%s", why.buf);
    zt_str_release(&why);
    return needs;
}

static bool take_place(struct ssh2_host *h, int64_t now_ns)
{
    struct zt_err err;
    const char *family = h->config->address_family;
    if (needs_client(h))
        return false;
    if (!zt_turn_take(h->turn, now_ns))
        return false;
    int af = family && strcmp(family, "inet") == 0    ? AF_INET
             : family && strcmp(family, "inet6") == 0 ? AF_INET6
                                                      : AF_UNSPEC;
    if (zt_lookup_start(h->config->hostname, h->config->port, af, h->s->wake_fd, &h->lookup, &err))
        return ssh2_end(h, ZT_SSH_FAILED, "%s", err.msg);
    h->state = SSH2_LOOKING_UP;
    return true;
}

/* Silence of the network is noticed by the kernel, as the front end sends something every second. */
static void set_options(int sock)
{
    static const int on = 1, idle_s = 3, every_s = 2, times = 3;
    static const unsigned silence_ms = SSH2_SILENCE_MS;
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(sock, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(sock, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(sock, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(sock, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
    setsockopt(sock, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms);
}

/* Begin to connect to h->address or those behind it; `error` is why the one before failed. */
static bool connect_on(struct ssh2_host *h, int error, int64_t now_ns)
{
    for (; h->address; h->address = h->address->ai_next) {
        if (h->sock >= 0)
            close(h->sock);
        h->sock = socket(h->address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (h->sock >= 0 && (connect(h->sock, h->address->ai_addr, h->address->ai_addrlen) == 0 ||
                             errno == EINPROGRESS)) {
            h->state = SSH2_CONNECTING;
            h->deadline_ns = now_ns + SSH2_CONNECT_MS * ms;
            return true;
        }
        error = errno;
    }
    return ssh2_end(h, ZT_SSH_NO_ANSWER, "ssh: connect to host %s port %d: %s", h->config->hostname,
                    h->config->port, strerror(error));
}

static bool look_up(struct ssh2_host *h, int64_t now_ns)
{
    struct zt_err err;
    int rc = zt_lookup_get(h->lookup, &h->address, &err);
    if (rc > 0)
        return false;
    if (rc < 0)
        return ssh2_end(h, ZT_SSH_NO_NAME, "%s", err.msg);
    return connect_on(h, EADDRNOTAVAIL, now_ns);
}

/* ---- a session ---- */

static bool has_word(const char *const *words, int n, const char *word, size_t len)
{
    for (int i = 0; i < n; i++)
        if (strlen(words[i]) == len && memcmp(words[i], word, len) == 0)
            return true;
    return false;
}

/*
 * What the configuration allows, in its order, of what libssh2 has: it would offer all of that, and 1.10 has what
 * nobody should use any more.
 */
static int prefer(struct ssh2_host *h, int method, const char *allowed)
{
    const char **words;
    struct zt_str both = {0};
    const int n = allowed ? libssh2_session_supported_algs(h->session, method, &words) : 0;
    if (n <= 0)
        return n;
    for (const char *p = allowed; *p; p += *p == ',') {
        const size_t len = strcspn(p, ",");
        if (has_word(words, n, p, len))
            zt_str_printf(&both, "%s%.*s", both.len ? "," : "", (int)len, p);
        p += len;
    }
    libssh2_free(h->session, (void *)words);
    const int rc = both.len ? libssh2_session_method_pref(h->session, method, both.buf)
                            : LIBSSH2_ERROR_METHOD_NOT_SUPPORTED;
    zt_str_release(&both);
    return rc;
}

static int prefer_all(struct ssh2_host *h)
{
    const struct {
        int method;
        const char *allowed;
    } rows[] = {{LIBSSH2_METHOD_KEX, h->config->kex_algorithms},
                {LIBSSH2_METHOD_CRYPT_CS, h->config->ciphers},
                {LIBSSH2_METHOD_CRYPT_SC, h->config->ciphers},
                {LIBSSH2_METHOD_MAC_CS, h->config->macs},
                {LIBSSH2_METHOD_MAC_SC, h->config->macs}};
    int rc = 0;
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows) && !rc; i++)
        rc = prefer(h, rows[i].method, rows[i].allowed);
    return rc;
}

static bool open_session(struct ssh2_host *h, int64_t now_ns)
{
    struct zt_str methods = {0};
    struct zt_err err;
    int rc = ssh2_host_key_methods(h, &methods, &err);
    if (rc) {
        zt_str_release(&methods);
        return rc == ZT_EUNSUPPORTED ? ssh2_need_client(h, "%s", err.msg)
                                     : ssh2_end(h, ZT_SSH_FAILED, "%s", err.msg);
    }
    set_options(h->sock);
    h->session = ssh2_new_session(h);
    if (h->session) {
        libssh2_session_set_blocking(h->session, 0);
        rc = libssh2_session_method_pref(h->session, LIBSSH2_METHOD_HOSTKEY, methods.buf);
        if (!rc)
            rc = prefer_all(h);
    }
    zt_str_release(&methods);
    if (rc == LIBSSH2_ERROR_METHOD_NOT_SUPPORTED)
        return ssh2_need_client(
            h,
            "libssh2 %s has none of the KexAlgorithms, Ciphers or MACs that its "
            "configuration allows",
            libssh2_version(0));
    if (!h->session || rc)
        return ssh2_need_client(h, "libssh2 %s: %s", libssh2_version(0), ssh2_error(h));
    h->state = SSH2_GREETING;
    h->deadline_ns = now_ns + SSH2_GREET_MS * ms;
    return true;
}

static bool finish_connect(struct ssh2_host *h, int64_t now_ns)
{
    struct pollfd p = {.fd = h->sock, .events = POLLOUT};
    int error = 0;
    socklen_t n = sizeof error;
    if (poll(&p, 1, 0) == 1)
        getsockopt(h->sock, SOL_SOCKET, SO_ERROR, &error, &n);
    else if (now_ns < h->deadline_ns)
        return false;
    else
        error = ETIMEDOUT;
    if (!error)
        return open_session(h, now_ns);
    h->address = h->address->ai_next;
    return connect_on(h, error, now_ns);
}

/* Its sshd has dropped us before it has asked who we are. */
static bool come_again(struct ssh2_host *h, int64_t now_ns)
{
    return zt_turn_come_again(h->turn, now_ns)
               ? ssh2_begin_again(h)
               : ssh2_end(h, ZT_SSH_DROPPED, "%s port %d: %s", h->config->hostname, h->config->port,
                          ssh2_error(h));
}

static bool greet(struct ssh2_host *h, int64_t now_ns)
{
    int rc = libssh2_session_handshake(h->session, h->sock);
    if (rc == LIBSSH2_ERROR_EAGAIN)
        return false;
    if (ssh2_is_broken(rc))
        return come_again(h, now_ns);
    if (rc)
        return ssh2_need_client(h, "libssh2 %s does not come to terms with its sshd: %s",
                                libssh2_version(0), ssh2_error(h));
    if (!ssh2_check_host_key(h))
        return false;
    if (!h->keys.v)
        zt_ssh_keys_for(h->s->keys, h->config, h->s->rsa, &h->keys);
    h->state = SSH2_LOGGING_IN;
    h->deadline_ns = now_ns + SSH2_LOGIN_MS * ms;
    return true;
}

/* ---- a channel ---- */

static bool cannot(struct ssh2_host *h, int rc, const char *what)
{
    return ssh2_end(h, ZT_SSH_FAILED, "%s lets us in, but %s: %s", h->target->host, what,
                    ssh2_is_broken(rc) ? "the connection broke" : ssh2_error(h));
}

static bool open_channel(struct ssh2_host *h)
{
    static const char session[] = "session";
    h->channel = libssh2_channel_open_ex(h->session, session, sizeof session - 1, SSH2_WINDOW,
                                         SSH2_CHUNK, NULL, 0);
    int rc = h->channel ? 0 : libssh2_session_last_errno(h->session);
    if (rc == LIBSSH2_ERROR_EAGAIN)
        return false;
    if (rc)
        return cannot(h, rc, "opens no session (is its MaxSessions 0?)");
    h->state = SSH2_STARTING;
    return true;
}

static bool start_agent(struct ssh2_host *h)
{
    static const char request[] = "exec";
    struct zt_arena arena = {0};
    const char *command = zt_ssh_command(h->target, &arena);
    int rc = libssh2_channel_process_startup(h->channel, request, sizeof request - 1, command,
                                             (unsigned)strlen(command));
    zt_arena_release(&arena);
    if (rc == LIBSSH2_ERROR_EAGAIN)
        return false;
    if (rc)
        return cannot(h, rc, "starts no command");
    h->state = SSH2_RUNNING;
    h->deadline_ns = 0;
    return true;
}

static bool close_channel(struct ssh2_host *h)
{
    char *signal = NULL;
    int rc = libssh2_channel_close(h->channel);
    if (!rc)
        rc = libssh2_channel_wait_closed(h->channel);
    if (rc == LIBSSH2_ERROR_EAGAIN)
        return false;
    if (rc)
        return ssh2_end(h, ZT_SSH_BROKEN, "the connection broke: %s", ssh2_error(h));
    libssh2_channel_get_exit_signal(h->channel, &signal, NULL, NULL, NULL, NULL, NULL);
    if (signal) {
        char name[32];
        snprintf(name, sizeof name, "%s", signal);
        libssh2_free(h->session, signal);
        return ssh2_end(h, ZT_SSH_SIGNALLED, "%s", name);
    }
    h->outcome.end.code = libssh2_channel_get_exit_status(h->channel);
    return ssh2_end(h, ZT_SSH_EXITED, "%s", "");
}

/* ---- all of it ---- */

static bool check_time(struct ssh2_host *h, int64_t now_ns)
{
    if (!h->deadline_ns || now_ns < h->deadline_ns || h->state == SSH2_CONNECTING)
        return true;
    return ssh2_end(h, ZT_SSH_NO_ANSWER, "ssh: connect to host %s port %d: %s", h->config->hostname,
                    h->config->port,
                    h->state == SSH2_GREETING ? "it does not greet in time"
                                              : "logging in takes too long");
}

/* The key it wants has, perhaps, been unlocked. */
static bool leave_locked(struct ssh2_host *h, int64_t now_ns)
{
    struct zt_ssh_key_file *file = h->keys.v[h->at_key].file;
    zt_ssh_keys_ask(h->s->keys, file);
    if (file->state == ZT_SSH_KEY_LOCKED)
        return false;
    h->state = SSH2_LOGGING_IN;
    h->deadline_ns = now_ns + SSH2_LOGIN_MS * ms;
    return true;
}

bool ssh2_step(struct ssh2_host *h, int64_t now_ns)
{
    if (h->state != SSH2_DONE && atomic_load(&h->dropped))
        return ssh2_end(h, ZT_SSH_BROKEN, "the connection was cut");
    if (!check_time(h, now_ns))
        return false;
    switch (h->state) {
    case SSH2_WAITING:
        return take_place(h, now_ns);
    case SSH2_LOOKING_UP:
        return look_up(h, now_ns);
    case SSH2_CONNECTING:
        return finish_connect(h, now_ns);
    case SSH2_GREETING:
        return greet(h, now_ns);
    case SSH2_LOGGING_IN:
        return ssh2_log_in(h);
    case SSH2_LOCKED:
        return leave_locked(h, now_ns);
    case SSH2_OPENING:
        return open_channel(h);
    case SSH2_STARTING:
        return start_agent(h);
    case SSH2_RUNNING:
        return ssh2_pump(h);
    case SSH2_CLOSING:
        return close_channel(h);
    default:
        return false;
    }
}
