/*
 * gpu_memory.c: free and total bytes of each visible GPU, a line each. Started by the front end, never
 * by a person: asking makes a context on the GPU, which must not stay while the job runs.
 */
#include "cmd.h"

#include "coll/backend.h"

int cmd_gpu_memory(int argc, char **argv)
{
    const struct zt_backend *b;
    struct zt_gpu_info info;
    struct zt_err err = {0};
    int n = 0;
    (void)argv;
    if (argc != 1) {
        cmd_error("`gpu-memory` takes nothing");
        return ZT_EXIT_USAGE;
    }
    int rc = zt_backend_load(&b, &err);
    if (!rc)
        rc = b->device_count(&n, &err);
    for (int i = 0; i < n && !rc; i++) {
        rc = b->device_info(i, &info, &err);
        if (!rc)
            printf("%zu %zu\n", info.free_bytes, info.total_bytes);
    }
    if (rc)
        cmd_error("%s", err.msg);
    return zt_exit_code(rc);
}
