#include "dev/cpu/kernels.h"

#include <sys/mman.h>

#include "base/io.h"
#include "base/size.h"

enum { MAX_PROC_FILE = 1 << 20 };

/* The number after `key` in a /proc or cgroup file ("MemTotal:  123 kB", "inactive_file 123"). */
static bool find_number(const char *text, const char *key, int64_t *out)
{
    const char *at = strstr(text, key);
    if (!at)
        return false;
    at += strlen(key);
    at += strspn(at, ": \t");
    char digits[24];
    size_t n = strspn(at, "0123456789");
    if (n == 0 || n >= sizeof digits)
        return false;
    memcpy(digits, at, n);
    digits[n] = '\0';
    return zt_parse_i64(digits, out);
}

/* A number in a one-line file; false when there is none ("max", no such file). */
static bool read_number(const char *dir, const char *name, const char *key, int64_t *out)
{
    struct zt_str path = {0}, text = {0};
    struct zt_err ignored;
    zt_str_printf(&path, "%s/%s", dir, name);
    bool found = zt_read_file(path.buf, MAX_PROC_FILE, &text, &ignored) == 0 &&
                 find_number(zt_str_get(&text), key, out);
    zt_str_release(&path);
    zt_str_release(&text);
    return found;
}

/*
 * Lower *free and *total to a control group's limit. File cache that was not used lately is given
 * up by the kernel before the limit hurts, so it counts as free.
 */
static void apply_limit(const char *dir, const char *limit_name, const char *usage_name,
                        int64_t *free_bytes, int64_t *total_bytes)
{
    int64_t limit, used, cache = 0;
    if (!read_number(dir, limit_name, "", &limit) || !read_number(dir, usage_name, "", &used))
        return;
    read_number(dir, "memory.stat", "inactive_file", &cache);
    *total_bytes = ZT_MIN(*total_bytes, limit);
    *free_bytes = ZT_MIN(*free_bytes, ZT_MAX(limit - used + cache, (int64_t)0));
}

/* Version 2: our own group and all above it. */
static void apply_cgroup2(int64_t *free_bytes, int64_t *total_bytes)
{
    struct zt_str text = {0}, dir = {0};
    struct zt_err ignored;
    if (zt_read_file("/proc/self/cgroup", MAX_PROC_FILE, &text, &ignored))
        goto out;
    const char *line = strstr(zt_str_get(&text), "0::/");
    if (!line)
        goto out;
    line += 3;
    zt_str_printf(&dir, "/sys/fs/cgroup%.*s", (int)strcspn(line, "\n"), line);
    for (;;) {
        apply_limit(dir.buf, "memory.max", "memory.current", free_bytes, total_bytes);
        char *slash = strrchr(dir.buf, '/');
        if (slash <= dir.buf + strlen("/sys/fs"))
            break;
        *slash = '\0';
    }
out:
    zt_str_release(&text);
    zt_str_release(&dir);
}

int zt_cpu_memory(struct zt_dev *d, size_t *free_bytes, size_t *total_bytes, struct zt_err *err)
{
    (void)d;
    struct zt_str text = {0};
    int64_t available = 0, total = 0;
    int rc = zt_read_file("/proc/meminfo", MAX_PROC_FILE, &text, err);
    if (rc)
        goto out;
    if (!find_number(zt_str_get(&text), "MemTotal", &total) ||
        !find_number(zt_str_get(&text), "MemAvailable", &available)) {
        rc = zt_err_set(err, ZT_ESYS, "/proc/meminfo: no MemTotal or MemAvailable");
        goto out;
    }
    total *= 1024;
    available *= 1024;
    apply_cgroup2(&available, &total);
    apply_limit("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                &available, &total); /* version 1 */
    *free_bytes = (size_t)available;
    *total_bytes = (size_t)total;
out:
    zt_str_release(&text);
    return rc;
}

int zt_cpu_alloc(struct zt_dev *d, size_t bytes, void **out, struct zt_err *err)
{
    size_t free_bytes, total_bytes, padded;
    if (bytes == 0)
        bytes = 1;
    if (!zt_add_size(bytes, 2 * ZT_HUGE_PAGE_BYTES, &padded))
        return zt_err_set(err, ZT_ENOMEM, "cannot allocate %zu bytes", bytes);
    int rc = zt_cpu_memory(d, &free_bytes, &total_bytes, err);
    if (rc)
        return rc;
    size_t size = zt_align_size(bytes, ZT_HUGE_PAGE_BYTES);
    if (bytes > free_bytes)
        return zt_err_set(err, ZT_ENOMEM,
                          "cannot allocate %zu bytes: %zu bytes of memory are free (of %zu)", bytes,
                          free_bytes, total_bytes);
    unsigned char *p = mmap(NULL, size + ZT_HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return zt_err_errno(err, ZT_ENOMEM, "cannot allocate %zu bytes", bytes);
    size_t head = (ZT_HUGE_PAGE_BYTES - (uintptr_t)p % ZT_HUGE_PAGE_BYTES) % ZT_HUGE_PAGE_BYTES;
    if (head)
        munmap(p, head);
    p += head;
    if (head != ZT_HUGE_PAGE_BYTES)
        munmap(p + size, ZT_HUGE_PAGE_BYTES - head);
    madvise(p, size, MADV_HUGEPAGE); /* advice: small pages work too */
    *out = p;
    return 0;
}

void zt_cpu_free(struct zt_dev *d, void *p, size_t bytes)
{
    (void)d;
    if (p)
        munmap(p, zt_align_size(ZT_MAX(bytes, (size_t)1), ZT_HUGE_PAGE_BYTES));
}
