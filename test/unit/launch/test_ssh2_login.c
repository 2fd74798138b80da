#include "sshd.h"

#include <libssh2.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "launch/ssh_keys.h"

/* ---- keys of files ---- */

TEST(a_key_lets_us_in)
{
    static struct rig r;
    RIG(&r);
    add_host(&r);
    CHECK_LETS_IN(&r);
    CHECK(sh(&r, "for k in 256 384 521; do ssh-keygen -q -t ecdsa -b $k -N '' -f e$k; "
                 "cat e$k.pub >>authorized; done") == 0);
    static const char *const names[] = {"e256", "e384", "e521"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(names); i++)
        add_host(&r)->identity_files = (struct zt_ssh_files){{in(&r, names[i])}, 1};
    CHECK_LETS_IN(&r);
    teardown(&r);
}

TEST(a_key_that_does_not)
{
    static struct rig r;
    RIG(&r);
    add_host(&r)->identity_files = (struct zt_ssh_files){{in(&r, "nosuch"), in(&r, "other")}, 2};
    CHECK_ENDS(&r, ZT_SSH_REFUSED, "@node-a: Permission denied (publickey)");
    add_host(&r)->identity_files.n = 0;
    CHECK_ENDS(&r, ZT_SSH_REFUSED, "Permission denied");
    add_host(&r)->user = "nosuchuser";
    CHECK_ENDS(&r, ZT_SSH_REFUSED, "nosuchuser@node-a: Permission denied");
    teardown(&r);
}

/* More than an sshd lets one connection try (MaxAuthTries 6). */
TEST(the_tenth_key_lets_us_in)
{
    static struct rig r;
    struct zt_ssh_files keys = {.n = 0};
    RIG(&r);
    CHECK(sh(&r, "for i in 0 1 2 3 4 5 6 7 8; do ssh-keygen -q -t ed25519 -N '' -f w$i; done") ==
          0);
    for (int i = 0; i < 9; i++)
        keys.v[keys.n++] = zt_arena_printf(&r.arena, "%s/w%d", r.dir, i);
    add_host(&r)->identity_files = keys;
    CHECK_ENDS(&r, ZT_SSH_REFUSED, "Permission denied");
    keys.v[keys.n++] = in(&r, "key");
    add_host(&r)->identity_files = keys;
    CHECK_LETS_IN(&r);
    teardown(&r);
}

/* By libssh2 from 1.11 on; by the client before. */
TEST(rsa_keys)
{
    static struct rig r;
    RIG(&r);
    CHECK(sh(&r, "ssh-keygen -q -t rsa -b 2048 -N '' -f rsa && cat rsa.pub >authorized") == 0);
    add_host(&r)->identity_files = (struct zt_ssh_files){{in(&r, "rsa")}, 1};
    if (libssh2_version(0x010b00))
        CHECK_LETS_IN(&r);
    else
        CHECK_NEEDS_CLIENT(&r, "/rsa is of type ssh-rsa");
    /* One that the host does not take, for whatever reason, does not keep another from being tried. */
    CHECK(sh(&r, "cat rsa.pub key.pub >authorized") == 0);
    static const char *const accepted[] = {"rsa-sha2-256,ssh-ed25519", "ssh-ed25519"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(accepted); i++) {
        CHECK(start_sshd(&r, "host",
                         zt_arena_printf(&r.arena, "PubkeyAcceptedAlgorithms %s", accepted[i])));
        add_host(&r)->identity_files = (struct zt_ssh_files){{in(&r, "rsa"), in(&r, "key")}, 2};
        CHECK_LETS_IN(&r);
    }
    add_host(&r)->identity_files = (struct zt_ssh_files){{in(&r, "rsa")}, 1};
    CHECK_NEEDS_CLIENT(&r, libssh2_version(0x010b00) ? "SHA-1 alone" : "/rsa is of type ssh-rsa");
    teardown(&r);
}

TEST(keys_that_only_the_client_can_use)
{
    static struct rig r;
    RIG(&r);
    CHECK(chmod(in(&r, "key"), 0644) == 0);
    add_host(&r);
    CHECK_NEEDS_CLIENT(&r, "others may read the key");
    teardown(&r);
}

/* ---- passphrases ---- */

static bool lock_key(struct rig *r)
{
    return sh(r, "rm key key.pub; ssh-keygen -q -t ed25519 -N 'open sesame' -f key && cat key.pub "
                 ">authorized") == 0;
}

TEST(a_passphrase_that_nobody_can_be_asked_for)
{
    static struct rig r;
    RIG(&r);
    CHECK(lock_key(&r));
    pid_t pid = fork();
    if (pid == 0) { /* without a terminal, whatever this test has */
        setsid();
        struct zt_ssh2_outcome o;
        add_host(&r);
        _exit(begin(&r) && ends(&r, 0, &o) && !o.needs_client && o.end.cause == ZT_SSH_REFUSED &&
                      strstr(o.end.text, "there is no terminal; `ssh-add ")
                  ? 0
                  : 1);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_INT(WEXITSTATUS(status), 0);
    /* It is not asked for where the host would not take the key. */
    CHECK(sh(&r, "cat other.pub >authorized") == 0);
    add_host(&r)->identity_files = (struct zt_ssh_files){{in(&r, "key"), in(&r, "other")}, 2};
    CHECK_LETS_IN(&r);
    teardown(&r);
}

/* In a new process, whose terminal is `tty`: n hosts at once; 0 when all let us in, 1 when all refuse. */
static int with_terminal(struct rig *r, const char *tty, int n)
{
    struct zt_ssh2_outcome o;
    int n_in = 0, n_refused = 0;
    setsid();
    int fd = open(tty, O_RDWR);
    if (fd < 0 || ioctl(fd, TIOCSCTTY, 0))
        return 3;
    r->keys = zt_ssh_keys_create();
    for (int i = 0; i < n; i++)
        add_host(r);
    if (!begin(r))
        return 4;
    for (int i = 0; i < n; i++) {
        if (echoes(r, i))
            n_in++;
        else if (ends(r, i, &o) && o.end.cause == ZT_SSH_REFUSED && strstr(o.end.text, "not given"))
            n_refused++;
    }
    struct termios t;
    bool echo = tcgetattr(fd, &t) == 0 && t.c_lflag & ECHO;
    stop_hosts(r);
    if (n_in == n) { /* the next job asks nobody */
        add_host(r);
        if (!begin(r) || !echoes(r, 0))
            return 7;
        stop_hosts(r);
    }
    zt_ssh_keys_free(r->keys);
    return !echo ? 5 : n_in == n ? 0 : n_refused == n ? 1 : 6;
}

/* A person at the terminal: answers each prompt with the next line; what was shown is left in `shown`. */
static int with_person(struct rig *r, int n, const char *const *lines, char *shown, size_t size)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), status = 0;
    if (master < 0 || grantpt(master) || unlockpt(master))
        return -1;
    const char *tty = ptsname(master);
    pid_t pid = fork();
    if (pid == 0)
        _exit(with_terminal(r, tty, n));
    size_t len = 0, answered = 0;
    shown[0] = '\0';
    for (;;) {
        struct pollfd p = {.fd = master, .events = POLLIN};
        bool gone = waitpid(pid, &status, WNOHANG) == pid;
        if (poll(&p, 1, gone ? 0 : 100) == 1 && p.revents & POLLIN) {
            ssize_t k = read(master, shown + len, size - 1 - len);
            len += k > 0 ? (size_t)k : 0;
            shown[len] = '\0';
        }
        const char *prompt = strstr(shown + answered, "': ");
        if (prompt && *lines) {
            answered = (size_t)(prompt - shown) + 3;
            if (write(master, *lines, strlen(*lines)) < 0)
                return -1;
            lines++;
        }
        if (gone)
            break;
    }
    close(master);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(a_passphrase_is_asked_for_once)
{
    static struct rig r;
    char shown[4096];
    RIG(&r);
    CHECK(lock_key(&r));
    CHECK_INT(with_person(&r, 12, (const char *[]){"open barley\n", "open sesame\n", NULL}, shown,
                          sizeof shown),
              0);
    char *prompt = zt_arena_printf(&r.arena, "Enter passphrase for key '%s': ", in(&r, "key"));
    const char *first = strstr(shown, prompt), *second = first ? strstr(first + 1, prompt) : NULL;
    CHECK(first && second && !strstr(second + 1, prompt));
    CHECK(!strstr(shown, "sesame"));
    teardown(&r);
}

TEST(three_wrong_passphrases_are_enough)
{
    static struct rig r;
    char shown[4096];
    RIG(&r);
    CHECK(lock_key(&r));
    CHECK_INT(with_person(&r, 3, (const char *[]){"a\n", "\n", "b\n", NULL}, shown, sizeof shown),
              1);
    CHECK_INT(with_person(&r, 1, (const char *[]){"\4", NULL}, shown, sizeof shown),
              1); /* Ctrl-D */
    teardown(&r);
}

/* ---- the agent ---- */

static bool start_agent(struct rig *r)
{
    const char *argv[] = {"ssh-agent", "-D", "-a", in(r, "agent"), NULL};
    r->agent = spawn_in(r, argv);
    for (int i = 0; r->agent && i < 20 * WAIT_S && access(in(r, "agent"), R_OK); i++)
        poll(NULL, 0, 50);
    return r->agent > 0;
}

static bool tell_agent(const struct rig *r, const char *args)
{
    return sh(r, "SSH_AUTH_SOCK=%s/agent ssh-add -q %s", r->dir, args) == 0;
}

static struct zt_ssh_config *add_agent_host(struct rig *r)
{
    struct zt_ssh_config *c = add_host(r);
    c->identity_files.n = 0;
    c->identity_agent = in(r, "agent");
    return c;
}

TEST(the_agent_lets_us_in)
{
    static struct rig r;
    RIG(&r);
    CHECK(start_agent(&r));
    add_agent_host(&r);
    CHECK_ENDS(&r, ZT_SSH_REFUSED, "Permission denied");
    CHECK(tell_agent(&r, "other key"));
    for (int i = 0; i < 3; i++)
        add_agent_host(&r);
    CHECK_LETS_IN(&r);
    add_agent_host(&r)->no_agent = true;
    CHECK_ENDS(&r, ZT_SSH_REFUSED, "Permission denied");
    /* As the environment names it. */
    CHECK(setenv("SSH_AUTH_SOCK", in(&r, "agent"), 1) == 0);
    add_agent_host(&r)->identity_agent = NULL;
    CHECK_LETS_IN(&r);
    unsetenv("SSH_AUTH_SOCK");
    add_agent_host(&r)->identity_agent = NULL;
    CHECK_ENDS(&r, ZT_SSH_REFUSED, "Permission denied");
    teardown(&r);
}

TEST(of_the_agents_keys_only_those_that_fit)
{
    static struct rig r;
    RIG(&r);
    CHECK(start_agent(&r));
    CHECK(sh(&r, "ssh-keygen -q -t rsa -b 2048 -N '' -f rsa; for i in 1 2 3 4 5 6 7; do "
                 "ssh-keygen -q -t ed25519 -N '' -f w$i; done") == 0);
    CHECK(tell_agent(&r, "w1 w2 w3 w4 w5 w6 w7 key"));
    /* The configured one first, by its public half alone: the private one is the agent's. */
    CHECK(sh(&r, "mv key elsewhere") == 0);
    struct zt_ssh_config *c = add_agent_host(&r);
    c->identity_files = (struct zt_ssh_files){{in(&r, "key")}, 1};
    c->identities_only = true;
    CHECK_LETS_IN(&r);
    c = add_agent_host(&r);
    c->identity_files = (struct zt_ssh_files){{in(&r, "other")}, 1};
    c->identities_only = true;
    CHECK_ENDS(&r, ZT_SSH_REFUSED, "Permission denied");
    /* Its RSA key is for the client where libssh2 cannot do it. */
    CHECK(sh(&r, "cat rsa.pub >authorized") == 0);
    CHECK(tell_agent(&r, "-D") && tell_agent(&r, "w1 rsa"));
    add_agent_host(&r);
    if (libssh2_version(0x010b00))
        CHECK_LETS_IN(&r);
    else
        CHECK_NEEDS_CLIENT(&r, "is of type ssh-rsa");
    teardown(&r);
}

/* It holds the key, so nobody is asked for the passphrase of the file. */
TEST(the_agent_has_the_key_of_a_locked_file)
{
    static struct rig r;
    RIG(&r);
    CHECK(start_agent(&r));
    CHECK(tell_agent(&r, "key"));
    CHECK(sh(&r, "ssh-keygen -q -p -P '' -N secret -f key") == 0);
    add_host(&r)->identity_agent = in(&r, "agent");
    CHECK_LETS_IN(&r);
    teardown(&r);
}

TEST(an_agent_that_is_none)
{
    static struct rig r;
    RIG(&r);
    add_host(&r)->identity_agent = in(&r, "nosuch");
    CHECK_LETS_IN(&r);
    add_host(&r)->identity_agent = in(&r, "key"); /* no socket */
    CHECK_LETS_IN(&r);
    teardown(&r);
}

TEST_MAIN()
