/*
 * fuzz_env.c: any bytes as a file of environment variables. What parses has names that a process can be
 * given, and means the same when written out and read again; what does not leaves nothing behind.
 */
#include "base/str.h"
#include "launch/env.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_round_trip(const struct zt_env *e)
{
    struct zt_str text = {0};
    struct zt_env again = {0};
    struct zt_err err;
    for (size_t i = 0; i < e->n; i++) {
        ZT_ASSERT(zt_env_check(e->v[i], strlen(e->v[i]), &err) == 0);
        zt_str_printf(&text, "%s\n", e->v[i]);
    }
    ZT_ASSERT(zt_env_parse("again", zt_str_get(&text), text.len, &again, &err) == 0);
    ZT_ASSERT_CMP(again.n, ==, e->n);
    for (size_t i = 0; i < e->n; i++)
        ZT_ASSERT(strcmp(again.v[i], e->v[i]) == 0);
    zt_env_release(&again);
    zt_str_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct zt_env e = {0};
    struct zt_err err;
    err.msg[0] = '\0';
    if (zt_env_parse("fuzz", (const char *)data, n, &e, &err) == 0)
        check_round_trip(&e);
    else
        ZT_ASSERT(e.n == 0 && err.msg[0] != '\0');
    zt_env_release(&e);
    return 0;
}
