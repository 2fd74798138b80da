/*
 * Where the processes of a job meet, and what they know each other by.
 */
#include "launch/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/arena.h"
#include "hosts/hosts.h"

enum { SECRET_MIN_BYTES = 16, SECRET_MAX_BYTES = 4096 };

static const char secret_var[] = "ZT_JOB_SECRET_FILE";

/* ---- the job's id ---- */

/* What a launcher gives to all processes of a job, and to those of no other. */
static const char *const id_vars[] = {
    "SLURM_JOB_ID",        "SLURM_STEP_ID", "FLUX_JOB_ID",
    "PMIX_NAMESPACE",      "MASTER_ADDR",   "OMPI_MCA_ess_base_jobid",
    "TORCHELASTIC_RUN_ID", "MASTER_PORT",   "TORCHELASTIC_RESTART_COUNT",
};

/* Slurm's and Flux's count for their own tasks alone: mpirun and torchrun may have brought them to some hosts only. */
static bool is_of(const struct zt_place *place, const char *var)
{
    if (strncmp(var, "SLURM_", 6) == 0)
        return strcmp(place->by, "srun") == 0;
    return strncmp(var, "FLUX_", 5) != 0 || strcmp(place->by, "flux") == 0;
}

static void make_id(const struct zt_env *env, const struct zt_place *place, uint8_t *id)
{
    struct zt_str text = {0};
    uint8_t digest[EVP_MAX_MD_SIZE];
    zt_str_printf(&text, "%s\n%d\n", place->by, place->world);
    for (size_t i = 0; i < ZT_ARRAY_LEN(id_vars); i++) {
        const char *value = is_of(place, id_vars[i]) ? zt_env_get(env, id_vars[i]) : NULL;
        zt_str_printf(&text, "%s=%s\n", id_vars[i], value ? value : "");
    }
    int done = EVP_Digest(text.buf, text.len, digest, NULL, EVP_sha256(), NULL);
    ZT_ASSERT(done == 1);
    memcpy(id, digest, ZT_JOB_ID_BYTES);
    zt_str_release(&text);
}

/* ---- the secret ---- */

static int check_secret_file(int fd, const char *path, struct zt_err *err)
{
    struct stat st;
    if (fstat(fd, &st))
        return zt_err_errno(err, ZT_EIO, "%s=%s", secret_var, path);
    if (!S_ISREG(st.st_mode))
        return zt_err_set(err, ZT_EINPUT, "%s=%s: not a file", secret_var, path);
    if (st.st_uid != geteuid())
        return zt_err_set(err, ZT_EINPUT, "%s=%s: it belongs to another user, number %u",
                          secret_var, path, (unsigned)st.st_uid);
    if (st.st_mode & 077)
        return zt_err_set(err, ZT_EINPUT,
                          "%s=%s: others may read or write it; `chmod 600` it, and make a new one "
                          "if they were not to know",
                          secret_var, path);
    if (st.st_size < SECRET_MIN_BYTES || st.st_size > SECRET_MAX_BYTES)
        return zt_err_set(err, ZT_EINPUT, "%s=%s: %lld bytes; a secret has from %d to %d",
                          secret_var, path, (long long)st.st_size, SECRET_MIN_BYTES,
                          SECRET_MAX_BYTES);
    return 0;
}

static int read_secret(const char *path, uint8_t *secret, struct zt_err *err)
{
    uint8_t text[SECRET_MAX_BYTES], digest[EVP_MAX_MD_SIZE];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return zt_err_errno(err, ZT_EINPUT, "%s=%s", secret_var, path);
    int rc = check_secret_file(fd, path, err);
    ssize_t n = rc ? 0 : read(fd, text, sizeof text);
    if (!rc && n < SECRET_MIN_BYTES)
        rc = zt_err_errno(err, ZT_EIO, "%s=%s: cannot be read", secret_var, path);
    close(fd);
    if (!rc) {
        int done = EVP_Digest(text, (size_t)n, digest, NULL, EVP_sha256(), NULL);
        ZT_ASSERT(done == 1);
        memcpy(secret, digest, ZT_TLS_SECRET_BYTES);
        explicit_bzero(digest, sizeof digest);
    }
    explicit_bzero(text, sizeof text);
    return rc;
}

int zt_meeting_add_file(struct zt_meeting *m, const char *path, struct zt_err *err)
{
    uint8_t file[ZT_TLS_SECRET_BYTES], whole[EVP_MAX_MD_SIZE];
    unsigned n;
    if (m->half_a_secret != (path != NULL))
        return zt_err_set(err, ZT_EINPUT, "%s is set %s; it must be in both places, or in neither",
                          secret_var,
                          path ? "here, but not where zerotrain was started"
                               : "where zerotrain was started, but not here");
    if (!path)
        return 0;
    int rc = read_secret(path, file, err);
    if (rc)
        return rc;
    const unsigned char *done =
        HMAC(EVP_sha256(), file, sizeof file, m->secret, sizeof m->secret, whole, &n);
    ZT_ASSERT(done && n == sizeof m->secret);
    memcpy(m->secret, whole, sizeof m->secret);
    m->half_a_secret = false;
    explicit_bzero(file, sizeof file);
    explicit_bzero(whole, sizeof whole);
    return 0;
}

/* ---- where ---- */

static int read_number(const char *name, const char *text, int most, int *out, struct zt_err *err)
{
    int64_t n;
    if (!text)
        return 0;
    if (!zt_parse_i64(text, &n) || n < 1 || n > most)
        return zt_err_set(err, ZT_EINPUT, "%s=%.40s: a number from 1 to %d is needed", name, text,
                          most);
    *out = (int)n;
    return 0;
}

int zt_join_seconds(const char *text, int *out, struct zt_err *err)
{
    *out = ZT_RENDEZVOUS_S;
    return read_number("ZT_JOIN_SECONDS", text, 86400, out, err);
}

/* Steps of other jobs on the same host are likely to come to other ports. */
static int port_of_step(const struct zt_env *env)
{
    enum { LEAST = 20000, N = 10000 };
    const char *job = zt_env_get(env, "SLURM_JOB_ID"), *step = zt_env_get(env, "SLURM_STEP_ID");
    int64_t a = 0, b = 0;
    if (!job || !zt_parse_i64(job, &a) || (step && !zt_parse_i64(step, &b)))
        return ZT_RENDEZVOUS_PORT;
    return LEAST + (int)((uint64_t)(a * 16 + b) % N);
}

static int find_port(const struct zt_env *env, const struct zt_place *place, int *port,
                     struct zt_err *err)
{
    const char *held = zt_env_get(env, "TORCHELASTIC_USE_AGENT_STORE");
    *port = strcmp(place->by, "srun") == 0 ? port_of_step(env) : ZT_RENDEZVOUS_PORT;
    int rc = read_number("MASTER_PORT", zt_env_get(env, "MASTER_PORT"), UINT16_MAX - 1, port, err);
    if (!rc && strcmp(place->by, "torchrun") == 0 && held && strcmp(held, "True") == 0)
        ++*port; /* torchrun's own agents meet at MASTER_PORT itself */
    return rc;
}

static void put_host(char *out, const char *name)
{
    snprintf(out, ZT_HOST_TEXT, "%s", name);
}

/* The first host of the step, where rank 0 is, and the second, towards which it listens. */
static int hosts_of_step(const struct zt_env *env, struct zt_meeting *m, struct zt_err *err)
{
    static const char step[] = "SLURM_STEP_NODELIST", all[] = "SLURM_JOB_NODELIST";
    const char *var = zt_env_get(env, step) ? step : all, *list = zt_env_get(env, var);
    struct zt_hosts hosts = {0};
    if (!list)
        return zt_err_set(err, ZT_EINPUT,
                          "srun has not set %s; set MASTER_ADDR to the host of rank 0", step);
    int rc = zt_hosts_of_nodelist(var, list, &hosts, err);
    if (!rc) {
        put_host(m->host, hosts.v[0].name);
        put_host(m->towards, hosts.n > 1 ? hosts.v[1].name : "");
    }
    zt_hosts_release(&hosts);
    return rc;
}

static int find_hosts(const struct zt_env *env, const struct zt_place *place, struct zt_meeting *m,
                      struct zt_err *err)
{
    const char *master = zt_env_get(env, "MASTER_ADDR");
    int rc = find_port(env, place, &m->port, err);
    if (rc)
        return rc;
    if (master && strlen(master) >= ZT_HOST_TEXT)
        return zt_err_set(err, ZT_EINPUT, "MASTER_ADDR=%.40s...: too long for a host", master);
    if (master && *master)
        put_host(m->host, master);
    else if (strcmp(place->by, "srun") == 0)
        rc = hosts_of_step(env, m, err);
    else
        rc = zt_err_set(err, ZT_EINPUT,
                        "%s has started us on several hosts, but not said where rank 0 is: set "
                        "MASTER_ADDR to its host, for all processes (mpirun -x MASTER_ADDR)",
                        place->by);
    return rc;
}

static bool on_several_hosts(const struct zt_env *env, const struct zt_place *place)
{
    const bool srun = strcmp(place->by, "srun") == 0, flux = strcmp(place->by, "flux") == 0;
    const char *nodes = zt_env_get(env, srun ? "SLURM_STEP_NUM_NODES" : "FLUX_JOB_NNODES");
    if (place->local_world > 0)
        return place->local_world < place->world;
    if (srun || flux)
        return nodes && strcmp(nodes, "1") != 0;
    return zt_env_get(env, secret_var) && zt_env_get(env, "MASTER_ADDR");
}

int zt_meeting_of_env(const struct zt_env *env, const struct zt_place *place,
                      struct zt_meeting *out, struct zt_err *err)
{
    const char *path = zt_env_get(env, secret_var);
    const bool several = on_several_hosts(env, place);
    int limit_s;
    *out = (struct zt_meeting){.by = place->by,
                               .world = place->world,
                               .rank = place->rank,
                               .local_rank = place->local_rank};
    make_id(env, place, out->id);
    int rc = zt_join_seconds(zt_env_get(env, "ZT_JOIN_SECONDS"), &limit_s, err);
    out->limit_s = limit_s;
    if (!rc && several && !path)
        rc = zt_err_set(err, ZT_EINPUT,
                        "%s has started us on several hosts, which must know each other by a "
                        "secret. Make one where all of them find it: `(umask 077; head -c 32 "
                        "/dev/urandom >FILE)`, and set %s=FILE for all processes",
                        place->by, secret_var);
    if (!rc && path)
        rc = read_secret(path, out->secret, err);
    if (!rc && several)
        rc = find_hosts(env, place, out, err);
    if (rc)
        explicit_bzero(out->secret, sizeof out->secret);
    return rc;
}

/* ---- what both ends do ---- */

socklen_t zt_meeting_unix(const struct zt_meeting *m, struct sockaddr_storage *out)
{
    struct sockaddr_un *un = (struct sockaddr_un *)out;
    memset(out, 0, sizeof *out);
    un->sun_family = AF_UNIX;
    char *name = un->sun_path + 1; /* after a NUL: abstract */
    size_t room = sizeof un->sun_path - 1;
    int n = snprintf(name, room, "zerotrain-%u-", (unsigned)geteuid());
    for (int i = 0; i < ZT_JOB_ID_BYTES; i++)
        n += snprintf(name + n, room - (size_t)n, "%02x", m->id[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

void zt_meeting_hello(const struct zt_meeting *m, int rank, enum zt_party_kind kind,
                      struct zt_hello *out)
{
    _Static_assert(sizeof *out == 8 + 3 * 4 + ZT_JOB_ID_BYTES + ZT_NONCE_BYTES &&
                       sizeof *out <= ZT_TLS_NAME_MAX,
                   "it has no holes, and may be a name");
    memcpy(out->magic, "ztjoin4\n", sizeof out->magic);
    out->rank = rank;
    out->kind = kind;
    out->world = m->world;
    memcpy(out->id, m->id, sizeof out->id);
    if (kind == ZT_PARTY_AGENT)
        memcpy(out->nonce, m->nonce, sizeof out->nonce);
    else
        memset(out->nonce, 0, sizeof out->nonce);
}

void zt_meeting_keepalive(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1},  {IPPROTO_TCP, TCP_NODELAY, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 3}, {IPPROTO_TCP, TCP_KEEPINTVL, 3},
        {IPPROTO_TCP, TCP_KEEPCNT, 3},  {IPPROTO_TCP, TCP_USER_TIMEOUT, 12000},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(options); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
}

void zt_meeting_has_beats(int fd)
{
    const int none = 0;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &none, sizeof none);
}

/* ---- tickets ---- */

enum { TICKET_MAX_BYTES = 4096 };

static const char ticket_magic[] = "zerotrain ticket 4\n";

void zt_ticket_put(const struct zt_meeting *m, struct zt_str *out)
{
    zt_str_puts(out, ticket_magic);
    zt_put_u32(out, (uint32_t)m->world);
    zt_put_u32(out, (uint32_t)m->rank);
    zt_put_u32(out, (uint32_t)m->port);
    zt_put_u32(out, (uint32_t)(m->limit_s * 1e3));
    zt_put_u32(out, m->half_a_secret);
    zt_put_blob(out, m->host, strlen(m->host));
    zt_str_add(out, m->id, sizeof m->id);
    zt_str_add(out, m->nonce, sizeof m->nonce);
    zt_str_add(out, m->secret, sizeof m->secret);
}

static int parse_ticket(const unsigned char *text, size_t n, struct zt_meeting *out)
{
    size_t magic = sizeof ticket_magic - 1, len;
    if (n < magic || memcmp(text, ticket_magic, magic) != 0)
        return -1;
    struct zt_cursor c = {text + magic, n - magic, false};
    out->world = (int)zt_get_u32(&c);
    out->rank = (int)zt_get_u32(&c);
    out->port = (int)zt_get_u32(&c);
    out->limit_s = zt_get_u32(&c) * 1e-3;
    out->half_a_secret = zt_get_u32(&c) != 0;
    const unsigned char *host = zt_get_blob(&c, &len);
    const unsigned char *id = zt_get_bytes(&c, sizeof out->id);
    const unsigned char *nonce = zt_get_bytes(&c, sizeof out->nonce);
    const unsigned char *secret = zt_get_bytes(&c, sizeof out->secret);
    if (!zt_cursor_done(&c) || len >= sizeof out->host || out->world < 1)
        return -1;
    memcpy(out->host, host, len);
    memcpy(out->id, id, sizeof out->id);
    memcpy(out->nonce, nonce, sizeof out->nonce);
    memcpy(out->secret, secret, sizeof out->secret);
    return 0;
}

int zt_ticket_read(int fd, struct zt_meeting *out, struct zt_err *err)
{
    unsigned char text[TICKET_MAX_BYTES + 1]; /* the secret is nowhere else */
    size_t got = 0;
    ssize_t n = 1;
    *out = (struct zt_meeting){0};
    while (got < sizeof text && n != 0 && (n > 0 || errno == EINTR)) {
        n = read(fd, text + got, sizeof text - got);
        got += n > 0 ? (size_t)n : 0;
    }
    int bad = parse_ticket(text, got, out);
    explicit_bzero(text, sizeof text);
    return bad ? zt_err_set(err, ZT_EINPUT, "no ticket to join with") : 0;
}
