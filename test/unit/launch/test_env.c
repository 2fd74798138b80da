#include "harness.h"

#include "launch/env.h"

/* CASES L10: split at the first '=', quotes and '=' kept, comments skipped. */
TEST(env_file_L10)
{
    struct zt_env e = {0};
    struct zt_err err;
    CHECK_OK(zt_env_read_file("test/cases/L10/env", &e, &err), err);
    CHECK_INT(e.n, 6);
    CHECK_STR(zt_env_get(&e, "NCCL_IB_HCA"), "=mlx5_1:1,mlx5_2:1");
    CHECK_STR(zt_env_get(&e, "RUN_META"), "{\"a\": \"b\"}");
    CHECK_STR(zt_env_get(&e, "NOTE"), "x (y)");
    CHECK_STR(zt_env_get(&e, "EMPTY"), "");
    CHECK_STR(zt_env_get(&e, "QUOTED"), "it's");
    CHECK_STR(zt_env_get(&e, "LD_LIBRARY_PATH"), "/opt/x/lib:/opt/y/lib");
    CHECK(!e.v[6]);
    zt_env_release(&e);
}

TEST(env_file_reports_every_bad_line)
{
    static const char text[] = "A=1\n\n  # note\nNOEQUALS\nB=\r\n1X=2\n\t\nexport C=3\n=x\nD=4";
    struct zt_env e = {0};
    struct zt_err err;
    zt_env_set(&e, "A=0", 3);
    CHECK_INT(zt_env_parse("f", text, sizeof text - 1, &e, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "f:4: \"NOEQUALS\" has no '='"));
    CHECK(strstr(err.msg, "\nf:5: ends in a carriage return"));
    CHECK(strstr(err.msg, "\nf:6: \"1X\" is not"));
    CHECK(strstr(err.msg, "\nf:8: \"export C\" is not"));
    CHECK(strstr(err.msg, "\nf:9: \"\" is not"));
    CHECK(!strstr(err.msg, "f:1:") && !strstr(err.msg, "f:10:"));
    CHECK_INT(e.n, 1); /* unchanged */
    CHECK_STR(zt_env_get(&e, "A"), "0");
    zt_env_release(&e);
}

TEST(env_replaces_and_removes_by_name)
{
    struct zt_env e = {0};
    zt_env_set(&e, "AB=1", 4);
    zt_env_set(&e, "A=line 1\nline 2", 15);
    zt_env_setf(&e, "AB=%d", 2);
    CHECK_INT(e.n, 2);
    CHECK_STR(zt_env_get(&e, "AB"), "2");
    CHECK_STR(zt_env_get(&e, "A"), "line 1\nline 2");
    zt_env_unset(&e, "B");
    zt_env_unset(&e, "AB");
    CHECK(e.n == 1 && !e.v[1] && !zt_env_get(&e, "AB"));
    zt_env_release(&e);
}

TEST(env_refuses_bad_names_and_nul)
{
    struct zt_err err;
    CHECK_INT(zt_env_check("A-B=1", 5, &err), ZT_EINPUT);
    CHECK_INT(zt_env_check("", 0, &err), ZT_EINPUT);
    CHECK_INT(zt_env_check("A=\0", 3, &err), ZT_EINPUT);
    CHECK_OK(zt_env_check("_a9==", 5, &err), err);
}

/* CASES L06: the mask of this machine's devices does not travel. L10: values do, byte for byte. */
TEST(what_travels_to_other_hosts)
{
    static const char *const all[] = {"NCCL_IB_HCA==mlx5_1:1,mlx5_2:1",
                                      "CUDA_VISIBLE_DEVICES=0,2",
                                      "CUDA_DEVICE_ORDER=PCI_BUS_ID",
                                      "OMP_NUM_THREADS=4",
                                      "PYTHONPATH=/a b",
                                      "HOME=/root",
                                      "ZT_TF32=1",
                                      "ZT_JOB_FD=5",
                                      "ZT_JOB_SECRET_FILE=/s",
                                      "NCCL_HOSTID=us",
                                      "XNCCL_DEBUG=1",
                                      "SSH_AUTH_SOCK=/tmp/x"};
    struct zt_env e = {0}, from = {0};
    for (size_t i = 0; i < ZT_ARRAY_LEN(all); i++)
        zt_env_set(&from, all[i], strlen(all[i]));
    zt_env_add_for_remote(&e, &from);
    CHECK_INT(e.n, 5);
    CHECK_STR(zt_env_get(&e, "NCCL_IB_HCA"), "=mlx5_1:1,mlx5_2:1");
    CHECK_STR(zt_env_get(&e, "CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
    CHECK_STR(zt_env_get(&e, "OMP_NUM_THREADS"), "4");
    CHECK_STR(zt_env_get(&e, "PYTHONPATH"), "/a b");
    CHECK_STR(zt_env_get(&e, "ZT_TF32"), "1");
    zt_env_release(&e);
    zt_env_release(&from);
}

TEST_MAIN()
