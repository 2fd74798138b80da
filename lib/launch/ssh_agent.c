#include "launch/ssh_agent.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/io.h"

enum {
    REQUEST_IDENTITIES = 11,
    IDENTITIES_ANSWER = 12,
    SIGN_REQUEST = 13,
    SIGN_RESPONSE = 14,
    MESSAGE_BYTES = 256 << 10, /* as OpenSSH */
    MAX_KEYS = 2048,
    WAIT_S = 5,
};

static int dial(const char *path, int *out, struct zt_err *err)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const struct timeval wait = {.tv_sec = WAIT_S};
    if (strlen(path) >= sizeof to.sun_path)
        return zt_err_set(err, ZT_EINPUT, "%s is too long for the name of a socket", path);
    memcpy(to.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) ||
        connect(fd, (const struct sockaddr *)&to, sizeof to)) {
        int rc = zt_err_errno(err, ZT_ESYS, "ssh-agent at %s", path);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

static int broken(struct zt_ssh_agent *a, struct zt_err *err)
{
    close(a->fd);
    a->fd = -1;
    return zt_err_wrap(err, "ssh-agent");
}

/* Send a message and take the answer; after a failure the connection is closed. */
static int ask(struct zt_ssh_agent *a, const struct zt_str *message, struct zt_str *answer,
               struct zt_err *err)
{
    struct zt_str framed = {0};
    uint8_t head[4] = {0};
    if (a->fd < 0)
        return zt_err_set(err, ZT_EPEER, "ssh-agent is gone");
    zt_ssh_put_string(&framed, message->buf, message->len);
    int rc = zt_write_full(a->fd, framed.buf, framed.len, "the agent", err);
    zt_str_release(&framed);
    if (!rc)
        rc = zt_read_full(a->fd, head, sizeof head, "the agent", err) == 1 ? 0 : ZT_EPEER;
    struct zt_ssh_bytes b = {head, sizeof head, false};
    const size_t len = zt_ssh_get_u32(&b);
    if (!rc && (len == 0 || len > MESSAGE_BYTES))
        rc = zt_err_set(err, ZT_EPROTO, "an answer of %zu bytes", len);
    else if (rc == ZT_EPEER)
        zt_err_set(err, ZT_EPEER, "no answer");
    uint8_t *bytes = rc ? NULL : zt_xcalloc(len, 1);
    if (!rc && zt_read_full(a->fd, bytes, len, "the agent", err) != 1)
        rc = zt_err_set(err, ZT_EPEER, "half an answer");
    if (!rc)
        zt_str_add(answer, bytes, len);
    free(bytes);
    return rc ? broken(a, err) : 0;
}

static int list(struct zt_ssh_agent *a, struct zt_err *err)
{
    static const char request = REQUEST_IDENTITIES;
    struct zt_str message = {0}, answer = {0};
    zt_str_add(&message, &request, 1);
    int rc = ask(a, &message, &answer, err);
    struct zt_ssh_bytes b = {(const uint8_t *)zt_str_get(&answer) + 1, answer.len - !rc, false};
    const uint32_t n = rc ? 0 : zt_ssh_get_u32(&b);
    if (!rc && (answer.buf[0] != IDENTITIES_ANSWER || b.bad || n > MAX_KEYS))
        rc = zt_err_set(err, ZT_EPROTO, "ssh-agent does not list its keys");
    a->keys = zt_arena_alloc(&a->arena, rc ? 1 : n + 1, sizeof *a->keys);
    for (uint32_t i = 0; !rc && i < n; i++) {
        size_t n_blob, n_comment;
        const uint8_t *blob = zt_ssh_get_string(&b, &n_blob);
        const uint8_t *comment = zt_ssh_get_string(&b, &n_comment);
        if (b.bad) {
            rc = zt_err_set(err, ZT_EPROTO, "ssh-agent's list is damaged");
            break;
        }
        uint8_t *copy = zt_arena_alloc(&a->arena, n_blob + 1, 1);
        memcpy(copy, blob, n_blob);
        a->keys[a->n_keys++] = (struct zt_ssh_agent_key){
            copy, n_blob,
            zt_arena_printf(&a->arena, "%.*s", (int)n_comment, (const char *)comment)};
    }
    zt_str_release(&message);
    zt_str_release(&answer);
    return rc;
}

int zt_ssh_agent_open(const char *path, struct zt_ssh_agent *a, struct zt_err *err)
{
    *a = (struct zt_ssh_agent){.fd = -1};
    int rc = dial(path, &a->fd, err);
    if (!rc)
        rc = list(a, err);
    if (rc)
        zt_ssh_agent_release(a);
    return rc;
}

/* The signature that is in one with its type; an agent that does not know of RFC 8332 signs with SHA-1. */
static int open_signature(struct zt_ssh_bytes s, enum zt_ssh_rsa rsa, uint8_t **sig,
                          size_t *sig_len, struct zt_err *err)
{
    const char *want = zt_ssh_rsa_name(rsa);
    size_t n, n_type;
    const uint8_t *type = zt_ssh_get_string(&s, &n_type), *p = zt_ssh_get_string(&s, &n);
    if (s.bad)
        return zt_err_set(err, ZT_EPROTO, "ssh-agent's signature is damaged");
    if (want && (strlen(want) != n_type || memcmp(type, want, n_type) != 0))
        return zt_err_set(err, ZT_EPROTO, "ssh-agent signs as %.*s, not as %s", (int)n_type,
                          (const char *)type, want);
    *sig = zt_xcalloc(n + 1, 1);
    memcpy(*sig, p, n);
    *sig_len = n;
    return 0;
}

int zt_ssh_agent_sign(struct zt_ssh_agent *a, const uint8_t *blob, size_t blob_len,
                      enum zt_ssh_rsa rsa, const uint8_t *data, size_t len, uint8_t **sig,
                      size_t *sig_len, struct zt_err *err)
{
    static const char request = SIGN_REQUEST;
    struct zt_str message = {0}, answer = {0};
    size_t n;
    zt_str_add(&message, &request, 1);
    zt_ssh_put_string(&message, blob, blob_len);
    zt_ssh_put_string(&message, data, len);
    zt_ssh_put_u32(&message, rsa); /* flags */
    int rc = ask(a, &message, &answer, err);
    struct zt_ssh_bytes b = {(const uint8_t *)zt_str_get(&answer) + 1, answer.len - !rc, false};
    const uint8_t *both = rc ? NULL : zt_ssh_get_string(&b, &n);
    if (!rc && (answer.buf[0] != SIGN_RESPONSE || b.bad))
        rc = zt_err_set(err, ZT_EINPUT, "ssh-agent does not sign");
    if (!rc)
        rc = open_signature((struct zt_ssh_bytes){both, n, false}, rsa, sig, sig_len, err);
    zt_str_release(&message);
    zt_str_release(&answer);
    return rc;
}

void zt_ssh_agent_release(struct zt_ssh_agent *a)
{
    if (a->fd >= 0)
        close(a->fd);
    zt_arena_release(&a->arena);
    *a = (struct zt_ssh_agent){.fd = -1};
}
