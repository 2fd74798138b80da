#include "harness.h"

#include "hosts/hosts.h"

/* "worker-0: 0 2; worker-1: 0" */
static const char *chosen(const struct zt_hosts *h, struct zt_str *buf)
{
    zt_str_reset(buf);
    for (int i = 0; i < h->n; i++) {
        zt_str_printf(buf, "%s%s:", i ? "; " : "", h->v[i].name);
        for (int d = 0; d < h->v[i].n_devices; d++)
            zt_str_printf(buf, " %d", h->v[i].devices[d]);
    }
    return zt_str_get(buf);
}

static int parse(const char *text, struct zt_hosts *h, struct zt_err *err)
{
    return zt_hosts_parse("f", text, strlen(text), h, err);
}

/* ---- the file ---- */

TEST(hostfile_made_by_dos_L03)
{
    struct zt_hosts h = {0};
    struct zt_err err;
    CHECK_OK(zt_hosts_read("test/cases/L03/good_crlf.txt", &h, &err), err);
    CHECK_INT(h.n, 3);
    CHECK_STR(h.v[0].name, "node-a");
    CHECK_STR(h.v[1].name, "node-b.example.org");
    CHECK_STR(h.v[2].name, "10.20.0.7");
    CHECK_INT(h.v[0].n_slots, 2);
    CHECK_INT(h.v[1].n_slots, 4);
    CHECK_INT(h.v[2].line, 5);
    CHECK_INT(zt_hosts_n_ranks(&h), 7);
    zt_hosts_release(&h);
}

TEST(hostfile_without_newline_and_with_byte_order_mark_L03)
{
    struct zt_hosts h = {0};
    struct zt_err err;
    CHECK_OK(zt_hosts_read("test/cases/L03/no_final_newline.txt", &h, &err), err);
    CHECK(h.n == 2 && h.v[1].n_slots == 2);
    CHECK_STR(h.v[1].name, "node-b");
    zt_hosts_release(&h);
    CHECK_OK(zt_hosts_read("test/cases/L03/bom.txt", &h, &err), err);
    CHECK_INT(h.n, 1);
    CHECK_STR(h.v[0].name, "node-a");
    zt_hosts_release(&h);
}

TEST(wrong_lines_are_named_L03)
{
    static const struct {
        const char *file, *say;
    } cases[] = {
        {"bad_key.txt", "bad_key.txt:2:12: \"lots=8\" is not slots=N"},
        {"duplicate.txt", "duplicate.txt:3:1: node-a is on line 1 too"},
        {"spaces_in_name.txt", "spaces_in_name.txt:1:6: \"is\" is not slots=N"},
        {"no_slots.txt", "no_slots.txt:1:7: slots=N is missing"},
        {"comments_only.txt", "comments_only.txt: no host in it"},
        {"negative.txt", "negative.txt:1:14: \"slots=-2\": the slots of a host are a number"},
        {"trailing_junk.txt", "trailing_junk.txt:1:14: \"slots=4x\": the slots"},
        {"overflow.txt", "overflow.txt:1:14: \"slots=99999999999999999999\": the slots"},
        {"zero.txt", "zero.txt:2:14: a host with no slots takes no part"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        char path[128];
        struct zt_hosts h = {0};
        struct zt_err err = {0};
        snprintf(path, sizeof path, "test/cases/L03/%s", cases[i].file);
        CHECK_INT(zt_hosts_read(path, &h, &err), ZT_EINPUT);
        if (!strstr(err.msg, cases[i].say))
            FAIL("\"%s\" does not say \"%s\"", err.msg, cases[i].say);
        CHECK(h.n == 0 && !h.v);
    }
}

TEST(all_wrong_lines_are_reported_at_once)
{
    static const char text[] = "a slots=1\n-oProxyCommand=x slots=1\nb:22 slots=1\n\nc slots=1 d\n"
                               "@e slots=1\n[::1 slots=1\nA slots=1 # again\nf slots=1025\n"
                               "g\x01 slots=1\nh\tslots=2#no\n[::1]:22 slots=1";
    static const char *const say[] = {
        "f:2:1: \"-oProxyCommand=x\" is no name of a host: it cannot begin so",
        "f:3:1: \"b:22\" is neither a name nor an IPv6 address; a port",
        "f:5:11: \"d\" is too much",
        "f:6:1: \"\" is no user",
        "f:7:1: \"[::1\" lacks its closing ]",
        "f:8:1: A is on line 1 too",
        "f:9:9: \"slots=1025\"",
        "f:10:1: \"g\\x01\" is no name",
        "f:11:9: \"slots=2#no\"",
        "f:12:1: \"[::1]:22\" has more after its closing ]; a port",
    };
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    int n_lines = 1;
    CHECK_INT(parse(text, &h, &err), ZT_EINPUT);
    for (size_t i = 0; i < ZT_ARRAY_LEN(say); i++)
        if (!strstr(err.msg, say[i]))
            FAIL("\"%s\" does not say \"%s\"", err.msg, say[i]);
    for (const char *p = err.msg; (p = strchr(p, '\n')); p++)
        n_lines++;
    CHECK_INT(n_lines, ZT_ARRAY_LEN(say));
}

TEST(a_flood_of_wrong_lines_is_cut_and_said_so)
{
    struct zt_str text = {0};
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    for (int i = 0; i < 1000; i++)
        zt_str_printf(&text, "host-%d\n", i);
    CHECK_INT(zt_hosts_parse("f", text.buf, text.len, &h, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "f:20:") && !strstr(err.msg, "f:21:"));
    CHECK(strstr(err.msg, "only the first 20 are shown"));
    zt_str_release(&text);
}

TEST(too_many_hosts_are_refused)
{
    struct zt_str text = {0};
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    for (int i = 0; i <= ZT_HOSTS_MAX; i++)
        zt_str_printf(&text, "h%d slots=1\n", i);
    CHECK_INT(zt_hosts_parse("f", text.buf, text.len, &h, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "f:4097:1: more than 4096 hosts"));
    zt_str_release(&text);
}

TEST(users_stay_beside_names_L04)
{
    struct zt_hosts h = {0};
    struct zt_err err;
    CHECK_OK(zt_hosts_read("test/cases/L04/hostfile", &h, &err), err);
    CHECK_INT(h.n, 2);
    CHECK_STR(h.v[0].name, "192.0.2.10");
    CHECK_STR(h.v[0].user, "trainer");
    CHECK_STR(h.v[1].name, "192.0.2.7");
    CHECK_STR(h.v[1].user, "root");
    CHECK_INT(zt_hosts_n_ranks(&h), 3);
    zt_hosts_release(&h);
}

TEST(ipv6_addresses_with_and_without_brackets_L05)
{
    struct zt_hosts h = {0};
    struct zt_err err;
    CHECK_OK(zt_hosts_read("test/cases/L05/hostfile", &h, &err), err);
    CHECK_INT(zt_hosts_n_ranks(&h), 4);
    CHECK_STR(h.v[0].name, "2001:db8::11");
    CHECK_STR(h.v[1].name, "2001:db8::12");
    zt_hosts_release(&h);
    CHECK_OK(parse("fe80:0::0001%eth0.1 slots=1\nu@[::1] slots=1", &h, &err), err);
    CHECK_STR(h.v[0].name, "fe80::1%eth0.1");
    CHECK_STR(h.v[1].name, "::1");
    CHECK_STR(h.v[1].user, "u");
    zt_hosts_release(&h);
    CHECK_INT(parse("2001:DB8:0::11 slots=1\n[2001:db8::11] slots=1", &h, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "f:2:1: 2001:db8::11 is on line 1 too"));
}

/* ---- filters ---- */

TEST(filters_L01)
{
    static const struct {
        const char *include, *exclude, *right; /* NULL: rejected */
    } cases[] = {
        {NULL, NULL, "worker-0: 0 1 2 3; worker-1: 0 1 2 3"},
        {"worker-0", NULL, "worker-0: 0 1 2 3"},
        {"worker-0@worker-1:0,2", NULL, "worker-0: 0 1 2 3; worker-1: 0 2"},
        {"worker-1:0@worker-0:3", NULL, "worker-0: 3; worker-1: 0"},
        {"worker-0:1@worker-0:0,1", NULL, "worker-0: 0 1"},
        {"worker-0:1,1", NULL, "worker-0: 1"},
        {"worker-0:1@worker-0", NULL, "worker-0: 0 1 2 3"},
        {NULL, "worker-0:1", "worker-0: 0 2 3; worker-1: 0 1 2 3"},
        {NULL, "worker-1", "worker-0: 0 1 2 3"},
        {NULL, "worker-0:0,1@worker-1:3", "worker-0: 2 3; worker-1: 0 1 2"},
        {NULL, "worker-0:0,1,2,3", "worker-1: 0 1 2 3"},
        {"worker-0:4", NULL, NULL},
        {"worker-1:2,99", NULL, NULL},
        {"nosuch", NULL, NULL},
        {NULL, "worker-1:4", NULL},
        {NULL, "worker-1@worker-0:1@5", NULL},
        {NULL, "worker-0@worker-1", NULL},
    };
    struct zt_str buf = {0};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        const struct zt_hosts_filter f = {.include = cases[i].include, .exclude = cases[i].exclude};
        struct zt_hosts h = {0};
        struct zt_err err = {0};
        CHECK_OK(zt_hosts_read("test/cases/L01/hostfile", &h, &err), err);
        int rc = zt_hosts_choose(&h, &f, &err);
        if (cases[i].right && rc)
            FAIL("case %zu: %s", i, err.msg);
        if (cases[i].right)
            CHECK_STR(chosen(&h, &buf), cases[i].right);
        else
            CHECK(rc == ZT_EINPUT && err.msg[0]);
        zt_hosts_release(&h);
    }
    zt_str_release(&buf);
}

/* Whatever the hosts are. */
TEST(filters_without_sense_L01)
{
    static const char *const includes[] = {"", "worker-0:", "worker-0@", "worker-0:-1",
                                           "worker-0:99999999999999999999"};
    const struct zt_hosts_filter both = {.include = "worker-0", .exclude = "worker-1"};
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    CHECK_OK(zt_hosts_read("test/cases/L01/hostfile", &h, &err), err);
    CHECK_INT(zt_hosts_choose(&h, &both, &err), ZT_EUSAGE);
    for (size_t i = 0; i < ZT_ARRAY_LEN(includes); i++) {
        const struct zt_hosts_filter f = {.include = includes[i]};
        if (zt_hosts_choose(&h, &f, &err) != ZT_EUSAGE)
            FAIL("\"%s\" is no mistake of the command line", includes[i]);
    }
    zt_hosts_release(&h);
}

TEST(filters_report_everything_at_once)
{
    const struct zt_hosts_filter f = {.include = "nosuch@a:7,x@[::1:0"};
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    CHECK_OK(parse("a slots=2\n", &h, &err), err);
    CHECK_INT(zt_hosts_choose(&h, &f, &err), ZT_EUSAGE);
    CHECK(strstr(err.msg, "--include: no host is named nosuch"));
    CHECK(strstr(err.msg, "--include: a has no device 7: it has 2 slots"));
    CHECK(strstr(err.msg, "--include: a: \"x\" is not the number of a device"));
    CHECK(strstr(err.msg, "\"[::1:0\" lacks its closing ]"));
    zt_hosts_release(&h);
}

/* A host of the hostfile with its user is understood, and never split into a host named like the user. */
TEST(filters_with_users_L04)
{
    static const struct {
        const char *include, *right;
    } cases[] = {
        {"192.0.2.10", "192.0.2.10: 0 1"},
        {"trainer@192.0.2.10:0", "192.0.2.10: 0"},
        {"root@192.0.2.7@trainer@192.0.2.10:1", "192.0.2.10: 1; 192.0.2.7: 0"},
        {"root@192.0.2.10", NULL},
        {"trainer", NULL},
        {"192.0.2.7@trainer", NULL},
    };
    struct zt_str buf = {0};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        const struct zt_hosts_filter f = {.include = cases[i].include};
        struct zt_hosts h = {0};
        struct zt_err err = {0};
        CHECK_OK(zt_hosts_read("test/cases/L04/hostfile", &h, &err), err);
        int rc = zt_hosts_choose(&h, &f, &err);
        if (!cases[i].right)
            CHECK(rc == ZT_EINPUT && strstr(err.msg, "no host is named"));
        else
            CHECK(rc == 0 && strcmp(chosen(&h, &buf), cases[i].right) == 0);
        zt_hosts_release(&h);
    }
    zt_str_release(&buf);
}

TEST(a_user_named_like_a_host_is_ambiguous)
{
    const struct zt_hosts_filter f = {.include = "a@b:0"};
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    CHECK_OK(parse("a slots=1\na@b slots=1\n", &h, &err), err);
    CHECK_INT(zt_hosts_choose(&h, &f, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "\"a@b\": is a the host, or the user?"));
    zt_hosts_release(&h);
}

TEST(filters_with_ipv6_L05)
{
    static const struct {
        const char *include, *right;
    } cases[] = {
        {"[2001:db8::11]:0", "2001:db8::11: 0"},
        {"2001:db8::11", "2001:db8::11: 0 1"},
        {"[2001:db8::12]", "2001:db8::12: 0 1"},
        {"2001:db8::11:0", NULL},
    };
    struct zt_str buf = {0};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        const struct zt_hosts_filter f = {.include = cases[i].include};
        struct zt_hosts h = {0};
        struct zt_err err = {0};
        CHECK_OK(zt_hosts_read("test/cases/L05/hostfile", &h, &err), err);
        int rc = zt_hosts_choose(&h, &f, &err);
        if (!cases[i].right)
            CHECK(rc == ZT_EINPUT && strstr(err.msg, "devices of an IPv6 address: [ADDRESS]:0,2"));
        else
            CHECK(rc == 0 && strcmp(chosen(&h, &buf), cases[i].right) == 0);
        zt_hosts_release(&h);
    }
    zt_str_release(&buf);
}

TEST(what_is_left_without_some)
{
    static const struct {
        const char *without[2];
        int most;
        const char *right;
    } cases[] = {
        {{NULL}, 0, "a: 0 1; b: 1 2; c: 0"},
        {{"a"}, 0, "b: 1 2; c: 0"},
        {{"b", "a"}, 0, "c: 0"},
        {{"b", "nosuch"}, 2, "a: 0 1"},
        {{NULL}, 3, "a: 0 1; b: 1"},
        {{NULL}, 99, "a: 0 1; b: 1 2; c: 0"},
    };
    const struct zt_hosts_filter f = {.exclude = "b:0"};
    struct zt_str buf = {0};
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    CHECK_OK(parse("a slots=2\nu@b slots=3\nc slots=1\n", &h, &err), err);
    CHECK_OK(zt_hosts_choose(&h, &f, &err), err);
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_hosts left = {0};
        const int n = !!cases[i].without[0] + !!cases[i].without[1];
        zt_hosts_without(&h, cases[i].without, n, cases[i].most, &left);
        CHECK_STR(chosen(&left, &buf), cases[i].right);
        for (int k = 0; k < left.n; k++)
            CHECK(left.v[k].line > 0 && (left.v[k].user != NULL) == (left.v[k].name[0] == 'b'));
        zt_hosts_release(&left);
    }
    zt_hosts_without(&h, (const char *const[]){"c", "b", "a"}, 3, 0, &(struct zt_hosts){0});
    zt_hosts_release(&h);
    zt_str_release(&buf);
}

TEST(numbers_of_nodes_and_gpus)
{
    static const struct {
        int nodes, gpus;
        const char *right, *say;
    } cases[] = {
        {2, 0, "a: 0 1 2; b: 0", NULL},
        {0, 1, "a: 0; b: 0; c: 0", NULL},
        {1, 2, "a: 0 1", NULL},
        {4, 0, NULL, "--num_nodes=4: there are 3 hosts"},
        {0, 2, NULL, "--num_gpus=2: b has 1 slot"},
        {2, 4, NULL, "--num_gpus=4: a has 3 slots"},
    };
    struct zt_str buf = {0};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        const struct zt_hosts_filter f = {.num_nodes = cases[i].nodes, .num_gpus = cases[i].gpus};
        struct zt_hosts h = {0};
        struct zt_err err = {0};
        CHECK_OK(parse("a slots=3\nb slots=1\nc slots=2\n", &h, &err), err);
        int rc = zt_hosts_choose(&h, &f, &err);
        if (cases[i].right)
            CHECK(rc == 0 && strcmp(chosen(&h, &buf), cases[i].right) == 0);
        else
            CHECK(rc == ZT_EINPUT && strstr(err.msg, cases[i].say));
        zt_hosts_release(&h);
    }
    zt_str_release(&buf);
}

TEST(names_and_numbers_exclude_each_other)
{
    const struct zt_hosts_filter f = {.exclude = "a", .num_gpus = 1};
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    CHECK_OK(parse("a slots=3\nb slots=1\n", &h, &err), err);
    CHECK_INT(zt_hosts_choose(&h, &f, &err), ZT_EUSAGE);
    CHECK(strstr(err.msg, "--exclude and --num_gpus"));
    zt_hosts_release(&h);
}

/* ---- ranks ---- */

TEST(ranks_follow_the_file_then_the_device)
{
    static const char right[] = "  rank  host      local rank  device\n"
                                "     0  worker-0           0       1\n"
                                "     1  worker-0           1       3\n"
                                "     2  worker-1           0       0\n"
                                "     3  worker-1           1       2\n"
                                "     4  worker-1           2       3\n"
                                "5 ranks on 2 hosts\n";
    const struct zt_hosts_filter f = {.exclude = "worker-1:1@worker-0:0,2"};
    struct zt_hosts h = {0};
    struct zt_str table = {0};
    struct zt_err err;
    CHECK_OK(zt_hosts_read("test/cases/L01/hostfile", &h, &err), err);
    CHECK_OK(zt_hosts_choose(&h, &f, &err), err);
    CHECK_INT(zt_hosts_n_ranks(&h), 5);
    zt_hosts_print(&h, &table);
    CHECK_STR(zt_str_get(&table), right);
    zt_str_release(&table);
    zt_hosts_release(&h);
}

TEST(this_machine_is_known_by_name_and_address)
{
    CHECK(zt_host_is_local("localhost"));
    CHECK(zt_host_is_local("LOCALHOST"));
    CHECK(zt_host_is_local("127.0.0.1"));
    CHECK(zt_host_is_local("127.3.2.1"));
    CHECK(zt_host_is_local("::1"));
    CHECK(!zt_host_is_local("192.0.2.10")); /* TEST-NET-1: nobody's */
    CHECK(!zt_host_is_local("2001:db8::11"));
}

TEST_MAIN()
