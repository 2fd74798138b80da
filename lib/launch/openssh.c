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
    argv[n++] = zt_arena_printf(arena, "exec '%s' agent", t->program);
    argv[n] = NULL;
    return argv;
}

/* ---- why ---- */

/* How a person would try it. */
static void put_command(const struct zt_ssh_target *t, const char *options, struct zt_str *out)
{
    zt_str_printf(out, "`ssh%s", options);
    if (t->port)
        zt_str_printf(out, " -p %d", t->port);
    zt_str_printf(out, " %s%s%s", t->user ? t->user : "", t->user ? "@" : "", t->host);
}

static void put_hint(const struct zt_ssh_target *t, const char *said, struct zt_str *out)
{
    if (strstr(said, "HOST IDENTIFICATION HAS CHANGED")) {
        zt_str_puts(out, "; its key is another than known_hosts has: if the host was set up anew, "
                         "`ssh-keygen -R ");
        if (t->port)
            zt_str_printf(out, "'[%s]:%d'", t->host, t->port);
        else
            zt_str_puts(out, t->host);
        zt_str_puts(out, "` forgets the old one");
    } else if (strstr(said, "Host key verification failed")) {
        zt_str_puts(out, "; its key is not in known_hosts: ");
        put_command(t, "", out);
        zt_str_puts(out, "` shows its fingerprint and asks whether to accept it");
    } else if (strstr(said, "Permission denied")) {
        zt_str_puts(out, "; it must let us in without a password: ");
        put_command(t, " -o BatchMode=yes", out);
        zt_str_puts(out, " true` tries it");
    } else if (strstr(said, "Could not resolve")) {
        zt_str_puts(out, "; is the name in the hostfile right?");
    } else if (strstr(said, "ssh: connect to host")) {
        zt_str_puts(out, "; is the host up, and does sshd listen there?");
    }
}

/* The last line that says something, without a carriage return. */
static void last_line(const char *said, struct zt_str *out)
{
    const char *end = said + strlen(said);
    while (end > said && (unsigned char)end[-1] <= ' ')
        end--;
    const char *start = end;
    while (start > said && start[-1] != '\n')
        start--;
    zt_str_add(out, start, (size_t)(end - start));
}

void zt_openssh_explain(const struct zt_ssh_target *t, int status, const char *said, bool greeted,
                        struct zt_str *out)
{
    struct zt_str line = {0};
    last_line(said, &line);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (WIFSIGNALED(status)) {
        zt_str_printf(out, "the ssh client ended with signal %d (%s)", WTERMSIG(status),
                      strsignal(WTERMSIG(status)));
    } else if (code == SSH_FAILED && greeted && !line.len) {
        zt_str_puts(out, "the connection broke, or the agent was killed");
    } else if (code == SSH_FAILED) {
        zt_str_puts(out, line.len ? line.buf : "ssh has failed and said nothing");
        put_hint(t, said, out);
    } else if (!greeted && (code == NOT_FOUND || code == NOT_EXECUTABLE)) {
        zt_str_printf(out, "%s cannot be run there%s%s; --remote_path=PATH says where it is",
                      t->program, line.len ? ": " : "", zt_str_get(&line));
    } else {
        zt_str_printf(out, "the agent ended with exit code %d%s%s", code, line.len ? ": " : "",
                      zt_str_get(&line));
    }
    zt_str_release(&line);
}
