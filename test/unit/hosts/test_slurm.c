#include "harness.h"

#include "hosts/hosts.h"

/* "a:4 b:3" */
static const char *listed(const struct zt_hosts *h, struct zt_str *buf)
{
    zt_str_reset(buf);
    for (int i = 0; i < h->n; i++)
        zt_str_printf(buf, "%s%s:%d", i ? " " : "", h->v[i].name, h->v[i].n_devices);
    return zt_str_get(buf);
}

TEST(nodelists_expand_as_scontrol_does)
{
    static const struct {
        const char *nodes, *tasks, *right;
    } cases[] = {
        {"login", "1", "login:1"},
        {"a,b", "2,1", "a:2 b:1"},
        {"n[1-3]", "4(x2),3", "n1:4 n2:4 n3:3"},
        {"n[9-11]", "1(x3)", "n9:1 n10:1 n11:1"},
        {"n[09-11]", "1(x3)", "n09:1 n10:1 n11:1"},
        {"n[099-101,7]", "1(x4)", "n099:1 n100:1 n101:1 n7:1"},
        {"n[001,0002]", "1,1", "n001:1 n0002:1"},
        {"gpu[1,3-4],cpu[2]-ib,x", "1(x5)", "gpu1:1 gpu3:1 gpu4:1 cpu2-ib:1 x:1"},
        {"r[1-2]n[08-09]", "8(x4)", "r1n08:8 r1n09:8 r2n08:8 r2n09:8"},
        {"r[1,2]s[0]n[1-2].site", "1(x4)",
         "r1s0n1.site:1 r1s0n2.site:1 r2s0n1.site:1 r2s0n2.site:1"},
        {"b,a", "1,2", "b:1 a:2"}, /* its order, not the alphabet's */
    };
    struct zt_str buf = {0};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_hosts h = {0};
        struct zt_err err = {0};
        CHECK_OK(zt_hosts_from_slurm(cases[i].nodes, cases[i].tasks, &h, &err), err);
        CHECK_STR(listed(&h, &buf), cases[i].right);
        zt_hosts_release(&h);
    }
    zt_str_release(&buf);
}

TEST(wrong_lists_are_refused)
{
    static const struct {
        const char *nodes, *tasks, *say;
    } cases[] = {
        {"", "1", "SLURM_JOB_NODELIST=: not the name of a node, at character 1"},
        {"a,,b", "1(x2)", "not the name of a node, at character 3"},
        {"n[1-3", "1(x3)", "a bracket that is not closed, at character 2"},
        {"n[3-1]", "1", "not a range such as 01-16, at character 3"},
        {"n[1-]", "1", "not a range"},
        {"n[]", "1", "not a range"},
        {"n[a-b]", "1", "not a range"},
        {"n[1-[2]]", "1", "not a range"},
        {"n[1-3,2]", "1(x4)", "a node that is in it already"},
        {"n[0-99999999]", "1", "too many nodes"},
        {"n[00-99][00-99]", "1", "too many nodes"},
        {"n[0-999999999999]", "1", "not a range"},
        {"a;rm", "1", "not the name of a node"},
        {"a,b", "1", "SLURM_TASKS_PER_NODE=1: it counts 1 node(s), but SLURM_JOB_NODELIST has 2"},
        {"a,b", "1(x3)", "it counts more than 2 node(s)"},
        {"a,b", "1(x999999999)", "\"1(x999999999)\" is not a count"},
        {"a", "0", "\"0\" is not a count such as 4 or 4(x2)"},
        {"a", "", "\"\" is not a count"},
        {"a", "4(x", "\"4(x\" is not a count"},
        {"a", "4(x)", "is not a count"},
        {"a", "4(x1", "is not a count"},
        {"a", "4(1)", "is not a count"},
        {"a", "1,", "\"\" is not a count"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_hosts h = {0};
        struct zt_err err = {0};
        CHECK_INT(zt_hosts_from_slurm(cases[i].nodes, cases[i].tasks, &h, &err), ZT_EINPUT);
        if (!strstr(err.msg, cases[i].say))
            FAIL("case %zu: \"%s\" does not say \"%s\"", i, err.msg, cases[i].say);
        CHECK(h.n == 0 && !h.v);
    }
}

TEST_MAIN()
