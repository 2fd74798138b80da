/*
 * gpus.c: the GPUs of this host, a line each, for the front end, which starts this on every host of a job,
 * its own too, before anything else (ask_gpus.c). A process of its own, since asking makes a context on a
 * GPU, which must not stay while the job runs.
 */
#include "gpus.h"

#include <sched.h>
#include <unistd.h>

#include "coll/backend.h"
#include "dev/dev.h"

bool cmd_may_have_gpus(void)
{
    return zt_count_devices() > 0 || getenv("ZT_CUDA_LIB");
}

int cmd_cores(void)
{
    cpu_set_t ours; /* taskset, containers and batch systems give fewer than there are */
    if (sched_getaffinity(0, sizeof ours, &ours) == 0)
        return CPU_COUNT(&ours);
    return (int)ZT_MAX(1, sysconf(_SC_NPROCESSORS_ONLN));
}

int cmd_host_memory(size_t *free_bytes, struct zt_err *err)
{
    struct zt_dev *cpu;
    size_t total;
    int rc = zt_cpu_dev_create(&cpu, NULL, 0, err);
    if (rc)
        return rc;
    rc = cpu->ops->memory(cpu, free_bytes, &total, err);
    zt_cpu_dev_free(cpu);
    return rc;
}

/* Lines are words between tabs, the first of which says what it is; ask_gpus.c reads them. */
static void say(const char *what, enum zt_exit code, const char *why)
{
    struct zt_str line = {0};
    zt_str_puts(&line, why);
    for (size_t i = 0; i < line.len; i++)
        if (line.buf[i] == '\n' || line.buf[i] == '\t')
            line.buf[i] = ' ';
    printf("%s\t%d\t%s\n", what, code, zt_str_get(&line));
    zt_str_release(&line);
}

static void say_none(enum zt_exit code, const char *why)
{
    say("none", code, why);
}

/* Our n entries of CUDA_VISIBLE_DEVICES, of which CUDA finds the first. 0 with none after say_none(). */
static int find(const struct zt_backend **b, struct zt_str *buf, const char **entries, int *n,
                int *n_found, struct zt_err *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int n_present = zt_count_devices();
    *n = *n_found = 0;
    if (!cmd_may_have_gpus()) {
        say_none(ZT_EXIT_INPUT, "there is no GPU on this machine");
        return 0;
    }
    int rc = zt_pick_devices(visible, n_present ? n_present : -1, 0, buf, entries,
                             ZT_LAUNCH_MAX_WORKERS, n, err);
    if (rc)
        return rc;
    if (visible && *n == 0) {
        say_none(ZT_EXIT_INPUT, "there is no GPU that CUDA_VISIBLE_DEVICES lets us use");
        return 0;
    }
    rc = zt_backend_load(b, err);
    if (!rc)
        rc = (*b)->device_count(n_found, err);
    if (rc == ZT_EUNSUPPORTED) {
        *n = 0;
        say_none(ZT_EXIT_UNSUPPORTED, err->msg);
        return 0;
    }
    if (rc || visible)
        return rc;
    return zt_pick_devices(NULL, *n_found, 0, buf, entries, ZT_LAUNCH_MAX_WORKERS, n, err);
}

/* CUDA finds none behind the first that is not there. It matters only if this one is to be used. */
static void say_gpu(const struct zt_backend *b, int i, int n_found, const char *entry)
{
    struct zt_gpu_info info = {0};
    struct zt_err err = {0};
    if (i >= n_found) {
        printf("broken\t%s\t%s\tof CUDA_VISIBLE_DEVICES=%s CUDA finds only %d\n", entry, entry,
               getenv("CUDA_VISIBLE_DEVICES"), n_found);
        return;
    }
    const int rc = b->device_info(i, &info, &err);
    const char *id = info.id[0] && strncmp(entry, "MIG-", 4) != 0 ? info.id : entry;
    if (rc)
        printf("broken\t%s\t%s\t%s\n", entry, id, err.msg);
    else
        printf("gpu\t%zu\t%s\t%s\t%s\n", info.free_bytes, entry, id, info.name);
}

int cmd_gpus(int argc, char **argv)
{
    const struct zt_backend *b = NULL;
    const char *entries[ZT_LAUNCH_MAX_WORKERS];
    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    struct zt_str buf = {0};
    struct zt_err err = {0};
    size_t free_bytes;
    int64_t most;
    int n = 0, n_found;
    if (argc != 2 || !zt_parse_i64(argv[1], &most)) {
        cmd_error("`gpus` is started by zerotrain itself, not by hand");
        return ZT_EXIT_USAGE;
    }
    int rc = cmd_host_memory(&free_bytes, &err);
    if (!rc)
        rc = find(&b, &buf, entries, &n, &n_found, &err);
    if (rc) {
        say("wrong", zt_exit_code(rc), err.msg);
        n = 0;
    } else {
        printf("host\t%zu\t%d\n", free_bytes, cmd_cores());
        if (mask)
            printf("mask\t%s\n", mask);
        for (int i = 0; i < n && i < most; i++)
            say_gpu(b, i, n_found, entries[i]);
    }
    if (n > 0)
        printf("end\t%d\t%d\n", n, b->nccl_id != NULL);
    zt_str_release(&buf);
    return 0;
}
