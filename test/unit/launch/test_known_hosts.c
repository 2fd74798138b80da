#include "harness.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <unistd.h>

#include "base/io.h"
#include "launch/known_hosts.h"

/* Keys and hashed names are made by ssh-keygen, in a folder of the test. */
struct rig {
    char dir[64];
    struct zt_str pub[3]; /* "type base64", of two ed25519 keys and one ecdsa key */
    uint8_t blob[3][1024];
    struct zt_host_key key[3];
};

static int run(const char *fmt, const char *dir)
{
    char cmd[512];
    snprintf(cmd, sizeof cmd, fmt, dir, dir, dir);
    return system(cmd);
}

static bool read_pub(struct rig *r, int i)
{
    char path[128];
    struct zt_err err;
    snprintf(path, sizeof path, "%s/k%d.pub", r->dir, i);
    if (zt_read_file(path, 4096, &r->pub[i], &err))
        return false;
    char *text = strchr(r->pub[i].buf, ' ') + 1;
    size_t len = strcspn(text, " \n");
    text[len] = '\0'; /* cuts off the comment */
    int n = EVP_DecodeBlock(r->blob[i], (unsigned char *)text, (int)len);
    n -= (text[len - 1] == '=') + (text[len - 2] == '=');
    r->key[i] = (struct zt_host_key){r->blob[i], (size_t)n};
    return n > 0;
}

static bool setup(struct rig *r)
{
    memset(r, 0, sizeof *r);
    snprintf(r->dir, sizeof r->dir, "/tmp/zt-known-hosts-XXXXXX");
    return mkdtemp(r->dir) &&
           run("ssh-keygen -q -t ed25519 -N '' -C a -f %s/k0 && ssh-keygen -q -t ed25519 -N '' -C "
               "b "
               "-f %s/k1 && ssh-keygen -q -t ecdsa -N '' -C c -f %s/k2",
               r->dir) == 0 &&
           read_pub(r, 0) && read_pub(r, 1) && read_pub(r, 2);
}

static void teardown(struct rig *r)
{
    if (run("rm -rf %s", r->dir))
        printf("%s is left\n", r->dir);
    for (int i = 0; i < 3; i++)
        zt_str_release(&r->pub[i]);
}

#define RIG(r)                                                                                     \
    if (run("command -v ssh-keygen >/dev/null", ""))                                               \
        SKIP("ssh-keygen is not installed");                                                       \
    CHECK(setup(r))

static enum zt_trust_kind check(const char *text, const char *name, int port,
                                struct zt_host_key key, struct zt_trust *t)
{
    const struct zt_known_hosts f = {"kh", text, strlen(text)};
    struct zt_err err;
    ZT_ASSERT(zt_known_hosts_check(&f, 1, name, port, key, t, &err) == 0);
    return t->kind;
}

TEST(names_patterns_and_ports)
{
    static const struct {
        const char *hosts, *name;
        int port;
        bool known;
    } cases[] = {
        {"node-a", "node-a", 22, true},
        {"node-a", "NODE-A", 22, true},
        {"node-a", "node-ab", 22, false},
        {"x,node-a,y", "node-a", 22, true},
        {"192.0.2.7,node-a", "192.0.2.7", 22, true},
        {"2001:db8::1", "2001:db8::1", 22, true},
        {"[node-a]:2222", "node-a", 2222, true},
        {"[node-a]:2222", "node-a", 22, false},
        {"[node-a]:2222", "node-a", 2223, false},
        {"node-a", "node-a", 2222, true}, /* as OpenSSH: by its bare name too */
        {"*.example.org", "a.example.org", 22, true},
        {"*.example.org", "example.org", 22, false},
        {"node-?", "node-7", 22, true},
        {"node-?", "node-77", 22, false},
        {"*,!node-b", "node-a", 22, true},
        {"*,!node-b", "node-b", 22, false},
        {"!node-b,*", "node-b", 22, false},
        {"*a*b*c", "xaxbxbxc", 22, true},
        {"*a*b*c", "xaxbxbx", 22, false},
        {"", "node-a", 22, false},
        {"|1|", "node-a", 22, false},
        {"|1|AAAA|BBBB", "node-a", 22, false},
    };
    struct rig r;
    struct zt_str text = {0};
    RIG(&r);
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_trust t;
        zt_str_reset(&text);
        zt_str_printf(&text, "%s %s\n", cases[i].hosts, r.pub[0].buf);
        bool known = check(text.buf, cases[i].name, cases[i].port, r.key[0], &t) == ZT_TRUST_KNOWN;
        if (known != cases[i].known)
            FAIL("case %zu: %s at %d in \"%s\"", i, cases[i].name, cases[i].port, cases[i].hosts);
    }
    zt_str_release(&text);
    teardown(&r);
}

TEST(hashed_names_as_ssh_keygen_makes_them)
{
    struct rig r;
    struct zt_trust t;
    struct zt_err err;
    struct zt_str text = {0};
    char path[128];
    RIG(&r);
    CHECK(run("{ printf 'node-a '; cat %s/k0.pub; printf '[node-b]:2222 '; cat %s/k0.pub; } "
              ">%s/kh",
              r.dir) == 0);
    CHECK(run("ssh-keygen -q -H -f %s/kh >/dev/null 2>&1", r.dir) == 0);
    snprintf(path, sizeof path, "%s/kh", r.dir);
    CHECK_OK(zt_read_file(path, 1 << 16, &text, &err), err);
    CHECK(strstr(text.buf, "|1|") && !strstr(text.buf, "node-"));
    CHECK_INT(check(text.buf, "node-a", 22, r.key[0], &t), ZT_TRUST_KNOWN);
    CHECK_INT(check(text.buf, "Node-A", 22, r.key[0], &t), ZT_TRUST_KNOWN);
    CHECK_INT(check(text.buf, "node-a", 22, r.key[1], &t), ZT_TRUST_CHANGED);
    CHECK_INT(t.line, 1);
    CHECK_INT(check(text.buf, "node-b", 2222, r.key[0], &t), ZT_TRUST_KNOWN);
    CHECK_INT(check(text.buf, "node-b", 22, r.key[0], &t), ZT_TRUST_UNKNOWN);
    CHECK_INT(check(text.buf, "node-c", 22, r.key[0], &t), ZT_TRUST_UNKNOWN);
    zt_str_release(&text);
    teardown(&r);
}

TEST(unknown_changed_and_revoked)
{
    struct rig r;
    struct zt_trust t;
    struct zt_str text = {0};
    const char *k[3];
    RIG(&r);
    for (int i = 0; i < 3; i++)
        k[i] = r.pub[i].buf;

    zt_str_printf(&text, "a %s\n", k[2]); /* another type only */
    CHECK_INT(check(text.buf, "a", 22, r.key[0], &t), ZT_TRUST_UNKNOWN);
    CHECK(t.other_types && !t.path);

    zt_str_printf(&text, "a %s\n", k[1]);
    CHECK_INT(check(text.buf, "a", 22, r.key[0], &t), ZT_TRUST_CHANGED);
    CHECK_INT(t.line, 2);

    zt_str_printf(&text, "a %s\n", k[0]); /* two keys of one type: each is known */
    CHECK_INT(check(text.buf, "a", 22, r.key[0], &t), ZT_TRUST_KNOWN);
    CHECK_INT(check(text.buf, "a", 22, r.key[1], &t), ZT_TRUST_KNOWN);
    CHECK_INT(check(text.buf, "a", 22, r.key[2], &t), ZT_TRUST_KNOWN);

    zt_str_printf(&text, "@cert-authority * %s\n@revoked * %s\n", k[1], k[0]);
    CHECK_INT(check(text.buf, "a", 22, r.key[0], &t), ZT_TRUST_REVOKED);
    CHECK_INT(t.line, 5);
    CHECK_INT(check(text.buf, "a", 2222, r.key[0], &t), ZT_TRUST_REVOKED);
    CHECK_INT(check(text.buf, "b", 22, r.key[1], &t), ZT_TRUST_UNKNOWN); /* no certificate */
    CHECK(t.has_authority);
    zt_str_release(&text);
    teardown(&r);
}

TEST(bad_lines_do_not_hide_good_ones)
{
    struct rig r;
    struct zt_trust t;
    struct zt_str text = {0};
    RIG(&r);
    zt_str_puts(&text, "# comment\n\n\x01\x02 garbage\na ssh-ed25519\na ssh-ed25519 !!!\n@odd a ");
    zt_str_printf(&text, "%s\n", r.pub[0].buf);
    CHECK_INT(check(text.buf, "a", 22, r.key[0], &t), ZT_TRUST_CHANGED); /* line 5 is no such key */
    for (int i = 0; i < 100000; i++)
        zt_str_puts(&text, "x");
    zt_str_printf(&text, "\n \ta\t%s comment\r\n", r.pub[0].buf);
    CHECK_INT(check(text.buf, "a", 22, r.key[0], &t), ZT_TRUST_KNOWN);
    CHECK_INT(t.line, 8);
    zt_str_release(&text);
    teardown(&r);
}

TEST(messages_show_the_fingerprint_and_what_to_do)
{
    struct rig r;
    struct zt_trust t = {0};
    struct zt_err err = {0};
    struct zt_str shown = {0}, keygen = {0};
    static const char line[] = "[node-a]:2222 ssh-ed25519 AAAA\n", none[] = "node-a ssh-rsa AAAA\n",
                      other[] = "node-b,[node-a]:2222 ssh-rsa AAAA\n";
    const struct zt_known_hosts files[] = {{"/h/known_hosts", line, sizeof line - 1},
                                           {"/h/none", none, sizeof none - 1},
                                           {"/h/more", other, sizeof other - 1}};
    char path[128];
    RIG(&r);
    CHECK_OK(zt_host_key_describe(r.key[0], &shown, &err), err);
    CHECK(run("ssh-keygen -lf %s/k0.pub >%s/print", r.dir) == 0);
    snprintf(path, sizeof path, "%s/print", r.dir);
    CHECK_OK(zt_read_file(path, 4096, &keygen, &err), err);
    CHECK(strncmp(shown.buf, "ssh-ed25519 SHA256:", 19) == 0);
    CHECK(strstr(keygen.buf, strchr(shown.buf, ' ') + 1)); /* the same as ssh-keygen's */

    CHECK_INT(zt_trust_require(&t, files, 3, "node-a", 2222, "-p 2222 me@node-a", r.key[0], &err),
              ZT_EINPUT);
    CHECK(strstr(err.msg, shown.buf) && strstr(err.msg, "is not known"));
    CHECK(strstr(err.msg, "`ssh -o StrictHostKeyChecking=ask -o HostKeyAlgorithms=ssh-ed25519 "
                          "-p 2222 me@node-a true`"));
    t = (struct zt_trust){.kind = ZT_TRUST_CHANGED, .path = "/h/known_hosts", .line = 7};
    CHECK_INT(zt_trust_require(&t, files, 3, "node-a", 2222, "-p 2222 me@node-a", r.key[0], &err),
              ZT_EINPUT);
    CHECK(strstr(err.msg, shown.buf) && strstr(err.msg, "is another than in /h/known_hosts:7"));
    CHECK(strstr(err.msg, "`ssh-keygen -R '[node-a]:2222' -f '/h/known_hosts' && ssh-keygen -R "
                          "'[node-a]:2222' -f '/h/more' && ssh -o StrictHostKeyChecking=ask -o "
                          "HostKeyAlgorithms=ssh-ed25519 -p 2222 me@node-a true`"));
    t.kind = ZT_TRUST_REVOKED;
    CHECK_INT(zt_trust_require(&t, files, 3, "node-a", 22, "node-a", r.key[0], &err), ZT_EINPUT);
    CHECK(strstr(err.msg, shown.buf) && strstr(err.msg, "@revoked in /h/known_hosts:7"));
    t.kind = ZT_TRUST_KNOWN;
    CHECK_OK(zt_trust_require(&t, files, 3, "node-a", 22, "node-a", r.key[0], &err), err);
    zt_str_release(&shown);
    zt_str_release(&keygen);
    teardown(&r);
}

/* The command for a changed key, as it stands, takes it away from this host, and from no other. */
TEST(the_command_for_a_changed_key_leaves_other_hosts)
{
    struct rig r;
    struct zt_trust t;
    struct zt_str text = {0};
    struct zt_err err = {0};
    char path[128], command[1000];
    RIG(&r);
    CHECK(run("cut -d' ' -f1,2 %s/k1.pub >%s/key && cd %s && { sed 's/^/# x\\n*.lab,[*]:7 /' key; "
              "sed "
              "'s/^/ a.lab,b.lab /' key; sed 's/^/c.lab,?.lab\t/' key; } >kh",
              r.dir) == 0);
    snprintf(path, sizeof path, "%s/kh", r.dir);
    CHECK_OK(zt_read_file(path, 4096, &text, &err), err);
    struct zt_known_hosts f = {path, text.buf, text.len};
    CHECK_OK(zt_known_hosts_check(&f, 1, "a.lab", 22, r.key[0], &t, &err), err);
    CHECK_INT(t.kind, ZT_TRUST_CHANGED);
    CHECK_INT(zt_trust_require(&t, &f, 1, "a.lab", 22, "a.lab", r.key[0], &err), ZT_EINPUT);
    const char *begin = strstr(err.msg, "`sed -i");
    CHECK(begin && strstr(begin, " && ssh-keygen -R 'a.lab' -f '"));
    snprintf(command, sizeof command, "(%.*s) >/dev/null 2>&1",
             (int)(strstr(begin, " && ssh -o") - begin) - 1, begin + 1);
    CHECK(run(command, "") == 0);
    zt_str_reset(&text);
    CHECK_OK(zt_read_file(path, 4096, &text, &err), err);
    f = (struct zt_known_hosts){path, text.buf, text.len};
    CHECK_OK(zt_known_hosts_check(&f, 1, "a.lab", 22, r.key[0], &t, &err), err);
    CHECK_INT(t.kind, ZT_TRUST_UNKNOWN);
    CHECK_OK(zt_known_hosts_check(&f, 1, "c.lab", 22, r.key[1], &t, &err), err);
    CHECK_INT(t.kind, ZT_TRUST_KNOWN);
    CHECK_OK(zt_known_hosts_check(&f, 1, "a.lab", 7, r.key[1], &t, &err), err);
    CHECK_INT(t.kind, ZT_TRUST_KNOWN);
    zt_str_release(&text);
    teardown(&r);
}

TEST(types_of_known_keys)
{
    static const char text[] =
        "a,b ssh-ed25519 AAAA\n[a]:2222 ssh-rsa AAAA\n@revoked a ssh-dss AAAA\n"
        "a ecdsa-sha2-nistp256 AAAA\na ssh-ed25519 BBBB\n"
        "@cert-authority * x AAAA\nc ssh-xmss AAAA\n";
    const struct zt_known_hosts f[] = {{"kh", text, strlen(text)}, {"2", "a last AAAA\n", 12}};
    struct zt_str out = {0};
    struct zt_err err;
    CHECK_OK(zt_known_hosts_types(f, 2, "A", 22, &out, &err), err);
    CHECK_STR(out.buf, "ssh-ed25519,ecdsa-sha2-nistp256,last");
    zt_str_reset(&out);
    CHECK_OK(zt_known_hosts_types(f, 1, "a", 2222, &out, &err), err);
    CHECK_STR(out.buf, "ssh-rsa,ssh-ed25519,ecdsa-sha2-nistp256");
    zt_str_reset(&out);
    CHECK_OK(zt_known_hosts_types(f, 2, "d", 22, &out, &err), err);
    CHECK_STR(zt_str_get(&out), "");
    zt_str_release(&out);
}

TEST(malformed_keys_are_refused)
{
    static const uint8_t bad[][8] = {{0},
                                     {0, 0, 0, 9, 's', 's', 'h', '-'},
                                     {0xff, 0xff, 0xff, 0xff},
                                     {0, 0, 0, 2, 's', '\n', 1, 1}};
    struct zt_trust t;
    struct zt_err err = {0};
    for (size_t i = 0; i < ZT_ARRAY_LEN(bad); i++)
        for (size_t n = 0; n <= sizeof bad[0]; n++)
            CHECK_INT(
                zt_known_hosts_check(NULL, 0, "a", 22, (struct zt_host_key){bad[i], n}, &t, &err),
                ZT_EPROTO);
}

TEST_MAIN()
