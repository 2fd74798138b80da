#include "harness.h"

#include "launch/launch.h"

enum { MAX = 8 };

/* `expect` is the devices of ranks 0, 1, ... joined by '|', or NULL: refused. */
static void check(const char *visible, int n_present, int n_wanted, const char *expect,
                  const char *words)
{
    struct zt_str buf = {0}, got = {0};
    struct zt_err err;
    const char *out[MAX];
    int n = -1;
    int rc = zt_pick_devices(visible, n_present, n_wanted, &buf, out, MAX, &n, &err);
    if (!expect) {
        CHECK_INT(rc, ZT_EINPUT);
        if (!strstr(err.msg, words))
            FAIL("\"%s\" does not say \"%s\"", err.msg, words);
    } else {
        CHECK_OK(rc, err);
        for (int i = 0; i < n; i++)
            zt_str_printf(&got, "%s%s", i ? "|" : "", out[i]);
        CHECK_STR(zt_str_get(&got), expect);
    }
    zt_str_release(&buf);
    zt_str_release(&got);
}

/* CASES L06. Rows 2 and 6 are about hostfiles and filters, which are resolved before this. */
TEST(devices_mask_L06)
{
    check("0,2", 4, 0, "0|2", NULL);
    RETURN_IF_FAILED();
    check("4,5", 8, 0, "4|5", NULL);
    RETURN_IF_FAILED();
    check("2,0", 4, 0, "2|0", NULL); /* the mask's order, as launch.h states */
    RETURN_IF_FAILED();
    check("", 4, 0, "", NULL);
    RETURN_IF_FAILED();
    check("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,MIG-a/1", 4, 0,
          "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6|MIG-a/1", NULL);
    RETURN_IF_FAILED();
    check(NULL, 4, 0, "0|1|2|3", NULL);
}

TEST(devices_wanted)
{
    check("0,2", 4, 1, "0", NULL);
    RETURN_IF_FAILED();
    check("0,2", 4, 3, NULL, "3 devices are wanted, but CUDA_VISIBLE_DEVICES=0,2 shows 2");
    RETURN_IF_FAILED();
    check("", 4, 1, NULL, "shows 0");
    RETURN_IF_FAILED();
    check(NULL, 4, 5, NULL, "this host has 4");
    RETURN_IF_FAILED();
    check(NULL, 0, 0, "", NULL);
    RETURN_IF_FAILED();
    check(NULL, 9, 0, NULL, "more than 8");
}

TEST(devices_unusual_masks)
{
    check(" 1 , 3 ", 4, 0, "1|3", NULL);
    RETURN_IF_FAILED();
    check("-1", 4, 0, "", NULL);
    RETURN_IF_FAILED();
    check("1,-1,0", 4, 0, "1", NULL); /* CUDA ends the list there */
    RETURN_IF_FAILED();
    check("NoDevFiles", 4, 0, "", NULL);
    RETURN_IF_FAILED();
    check("0,4", 4, 0, NULL, "names device 4, but this host has 4");
    RETURN_IF_FAILED();
    check("0,4", -1, 0, "0|4", NULL); /* how many there are is not known */
    RETURN_IF_FAILED();
    check("1,1", 4, 0, NULL, "device 1 twice");
    RETURN_IF_FAILED();
    check("1,01", 4, 0, NULL, "device 01 twice");
    RETURN_IF_FAILED();
    check("0,,1", 4, 0, NULL, "\"\" is neither");
    RETURN_IF_FAILED();
    check("all", 4, 0, NULL, "\"all\" is neither");
}

TEST_MAIN()
