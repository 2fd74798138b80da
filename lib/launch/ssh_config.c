#include "launch/ssh_config.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/program.h"
#include "launch/supervisor.h"

struct parser {
    struct zt_ssh_config *c;
    const char *home;
    struct zt_arena *arena;
};

static const char *keep_path(struct parser *p, const char *path)
{
    return p->home && strncmp(path, "~/", 2) == 0
               ? zt_arena_printf(p->arena, "%s%s", p->home, path + 1)
               : zt_arena_strdup(p->arena, path);
}

static void add_file(struct parser *p, struct zt_ssh_files *files, const char *path)
{
    if (strcmp(path, "none") && files->n < ZT_SSH_MAX_FILES)
        files->v[files->n++] = keep_path(p, path);
}

/* ssh separates them by blanks and quotes nothing. */
static void add_files(struct parser *p, struct zt_ssh_files *files, char *list)
{
    for (char *rest, *path = strtok_r(list, " ", &rest); path; path = strtok_r(NULL, " ", &rest))
        add_file(p, files, path);
}

static int take(struct parser *p, const char *key, char *value, struct zt_err *err)
{
    struct zt_ssh_config *c = p->c;
    const struct {
        const char *key;
        const char **text;
        struct zt_ssh_files *file, *files;
    } rows[] = {
        {"hostname", &c->hostname, NULL, NULL},
        {"user", &c->user, NULL, NULL},
        {"hostkeyalias", &c->host_key_alias, NULL, NULL},
        {"proxyjump", &c->proxy_jump, NULL, NULL},
        {"proxycommand", &c->proxy_command, NULL, NULL},
        {"identityagent", &c->identity_agent, NULL, NULL},
        {"addressfamily", &c->address_family, NULL, NULL},
        {"ciphers", &c->ciphers, NULL, NULL},
        {"macs", &c->macs, NULL, NULL},
        {"kexalgorithms", &c->kex_algorithms, NULL, NULL},
        {"identityfile", NULL, &c->identity_files, NULL},
        {"certificatefile", NULL, &c->certificate_files, NULL},
        {"userknownhostsfile", NULL, NULL, &c->user_known_hosts},
        {"globalknownhostsfile", NULL, NULL, &c->global_known_hosts},
    };
    static const char *const client_only[] = {"bindaddress", "bindinterface", "knownhostscommand",
                                              "pkcs11provider", "revokedhostkeys"};
    enum { MAX_PORT = 65535 };
    int64_t port;
    if (strcmp(key, "port") == 0) {
        if (!zt_parse_i64(value, &port) || port < 1 || port > MAX_PORT)
            return zt_err_set(err, ZT_EPROTO, "ssh -G: port \"%.40s\"", value);
        c->port = (int)port;
    }
    if (strcmp(key, "identitiesonly") == 0)
        c->identities_only = strcmp(value, "yes") == 0;
    if (strcmp(key, "identityagent") == 0 && strcmp(value, "none") == 0)
        c->no_agent = true;
    for (size_t i = 0; i < ZT_ARRAY_LEN(client_only); i++)
        if (strcmp(key, client_only[i]) == 0 && strcmp(value, "none"))
            c->client_only = client_only[i];
    for (size_t i = 0; i < ZT_ARRAY_LEN(rows); i++) {
        if (strcmp(key, rows[i].key))
            continue;
        if (rows[i].file)
            add_file(p, rows[i].file, value);
        else if (rows[i].files)
            add_files(p, rows[i].files, value);
        else if (strcmp(value, "none"))
            *rows[i].text = keep_path(p, value);
    }
    return 0;
}

/* "[USER@]HOST[:PORT]", where HOST may stand in brackets; an URI is written so too, behind "ssh://". */
static void parse_jump(struct parser *p, const char *text, size_t len, struct zt_ssh_jump *out)
{
    static const char uri[] = "ssh://";
    int64_t port;
    char *host = zt_arena_printf(p->arena, "%.*s", (int)len, text);
    if (strncmp(host, uri, sizeof uri - 1) == 0)
        host += sizeof uri - 1;
    char *at = strrchr(host, '@'), *colon = strrchr(host, ':');
    if (colon && !strchr(colon, ']') && zt_parse_i64(colon + 1, &port)) {
        out->port = (int)port;
        *colon = '\0';
    }
    if (at) {
        *at = '\0';
        out->user = host;
        host = at + 1;
    }
    const size_t n = strlen(host);
    if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = '\0';
        host++;
    }
    out->host = host;
}

static void parse_jumps(struct parser *p)
{
    struct zt_ssh_config *c = p->c;
    for (const char *at = c->proxy_jump; at && *at && c->n_jumps < ZT_SSH_MAX_JUMPS;) {
        const size_t len = strcspn(at, ",");
        struct zt_ssh_jump *jump = &c->jumps[c->n_jumps++];
        jump->before = at > c->proxy_jump ? (size_t)(at - c->proxy_jump) - 1 : 0;
        parse_jump(p, at, len, jump);
        at += len + (at[len] == ',');
    }
}

int zt_ssh_config_parse(const char *text, size_t len, const char *home, struct zt_arena *arena,
                        struct zt_ssh_config *out, struct zt_err *err)
{
    struct parser ps = {out, home, arena};
    int rc = 0;
    memset(out, 0, sizeof *out);
    for (const char *p = text, *end = text + len; p < end && !rc;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        char *line = zt_xcalloc(n + 1, 1);
        memcpy(line, p, n);
        char *blank = strchr(line, ' ');
        if (blank) {
            *blank = '\0';
            rc = take(&ps, line, blank + 1, err);
        }
        free(line);
        p = nl ? nl + 1 : end;
    }
    if (!rc && (!out->hostname || !out->user || !out->port))
        rc = zt_err_set(err, ZT_EPROTO, "ssh -G did not tell hostname, user and port");
    parse_jumps(&ps);
    return rc;
}

const char *zt_ssh_config_known_as(const struct zt_ssh_config *c, int *port)
{
    enum { SSH_PORT = 22 };
    *port = c->host_key_alias ? SSH_PORT : c->port;
    return c->host_key_alias ? c->host_key_alias : c->hostname;
}

bool zt_ssh_needs_client(const struct zt_ssh_config *c, struct zt_str *why)
{
    if (c->proxy_jump)
        zt_str_printf(why, "it is reached through ProxyJump %s", c->proxy_jump);
    else if (c->proxy_command)
        zt_str_puts(why, "it is reached through a ProxyCommand");
    else if (c->certificate_files.n)
        zt_str_printf(why, "it wants the certificate %s", c->certificate_files.v[0]);
    else if (c->client_only)
        zt_str_printf(why, "its configuration sets %s", c->client_only);
    else
        return false;
    return true;
}

/* ---- ssh -G ---- */

static int ask(const char *host, const char *user, int port, struct zt_arena *arena,
               struct zt_ssh_config *out, struct zt_err *err)
{
    const char *argv[10] = {"ssh", "-G", "-T"}; /* -T: no word about terminals */
    char number[16];
    enum { LIMIT_S = 60 }; /* "Match exec" runs what it likes */
    int n = 3;
    struct zt_str text = {0};
    sigset_t heed;
    memset(out, 0, sizeof *out);
    snprintf(number, sizeof number, "%d", port);
    if (user) {
        argv[n++] = "-l";
        argv[n++] = user;
    }
    if (port) {
        argv[n++] = "-p";
        argv[n++] = number;
    }
    argv[n++] = "--";
    argv[n] = host;
    zt_ending_signals(&heed);
    int rc = zt_program_output(argv, LIMIT_S, &heed, &text, err);
    if (rc > 0 && WIFSIGNALED(rc))
        rc = zt_err_set(err, ZT_ESYS, "ssh -G %s was ended by signal %d (%s)", host, WTERMSIG(rc),
                        strsignal(WTERMSIG(rc)));
    else if (rc > 0)
        rc = zt_err_set(err, ZT_EINPUT, "ssh -G %s failed: %.*s", host,
                        (int)strcspn(zt_str_get(&text), "\r\n"), zt_str_get(&text));
    if (rc == 0)
        rc = zt_ssh_config_parse(zt_str_get(&text), text.len, getenv("HOME"), arena, out, err);
    zt_str_release(&text);
    return rc;
}

/* A jump host of which ssh says nothing is what it is called. `depth`: how often jump hosts have had their own. */
static void ask_jumps(struct zt_ssh_config *c, struct zt_arena *arena, int depth)
{
    enum { MOST_DEPTH = 4 };
    for (int i = 0; i < c->n_jumps && depth < MOST_DEPTH; i++) {
        struct zt_ssh_jump *jump = &c->jumps[i];
        struct zt_ssh_config *own = zt_arena_alloc(arena, 1, sizeof *own);
        struct zt_err ignored;
        if (ask(jump->host, jump->user, jump->port, arena, own, &ignored))
            continue;
        jump->config = own;
        if (i == 0) /* the others are reached by it, whatever they have configured */
            ask_jumps(own, arena, depth + 1);
    }
}

int zt_ssh_config_read(const char *host, const char *user, int port, struct zt_arena *arena,
                       struct zt_ssh_config *out, struct zt_err *err)
{
    int rc = ask(host, user, port, arena, out, err);
    if (!rc)
        ask_jumps(out, arena, 0);
    return rc;
}
