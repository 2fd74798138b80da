#include "harness.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "launch/ssh_config.h"

static int parse(const char *text, struct zt_arena *arena, struct zt_ssh_config *c,
                 struct zt_err *err)
{
    return zt_ssh_config_parse(text, strlen(text), "/home/me", arena, c, err);
}

#define BASE "user me\nhostname 192.0.2.1\nport 22\n"

TEST(what_ssh_says_is_read)
{
    struct zt_ssh_config c;
    struct zt_arena arena = {0};
    struct zt_str why = {0};
    struct zt_err err;
    CHECK_OK(parse("host node-a\nuser trainer\nhostname 10.0.0.7\nport 2222\n"
                   "gssapiauthentication yes\nidentitiesonly yes\nidentityfile ~/.ssh/id_a\n"
                   "identityfile /keys/b c\nuserknownhostsfile /h/known_hosts ~/k2\n"
                   "globalknownhostsfile none\nhostkeyalias lab\nidentityagent none\n"
                   "proxycommand none\naddressfamily inet6\nknownhostscommand none\nsendenv LANG\n",
                   &arena, &c, &err),
             err);
    CHECK_STR(c.hostname, "10.0.0.7");
    CHECK_STR(c.user, "trainer");
    CHECK_STR(c.host_key_alias, "lab");
    CHECK_INT(c.port, 2222);
    CHECK(c.identities_only && c.no_agent && !c.identity_agent && !c.proxy_command);
    CHECK_INT(c.identity_files.n, 2);
    CHECK_STR(c.identity_files.v[0], "/home/me/.ssh/id_a");
    CHECK_STR(c.identity_files.v[1], "/keys/b c");
    CHECK_INT(c.user_known_hosts.n, 2);
    CHECK_STR(c.user_known_hosts.v[1], "/home/me/k2");
    CHECK_INT(c.global_known_hosts.n, 0);
    CHECK_STR(c.address_family, "inet6");
    CHECK(!zt_ssh_needs_client(&c, &why) && !why.len);
    zt_arena_release(&arena);
}

TEST(hosts_that_need_the_client_say_why)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {BASE "proxyjump me@bastion:22\n", "it is reached through ProxyJump me@bastion:22"},
        {BASE "proxycommand nc %h %p\n", "it is reached through a ProxyCommand"},
        {BASE "certificatefile ~/c-cert.pub\n", "it wants the certificate /home/me/c-cert.pub"},
        {BASE "bindaddress 10.0.0.1\n", "its configuration sets bindaddress"},
        {BASE "proxyjump none\ncertificatefile none\n", NULL},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_ssh_config c;
        struct zt_arena arena = {0};
        struct zt_str why = {0};
        struct zt_err err;
        CHECK_OK(parse(cases[i].text, &arena, &c, &err), err);
        CHECK_INT(zt_ssh_needs_client(&c, &why), cases[i].why != NULL);
        CHECK_STR(zt_str_get(&why), cases[i].why ? cases[i].why : "");
        zt_str_release(&why);
        zt_arena_release(&arena);
    }
}

TEST(jump_hosts_are_taken_apart)
{
    static const struct {
        const char *user, *host;
        int port;
        const char *before;
    } want[] = {{"me", "a", 24, ""},
                {NULL, "b", 0, "me@a:24"},
                {"x@y", "fd00::1", 0, "me@a:24,b"},
                {NULL, "10.0.0.1", 22, "me@a:24,b,x@y@[fd00::1]"},
                {"u", "c", 23, "me@a:24,b,x@y@[fd00::1],[10.0.0.1]:22"}};
    struct zt_ssh_config c;
    struct zt_arena arena = {0};
    struct zt_err err;
    CHECK_OK(parse(BASE "proxyjump me@a:24,b,x@y@[fd00::1],[10.0.0.1]:22,ssh://u@c:23\n", &arena,
                   &c, &err),
             err);
    CHECK_INT(c.n_jumps, ZT_ARRAY_LEN(want));
    for (int i = 0; i < c.n_jumps; i++) {
        CHECK_STR(c.jumps[i].user ? c.jumps[i].user : "", want[i].user ? want[i].user : "");
        CHECK_STR(c.jumps[i].host, want[i].host);
        CHECK_INT(c.jumps[i].port, want[i].port);
        CHECK(c.jumps[i].before == strlen(want[i].before) &&
              strncmp(c.proxy_jump, want[i].before, c.jumps[i].before) == 0);
    }
    zt_arena_release(&arena);
}

TEST(other_text_is_refused)
{
    static const char *const bad[] = {"",
                                      "hello\n",
                                      "hostname a\nuser b\n",
                                      BASE "port 0\n",
                                      "hostname a\nuser b\nport 22x\n",
                                      "hostname none\nuser b\nport 22\n"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(bad); i++) {
        struct zt_ssh_config c;
        struct zt_arena arena = {0};
        struct zt_err err = {0};
        CHECK_INT(parse(bad[i], &arena, &c, &err), ZT_EPROTO);
        CHECK(strstr(err.msg, "ssh -G"));
        zt_arena_release(&arena);
    }
}

/* The real client, with whatever configuration this account has. */
TEST(ssh_itself_is_asked)
{
    struct zt_ssh_config c;
    struct zt_arena arena = {0};
    struct zt_err err;
    if (system("command -v ssh >/dev/null"))
        SKIP("ssh is not installed");
    CHECK_OK(zt_ssh_config_read("192.0.2.9", "trainer", 2222, &arena, &c, &err), err);
    CHECK_STR(c.hostname, "192.0.2.9");
    CHECK_STR(c.user, "trainer");
    CHECK_INT(c.port, 2222);
    CHECK(c.user_known_hosts.n >= 1 && c.user_known_hosts.v[0][0] == '/');
    CHECK_INT(zt_ssh_config_read("bad host", NULL, 0, &arena, &c, &err) < 0, 1);
    CHECK(strstr(err.msg, "ssh -G bad host failed: "));
    zt_arena_release(&arena);
}

TEST_MAIN()
