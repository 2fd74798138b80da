#include "launch/openssh.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

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

/* The last line that says something, without a carriage return. */
static void last_line(const char *said, char *out, size_t out_bytes)
{
    const char *end = said + strlen(said);
    while (end > said && (unsigned char)end[-1] <= ' ')
        end--;
    const char *start = end;
    while (start > said && start[-1] != '\n')
        start--;
    snprintf(out, out_bytes, "%.*s", (int)(end - start), start);
}

/* The client tells its reasons in words only. */
static enum zt_ssh_cause cause_in(const char *said, bool greeted)
{
    static const struct {
        const char *words;
        enum zt_ssh_cause cause;
    } table[] = {
        {"HOST IDENTIFICATION HAS CHANGED", ZT_SSH_KEY_CHANGED},
        {"Host key verification failed", ZT_SSH_KEY_UNKNOWN},
        {"Permission denied", ZT_SSH_REFUSED},
        {"Could not resolve", ZT_SSH_NO_NAME},
        {"ssh: connect to host", ZT_SSH_NO_ANSWER},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(table); i++)
        if (strstr(said, table[i].words))
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
    struct zt_str reach = {0};
    zt_ssh_put_reach(t, &reach);
    if (cause == ZT_SSH_KEY_CHANGED) {
        zt_str_puts(out, "; its key is another than known_hosts has: if the host was set up anew, "
                         "`ssh-keygen -R ");
        if (t->port)
            zt_str_printf(out, "'[%s]:%d'", t->host, t->port);
        else
            zt_str_puts(out, t->host);
        zt_str_puts(out, "` forgets the old one");
    } else if (cause == ZT_SSH_KEY_UNKNOWN) {
        zt_str_printf(out,
                      "; its key is not in known_hosts: `ssh %s` shows its fingerprint and asks "
                      "whether to accept it",
                      reach.buf);
    } else if (cause == ZT_SSH_REFUSED) {
        zt_str_printf(out,
                      "; it must let us in without a password: `ssh -o BatchMode=yes %s true` "
                      "tries it",
                      reach.buf);
    } else if (cause == ZT_SSH_NO_NAME) {
        zt_str_puts(out, "; is the name in the hostfile right?");
    } else if (cause == ZT_SSH_NO_ANSWER) {
        zt_str_puts(out, "; is the host up, and does sshd listen there?");
    }
    zt_str_release(&reach);
}

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
    default:
        zt_str_puts(out, end->text[0] ? end->text : "ssh has failed and said nothing");
        put_hint(t, end->cause, out);
    }
}
