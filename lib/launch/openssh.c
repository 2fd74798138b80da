#include "launch/openssh.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "base/io.h"
#include "launch/known_hosts.h"
#include "launch/ssh_config.h"

enum {
    SSH_FAILED = 255, /* the client's own exit code; others are the remote command's */
    NOT_EXECUTABLE = 126,
    NOT_FOUND = 127,
};

/* csh expands '!' between single quotes, fish takes '\' there, and none takes a quote or a line's end. */
static const char refused_chars[] = "'\\!";

int zt_openssh_check_program(const char *program, struct zt_err *err)
{
    if (program[0] != '/')
        return zt_err_set(err, ZT_EINPUT, "\"%s\" is not an absolute path", program);
    for (const char *p = program; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f || strchr(refused_chars, *p))
            return zt_err_set(err, ZT_EINPUT,
                              "the path \"%s\" cannot be given to every login shell: it has a "
                              "control character or one of %s",
                              program, refused_chars);
    return 0;
}

const char *zt_ssh_command(const struct zt_ssh_target *t, struct zt_arena *arena)
{
    return zt_arena_printf(arena, "exec '%s' agent", t->program);
}

const char *const *zt_openssh_argv(const struct zt_ssh_target *t, struct zt_arena *arena)
{
    static const char *const fixed[] = {"ssh", "-T",
                                        "-x",  "-a",
                                        "-e",  "none",
                                        "-o",  "BatchMode=yes",
                                        "-o",  "StrictHostKeyChecking=yes",
                                        "-o",  "ConnectTimeout=10",
                                        "-o",  "ServerAliveInterval=3",
                                        "-o",  "ServerAliveCountMax=3",
                                        "-o",  "ControlMaster=no",
                                        "-o",  "ControlPath=none",
                                        "-o",  "ClearAllForwardings=yes",
                                        "-o",  "RemoteCommand=none",
                                        "-o",  "LogLevel=INFO"};
    enum { OURS = 8 };
    size_t n = ZT_ARRAY_LEN(fixed);
    const char **argv = zt_arena_alloc(arena, n + OURS, sizeof *argv);
    memcpy(argv, fixed, sizeof fixed);
    if (t->port) {
        argv[n++] = "-p";
        argv[n++] = zt_arena_printf(arena, "%d", t->port);
    }
    if (t->user) {
        argv[n++] = "-l";
        argv[n++] = zt_arena_strdup(arena, t->user);
    }
    argv[n++] = "--";
    argv[n++] = zt_arena_strdup(arena, t->host);
    argv[n++] = zt_ssh_command(t, arena);
    argv[n] = NULL;
    return argv;
}

/* ---- why ---- */

void zt_ssh_put_reach(const struct zt_ssh_target *t, struct zt_str *out)
{
    if (t->port)
        zt_str_printf(out, "-p %d ", t->port);
    zt_str_printf(out, "%s%s%s", t->user ? t->user : "", t->user ? "@" : "", t->host);
}

/* The line that ends at `end`, without what nobody sees there; *start: where it begins. */
static size_t line_before(const char *said, const char *end, const char **start)
{
    while (end > said && (unsigned char)end[-1] <= ' ')
        end--;
    const char *p = end;
    while (p > said && p[-1] != '\n')
        p--;
    *start = p;
    return (size_t)(end - p);
}

/* Lines that follow the one that says why, where the client reaches the host by another program. */
static bool says_little(const char *line, size_t len)
{
    static const char *const words[] = {"UNKNOWN port", "kex_exchange_identification: Connection",
                                        "stdio forwarding failed"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(words); i++)
        if (memmem(line, len, words[i], strlen(words[i])))
            return true;
    return false;
}

/* The last line that says something, without a carriage return. */
static void last_line(const char *said, char *out, size_t out_bytes)
{
    const char *end = said + strlen(said), *start;
    size_t len = line_before(said, end, &start);
    const char *last = start;
    const size_t last_len = len;
    while (len && says_little(start, len))
        len = line_before(said, start, &start);
    snprintf(out, out_bytes, "%.*s", (int)(len ? len : last_len), len ? start : last);
}

/*
 * What a shell says of a program that it cannot run, in place of the ProxyCommand: the client has then found its pipe
 * closed. NULL: it says nothing like that.
 */
static const char *broken_proxy(const char *said)
{
    static const char *const words[] = {": not found",         "command not found",
                                        "Unknown command",     ": No such file or directory",
                                        ": Permission denied", "cannot execute"};
    if (!strstr(said, "UNKNOWN port"))
        return NULL;
    for (size_t i = 0; i < ZT_ARRAY_LEN(words); i++)
        if (strstr(said, words[i]))
            return words[i];
    return NULL;
}

/* The client tells its reasons in words only. */
static enum zt_ssh_cause cause_in(const char *said, bool greeted)
{
    static const struct {
        const char *words;
        enum zt_ssh_cause cause;
    } table[] = {
        {"REVOKED HOST KEY DETECTED", ZT_SSH_KEY_REVOKED},
        {"HOST IDENTIFICATION HAS CHANGED", ZT_SSH_KEY_CHANGED},
        {"Host key verification failed", ZT_SSH_KEY_UNKNOWN},
        {"Permission denied (", ZT_SSH_REFUSED},
        {"Could not resolve", ZT_SSH_NO_NAME},
        {"ssh: connect to host", ZT_SSH_NO_ANSWER},
        {"stdio forwarding failed", ZT_SSH_NO_ANSWER}, /* the jump host cannot reach it */
        {"Connection closed by", ZT_SSH_DROPPED},      /* the last of the table */
        {"Connection reset by", ZT_SSH_DROPPED},
    };
    if (!greeted && broken_proxy(said))
        return ZT_SSH_NO_PROXY;
    for (size_t i = 0; i < ZT_ARRAY_LEN(table); i++)
        if (strstr(said, table[i].words) && !(greeted && table[i].cause == ZT_SSH_DROPPED))
            return table[i].cause;
    return greeted ? ZT_SSH_BROKEN : ZT_SSH_FAILED;
}

void zt_openssh_end(int status, const char *said, bool greeted, struct zt_ssh_end *out)
{
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
    *out = (struct zt_ssh_end){.code = code};
    if (WIFSIGNALED(status))
        out->cause = ZT_SSH_KILLED;
    else
        out->cause = code == SSH_FAILED ? cause_in(said, greeted) : ZT_SSH_EXITED;
    if (out->cause != ZT_SSH_KILLED)
        last_line(said, out->text, sizeof out->text);
}

static void put_hint(const struct zt_ssh_target *t, enum zt_ssh_cause cause, struct zt_str *out)
{
    if (cause == ZT_SSH_REFUSED) {
        zt_str_puts(out, "; it must let us in without a password: `ssh -o BatchMode=yes ");
        zt_ssh_put_reach(t, out);
        zt_str_puts(out, " true` tries it");
    } else if (cause == ZT_SSH_NO_NAME) {
        zt_str_puts(out, "; is the name in the hostfile right?");
    } else if (cause == ZT_SSH_NO_ANSWER) {
        zt_str_puts(out, "; is the host up, and does sshd listen there?");
    } else if (cause == ZT_SSH_DROPPED) {
        zt_str_puts(out, "; it closes each connection before it greets: does its sshd let us in at "
                         "all, and what are its MaxStartups and PerSourcePenalties?");
    }
}

/* ---- a host key that is not the known one ---- */

/* The word after `words` in what the client has said, up to one of `ends`; "": it has not said that. */
static const char *word_after(const char *said, const char *words, const char *ends,
                              struct zt_arena *arena)
{
    const char *p = strstr(said, words);
    p = p ? p + strlen(words) : "";
    return zt_arena_printf(arena, "%.*s", (int)strcspn(p, ends), p);
}

/* "Offending ED25519 key in PATH:LINE" */
static void find_offending(const char *said, struct zt_arena *arena, struct zt_trust *t)
{
    const char *offending = strstr(said, "Offending ");
    char *path = (char *)word_after(offending ? offending : "", " key in ", "\r\n", arena);
    char *colon = strrchr(path, ':');
    if (!colon)
        return;
    *colon = '\0';
    t->path = path;
    t->line = (int)strtol(colon + 1, NULL, 10);
}

/* Of the files that the client looks into those that have the host. */
static void find_files(const char *const *paths, int n_paths, const char *known_as,
                       struct zt_known_place *places, int *n_places)
{
    for (int i = 0; i < n_paths; i++) {
        struct zt_str text = {0};
        struct zt_err err;
        if (zt_read_file(paths[i], ZT_KNOWN_HOSTS_MAX_BYTES, &text, &err) == 0)
            *n_places +=
                zt_known_hosts_find(&(struct zt_known_hosts){paths[i], zt_str_get(&text), text.len},
                                    known_as, &places[*n_places]);
        zt_str_release(&text);
    }
}

static bool is_called(const struct zt_ssh_config *c, const char *name, int port, const char *named)
{
    char known_as[ZT_KNOWN_AS_BYTES];
    struct zt_err err;
    if (c)
        name = zt_ssh_config_known_as(c, &port);
    return zt_known_as(name, port, known_as, &err) == 0 && strcasecmp(known_as, named) == 0;
}

/* The client names who showed the key, or nobody: the host (NULL), or one that it is reached through. */
static const struct zt_ssh_jump *find_jump(const struct zt_ssh_config *c, const char *named)
{
    if (!c || is_called(c, NULL, 0, named))
        return NULL;
    for (int i = 0; i < c->n_jumps; i++)
        if (is_called(c->jumps[i].config, c->jumps[i].host, c->jumps[i].port, named))
            return &c->jumps[i];
    return c->n_jumps == 1 ? c->jumps : NULL;
}

/* The arguments of ssh(1) by which the user goes to a jump host, by way of those before it. */
static void put_jump_reach(const struct zt_ssh_config *c, const struct zt_ssh_jump *jump,
                           struct zt_str *out)
{
    if (jump->before)
        zt_str_printf(out, "-J '%.*s' ", (int)jump->before, c->proxy_jump);
    zt_ssh_put_reach(
        &(struct zt_ssh_target){.host = jump->host, .user = jump->user, .port = jump->port}, out);
}

static void put_doubt(const struct zt_ssh_target *t, enum zt_ssh_cause cause, const char *said,
                      struct zt_str *out)
{
    static const enum zt_trust_kind kind_of[] = {[ZT_SSH_KEY_UNKNOWN] = ZT_TRUST_UNKNOWN,
                                                 [ZT_SSH_KEY_CHANGED] = ZT_TRUST_CHANGED,
                                                 [ZT_SSH_KEY_REVOKED] = ZT_TRUST_REVOKED};
    struct zt_arena arena = {0};
    struct zt_str reach = {0};
    struct zt_known_place places[2 * ZT_SSH_MAX_FILES];
    const bool changed = cause == ZT_SSH_KEY_CHANGED;
    const char *named = changed ? word_after(said, "\nHost key for ", " \r\n", &arena)
                                : word_after(said, "host key is known for ", " \r\n", &arena);
    const char *shown = word_after(said, "key sent by the remote host is", ".", &arena);
    const struct zt_ssh_jump *jump = find_jump(t->config, named);
    const struct zt_ssh_config *c = jump ? jump->config : t->config;
    struct zt_key_doubt doubt = {.trust.kind = kind_of[cause], .places = places};
    if (jump)
        put_jump_reach(t->config, jump, &reach);
    else
        zt_ssh_put_reach(t, &reach);
    doubt.reach = reach.buf;
    doubt.known_as = named[0] ? named : jump ? jump->host : t->host;
    if (!named[0] && !jump && t->config && t->config->n_jumps) /* the client of the client asks */
        doubt.known_as = zt_arena_printf(&arena, "%s or a host of its ProxyJump %s", t->host,
                                         t->config->proxy_jump);
    shown += strspn(shown, "\r\n");
    if (changed && shown[0])
        doubt.shown = shown;
    if (changed)
        find_offending(said, &arena, &doubt.trust);
    if (changed && c) {
        find_files(c->user_known_hosts.v, c->user_known_hosts.n, doubt.known_as, places,
                   &doubt.n_places);
        find_files(c->global_known_hosts.v, c->global_known_hosts.n, doubt.known_as, places,
                   &doubt.n_places);
    }
    if (!doubt.n_places && doubt.trust.path) /* of another name, or not for us to read */
        places[doubt.n_places++] =
            (struct zt_known_place){.path = doubt.trust.path, .by_name = true};
    zt_key_doubt_put(&doubt, out);
    zt_str_release(&reach);
    zt_arena_release(&arena);
}

/* ---- why, and what to do ---- */

static void put_exit(const struct zt_ssh_target *t, int code, const char *said, bool greeted,
                     struct zt_str *out)
{
    char line[1000];
    last_line(said, line, sizeof line);
    const char *colon = line[0] ? ": " : "";
    if (!greeted && (code == NOT_FOUND || code == NOT_EXECUTABLE))
        zt_str_printf(out, "%s cannot be run there%s%s; --remote_path=PATH says where it is",
                      t->program, colon, line);
    else if (!greeted && code == 0)
        zt_str_printf(out,
                      "%s there is not zerotrain: it ended without a word to us%s%s; "
                      "--remote_path=PATH says where zerotrain is",
                      t->program, colon, line);
    else
        zt_str_printf(out, "the agent ended with exit code %d%s%s", code, colon, line);
}

void zt_ssh_explain(const struct zt_ssh_target *t, const struct zt_ssh_end *end, const char *said,
                    bool greeted, struct zt_str *out)
{
    switch (end->cause) {
    case ZT_SSH_EXITED:
        put_exit(t, end->code, said, greeted, out);
        return;
    case ZT_SSH_SIGNALLED:
        zt_str_printf(out, "the agent was ended by signal %s", end->text);
        return;
    case ZT_SSH_KILLED:
        zt_str_printf(out, "the ssh client ended with signal %d (%s)", end->code,
                      strsignal(end->code));
        return;
    case ZT_SSH_BROKEN:
        zt_str_puts(out,
                    end->text[0] ? end->text : "the connection broke, or the agent was killed");
        return;
    case ZT_SSH_NO_PROXY:
        zt_str_printf(out, "its ProxyCommand cannot be run: %s", end->text);
        return;
    case ZT_SSH_KEY_UNKNOWN:
    case ZT_SSH_KEY_CHANGED:
    case ZT_SSH_KEY_REVOKED:
        put_doubt(t, end->cause, said, out);
        return;
    default:
        zt_str_puts(out, end->text[0] ? end->text : "ssh has failed and said nothing");
        put_hint(t, end->cause, out);
    }
}
