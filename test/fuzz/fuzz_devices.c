/*
 * fuzz_devices.c: any text as CUDA_VISIBLE_DEVICES. The first two bytes say how many devices there are
 * and how many are wanted. What is picked is no more than either, and none is empty.
 */
#include "launch/launch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    enum { MAX_OUT = 16 };
    const char *out[MAX_OUT];
    struct zt_str text = {0}, buf = {0};
    struct zt_err err;
    int n_out = 0;
    if (n < 2)
        return 0;
    int n_present = data[0] % 20 - 1, n_wanted = data[1] % 20;
    zt_str_add(&text, (const char *)data + 2, n - 2);
    err.msg[0] = '\0';
    if (zt_pick_devices(zt_str_get(&text), n_present, n_wanted, &buf, out, MAX_OUT, &n_out, &err)) {
        ZT_ASSERT(err.msg[0] != '\0');
    } else {
        ZT_ASSERT(n_out >= 0 && n_out <= MAX_OUT);
        if (n_wanted > 0)
            ZT_ASSERT_CMP(n_out, <=, n_wanted);
        for (int i = 0; i < n_out; i++)
            ZT_ASSERT(out[i][0] != '\0');
    }
    zt_str_release(&buf);
    zt_str_release(&text);
    return 0;
}
