/*
 * fuzz_ssh.c: any bytes as a known_hosts file, and as what ssh -G says. A key that no line holds is never
 * known, whatever the lines are; what parses has a name, a user and a port.
 */
#include "launch/known_hosts.h"
#include "launch/ssh_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    /* Its base64 is longer than any input that libFuzzer makes by default, and is in no corpus. */
    enum { TYPE_LEN = 11, KEY_LEN = 8192 };
    static uint8_t blob[KEY_LEN] = {0,   0,   0,   TYPE_LEN, 's', 's', 'h', '-',
                                    'e', 'd', '2', '5',      '5', '1', '9'};
    const struct zt_host_key key = {blob, sizeof blob};
    const struct zt_known_hosts f = {"fuzz", (const char *)data, n};
    static const int ports[] = {22, 2222};
    struct zt_ssh_config c;
    struct zt_arena arena = {0};
    struct zt_str text = {0};
    struct zt_err err;
    for (size_t i = 0; i < ZT_ARRAY_LEN(ports); i++) {
        struct zt_trust t;
        ZT_ASSERT(zt_known_hosts_check(&f, 1, "node-a", ports[i], key, &t, &err) == 0);
        ZT_ASSERT(t.kind == ZT_TRUST_UNKNOWN || t.kind == ZT_TRUST_CHANGED);
        ZT_ASSERT(zt_trust_require(&t, &f, 1, "node-a", ports[i], "node-a", key, &err) ==
                  ZT_EINPUT);
        zt_str_reset(&text);
        ZT_ASSERT(zt_known_hosts_types(&f, 1, "node-a", ports[i], &text, &err) == 0);
    }
    zt_str_reset(&text);
    if (zt_ssh_config_parse((const char *)data, n, "/home/me", &arena, &c, &err) == 0) {
        ZT_ASSERT(c.hostname && c.user && c.port > 0);
        zt_ssh_needs_client(&c, &text);
    }
    zt_str_release(&text);
    zt_arena_release(&arena);
    return 0;
}
