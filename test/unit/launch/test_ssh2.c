#include "sshd.h"

#include <libssh2.h>

/* ---- agents ---- */

TEST(an_agent_runs_and_ends)
{
    static struct rig r;
    struct zt_ssh2_outcome o;
    char buf[64];
    RIG(&r);
    CHECK(program(&r, "echo \"$1\" >&2; cat; exit 3"));
    add_host(&r);
    CHECK(begin(&r));
    CHECK(echoes(&r, 0));
    CHECK(shutdown(r.fd[0], SHUT_WR) == 0);
    CHECK(ends(&r, 0, &o));
    CHECK(!o.needs_client);
    CHECK_INT(o.end.cause, ZT_SSH_EXITED);
    CHECK_INT(o.end.code, 3);
    CHECK_STR(drain(r.fd[0], buf, sizeof buf), "");
    CHECK_STR(drain(r.err_fd[0], buf, sizeof buf), "agent\n");
    CHECK(!zt_ssh2_take(r.ssh2, 0, &o)); /* once */
    teardown(&r);
}

TEST(how_an_agent_ended)
{
    static struct rig r;
    RIG(&r);
    CHECK(program(&r, "kill -9 $$"));
    add_host(&r);
    CHECK_ENDS(&r, ZT_SSH_SIGNALLED, "KILL");
    add_host(&r);
    r.target[0].program = in(&r, "nosuch");
    CHECK_ENDS(&r, ZT_SSH_EXITED, "");
    struct zt_ssh2_outcome o;
    char buf[256];
    add_host(&r);
    r.target[0].program = in(&r, "nosuch");
    CHECK(begin(&r));
    CHECK(ends(&r, 0, &o));
    CHECK_INT(o.end.code, 127);
    CHECK(strstr(drain(r.err_fd[0], buf, sizeof buf), "nosuch"));
    teardown(&r);
}

/* What a login shell says comes before what the agent says; the reader of frames passes it over. */
TEST(a_login_shell_that_speaks_first)
{
    static struct rig r;
    char buf[256];
    RIG(&r);
    CHECK(sh(&r, "echo 'echo Welcome.' >.bashrc; echo Banner >banner") == 0);
    CHECK(start_sshd(&r, "host", zt_arena_printf(&r.arena, "Banner %s/banner", r.dir)));
    CHECK(program(&r, "echo frames"));
    add_host(&r);
    CHECK(begin(&r));
    drain(r.fd[0], buf, sizeof buf);
    const char *shell = getpwuid(geteuid())->pw_shell;
    CHECK(strstr(buf, "frames\n") && (!strstr(shell, "bash") || strstr(buf, "Welcome.\n")));
    teardown(&r);
}

TEST(a_connection_that_breaks)
{
    static struct rig r;
    struct zt_ssh2_outcome o;
    RIG(&r);
    add_host(&r);
    add_host(&r);
    CHECK(begin(&r));
    CHECK(echoes(&r, 0) && echoes(&r, 1));
    /* Newer sshds split each connection over two processes. */
    CHECK(sh(&r, "p=$(pgrep -d, -P %d); kill -9 $(pgrep -P $p sshd) $(pgrep -P %d)", (int)r.sshd,
             (int)r.sshd) == 0);
    CHECK(ends(&r, 0, &o));
    CHECK_INT(o.end.cause, ZT_SSH_BROKEN);
    CHECK(strstr(o.end.text, "the connection broke"));
    CHECK(ends(&r, 1, &o));
    teardown(&r);
}

TEST(one_that_is_cut_leaves_the_others)
{
    static struct rig r;
    struct zt_ssh2_outcome o;
    RIG(&r);
    CHECK(program(&r, "echo $$ >>pids; exec cat"));
    add_host(&r);
    add_host(&r);
    CHECK(begin(&r));
    CHECK(echoes(&r, 0) && echoes(&r, 1));
    zt_ssh2_drop(r.ssh2, 0);
    CHECK(ends(&r, 0, &o));
    CHECK_INT(o.end.cause, ZT_SSH_BROKEN);
    CHECK(!zt_ssh2_take(r.ssh2, 1, &o));
    CHECK(echoes(&r, 1));
    teardown(&r);
}

/* The front end has died, in the middle of anything: agents find the end of their stdin. */
TEST(agents_end_with_us)
{
    static struct rig r;
    RIG(&r);
    CHECK(program(&r, "cd \"${0%/*}\" && echo >began.$$; cat >/dev/null; echo >ended.$$"));
    for (int i = 0; i < 3; i++)
        add_host(&r);
    pid_t pid = fork();
    if (pid == 0) {
        bool ok = begin(&r);
        for (int i = 0; i < r.n && ok; i++)
            ok = write(r.fd[i], "x", 1) == 1;
        while (ok && sh(&r, "[ $(ls began.* | wc -l) -eq 3 ]"))
            poll(NULL, 0, 20);
        raise(SIGKILL);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WTERMSIG(status) == SIGKILL);
    int i = 0;
    while (i < 20 * WAIT_S && sh(&r, "[ $(ls ended.* | wc -l) -eq 3 ]")) {
        poll(NULL, 0, 50);
        i++;
    }
    CHECK(i < 20 * WAIT_S);
    r.n = 0;
    teardown(&r);
}

/* ---- bytes ---- */

/* The k-th byte of a stream. */
static unsigned char byte_at(uint64_t k)
{
    uint64_t x = (k >> 3) * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1d;
    x ^= x >> 29;
    return (unsigned char)((x * 0xbf58476d1ce4e5b9u) >> (8 * (k & 7)));
}

static void fill(unsigned char *b, uint64_t from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        b[i] = byte_at(from + i);
}

/* n bytes go to the host and come back as they were. */
static bool returns(struct rig *r, int i, uint64_t n)
{
    enum { CHUNK = 64 << 10 };
    static unsigned char out[CHUNK], back[CHUNK], want[CHUNK];
    uint64_t sent = 0, got = 0;
    fcntl(r->fd[i], F_SETFL, O_NONBLOCK);
    while (got < n) {
        struct pollfd p = {.fd = r->fd[i], .events = (short)(POLLIN | (sent < n ? POLLOUT : 0))};
        if (poll(&p, 1, WAIT_S * 1000) != 1)
            return false;
        if (p.revents & POLLOUT) {
            size_t k = (size_t)ZT_MIN(n - sent, (uint64_t)CHUNK);
            fill(out, sent, k);
            ssize_t did = send(r->fd[i], out, k, MSG_NOSIGNAL);
            sent += did > 0 ? (uint64_t)did : 0;
        }
        ssize_t did = read(r->fd[i], back, CHUNK);
        if (did == 0)
            return false;
        for (; did > 0; did = 0) {
            fill(want, got, (size_t)did);
            if (memcmp(want, back, (size_t)did) != 0)
                return false;
            got += (uint64_t)did;
        }
    }
    return true;
}

TEST(much_goes_both_ways)
{
    static struct rig r;
    RIG(&r);
    add_host(&r);
    CHECK(begin(&r));
    CHECK(returns(&r, 0, 64 << 20));
    teardown(&r);
}

TEST(keys_are_exchanged_anew)
{
    static struct rig r;
    RIG(&r);
    CHECK(start_sshd(&r, "host", "RekeyLimit 1M"));
    add_host(&r);
    CHECK(begin(&r));
    CHECK(returns(&r, 0, 24 << 20));
    teardown(&r);
}

/* So that packets often go in parts: in a network of our own, which nobody else is in. */
static int enter_narrow_network(void)
{
    static const char set_up[] =
        "ip link set lo up && echo 4096 8192 8192 >/proc/sys/net/ipv4/tcp_wmem";
    const int before = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (before >= 0 && unshare(CLONE_NEWNET) == 0 && system(set_up) == 0)
        return before;
    if (before >= 0) {
        (void)setns(before, CLONE_NEWNET);
        close(before);
    }
    return -1;
}

/* libssh2 would wait for the rest of a packet and for the keys, each for the other. */
TEST(keys_are_exchanged_within_packets)
{
    static struct rig r;
    const int before = enter_narrow_network();
    if (before < 0)
        SKIP("no network namespaces here");
    RIG(&r);
    CHECK(start_sshd(&r, "host", "RekeyLimit 256K"));
    add_host(&r);
    CHECK(begin(&r));
    CHECK(returns(&r, 0, 4 << 20));
    teardown(&r);
    CHECK(setns(before, CLONE_NEWNET) == 0);
    close(before);
}

static long rss_kb(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*s %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Nobody reads: the agent is held up, and we do not grow. */
TEST(what_nobody_takes_stays_there)
{
    static struct rig r;
    char buf[64];
    RIG(&r);
    CHECK(program(&r, "echo ready >&2; head -c 1000000000 /dev/zero; echo done >&2"));
    add_host(&r);
    const long before = rss_kb();
    CHECK(begin(&r));
    CHECK(read(r.err_fd[0], buf, 6) == 6);
    poll(NULL, 0, 1000); /* who does not stop would have swallowed a lot by now */
    CHECK(rss_kb() - before < 100 << 10);
    fcntl(r.err_fd[0], F_SETFL, O_NONBLOCK);
    CHECK_INT(read(r.err_fd[0], buf, sizeof buf), -1);
    teardown(&r);
}

/* ---- who the host is ---- */

TEST(host_keys_are_checked)
{
    static struct rig r;
    RIG(&r);
    add_host(&r);
    CHECK_LETS_IN(&r);
    CHECK(know(&r, "192.0.2.1", "host"));
    add_host(&r);
    CHECK_ENDS(&r, ZT_SSH_FAILED, "its host key is not known: ssh-ed25519 SHA256:");
    add_host(&r);
    CHECK_ENDS(&r, ZT_SSH_FAILED,
               zt_arena_printf(&r.arena,
                               "`ssh -o StrictHostKeyChecking=ask -o HostKeyAlgorithms=ssh-ed25519 "
                               "-p %d node-a true`",
                               r.port));
    CHECK(know(&r, zt_arena_printf(&r.arena, "[127.0.0.1]:%d", r.port), "other"));
    add_host(&r);
    CHECK_ENDS(&r, ZT_SSH_FAILED, "/known:1: ssh-ed25519 SHA256:");
    CHECK(know(&r, "127.0.0.1", "host"));
    CHECK(sh(&r, "{ printf '@revoked * '; cat host.pub; } >>known") == 0);
    add_host(&r);
    CHECK_ENDS(&r, ZT_SSH_FAILED, "is marked @revoked");
    CHECK(sh(&r, ": >known") == 0);
    add_host(&r)->global_known_hosts = (struct zt_ssh_files){{in(&r, "other.pub")}, 1};
    CHECK_ENDS(&r, ZT_SSH_FAILED, "is not known");
    teardown(&r);
}

TEST(names_by_which_a_host_is_known)
{
    static struct rig r;
    RIG(&r);
    CHECK(know(&r, zt_arena_printf(&r.arena, "[127.0.0.1]:%d", r.port), "host"));
    add_host(&r);
    CHECK_LETS_IN(&r);
    CHECK(sh(&r, "ssh-keygen -q -H -f known && grep -q '^|1|' known") == 0);
    add_host(&r);
    CHECK_LETS_IN(&r);
    CHECK(know(&r, "lab", "host"));
    add_host(&r)->host_key_alias = "lab";
    CHECK_LETS_IN(&r);
    /* The type that is known is asked for, whatever the host likes best. */
    CHECK(sh(&r, "ssh-keygen -q -t ecdsa -N '' -f ecdsa") == 0);
    CHECK(start_sshd(&r, "host", zt_arena_printf(&r.arena, "HostKey %s", in(&r, "ecdsa"))));
    CHECK(know(&r, "127.0.0.1", "ecdsa"));
    add_host(&r);
    CHECK_LETS_IN(&r);
    teardown(&r);
}

TEST(a_host_with_an_rsa_key)
{
    static struct rig r;
    RIG(&r);
    CHECK(sh(&r, "ssh-keygen -q -t rsa -b 2048 -N '' -f rsa") == 0);
    CHECK(know(&r, "127.0.0.1", "rsa"));
    CHECK(start_sshd(&r, "rsa", ""));
    if (libssh2_version(0x010b00)) { /* it can */
        add_host(&r);
        CHECK_LETS_IN(&r);
    } else {
        add_host(&r);
        CHECK_NEEDS_CLIENT(&r, "type ssh-rsa, which libssh2");
        CHECK(sh(&r, ": >known") == 0);
        add_host(&r);
        CHECK_NEEDS_CLIENT(&r, "does not come to terms");
        CHECK(start_sshd(&r, "host", zt_arena_printf(&r.arena, "HostKey %s", in(&r, "rsa"))));
        CHECK(know(&r, "127.0.0.1", "rsa"));
        add_host(&r);
        CHECK_NEEDS_CLIENT(&r, "type ssh-rsa, which libssh2");
    }
    teardown(&r);
}

TEST(ways_that_only_the_client_knows)
{
    static struct rig r;
    RIG(&r);
    add_host(&r)->proxy_jump = "bastion";
    CHECK_NEEDS_CLIENT(&r, "it is reached through ProxyJump bastion");
    CHECK(sh(&r, "{ printf '@cert-authority * '; cat other.pub; } >known") == 0);
    add_host(&r);
    CHECK_NEEDS_CLIENT(&r, "a certificate of an authority");
    CHECK(start_sshd(&r, "host", "KexAlgorithms sntrup761x25519-sha512@openssh.com"));
    CHECK(know(&r, "127.0.0.1", "host"));
    add_host(&r);
    if (!libssh2_version(0x010b02)) /* newer ones may come to know it */
        CHECK_NEEDS_CLIENT(&r, "does not come to terms");
    teardown(&r);
}

TEST(hosts_that_cannot_be_reached)
{
    static struct rig r;
    RIG(&r);
    add_host(&r)->port = free_port();
    CHECK_ENDS(&r, ZT_SSH_NO_ANSWER, "ssh: connect to host 127.0.0.1 port ");
    add_host(&r)->hostname = "nosuch.invalid";
    CHECK_ENDS(&r, ZT_SSH_NO_NAME, "ssh: Could not resolve hostname nosuch.invalid: ");
    CHECK(start_sshd(&r, "host", "MaxSessions 0"));
    add_host(&r);
    CHECK_ENDS(&r, ZT_SSH_FAILED, "MaxSessions");
    teardown(&r);
}

TEST(addresses_of_both_kinds)
{
    static struct rig r;
    RIG(&r);
    if (sh(&r, "grep -q . /proc/net/if_inet6"))
        SKIP("no IPv6 here");
    CHECK(know(&r, "::1,localhost", "host"));
    add_host(&r)->hostname = "::1";
    CHECK_LETS_IN(&r);
    add_host(&r)->hostname = "localhost";
    CHECK_LETS_IN(&r);
    add_host(&r)->hostname = "::1";
    r.config[0].address_family = "inet";
    CHECK_ENDS(&r, ZT_SSH_NO_NAME, "Could not resolve");
    /* One address of a name does not answer: the next does. */
    CHECK(start_sshd(&r, "host", "ListenAddress 127.0.0.1"));
    add_host(&r)->hostname = "localhost";
    CHECK_LETS_IN(&r);
    teardown(&r);
}

TEST(many_come_again_where_few_are_let_in)
{
    static struct rig r;
    RIG(&r);
    CHECK(start_sshd(&r, "host", "MaxStartups 2"));
    for (int i = 0; i < 24; i++)
        add_host(&r);
    CHECK_LETS_IN(&r);
    CHECK(start_sshd(&r, "host", "MaxSessions 1"));
    for (int i = 0; i < 3; i++)
        add_host(&r);
    CHECK_LETS_IN(&r);
    teardown(&r);
}

/* After a login that failed OpenSSH from 9.8 on drops who comes from that address, for a time. */
TEST(penalties_are_sat_out)
{
    static struct rig r;
    RIG(&r);
    if (!start_sshd(&r, "host", "PerSourcePenalties authfail:8s min:1s"))
        SKIP("this sshd has no PerSourcePenalties");
    add_host(&r)->identity_files = (struct zt_ssh_files){{in(&r, "other")}, 1};
    CHECK_ENDS(&r, ZT_SSH_REFUSED, "Permission denied");
    add_host(&r);
    CHECK_LETS_IN(&r);
    CHECK(sh(&r, "grep -q 'penalty: failed authentication' log") == 0);
    teardown(&r);
}

TEST(stopped_at_any_time)
{
    static struct rig r;
    RIG(&r);
    for (int ms = 0; ms < 200; ms += 7) {
        for (int i = 0; i < 4; i++)
            add_host(&r);
        r.config[3].hostname = "nosuch.invalid";
        CHECK(begin(&r));
        poll(NULL, 0, ms);
        stop_hosts(&r);
    }
    teardown(&r);
}

TEST_MAIN()
