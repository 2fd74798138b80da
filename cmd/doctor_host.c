#include "doctor.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifdef ZT_HAVE_URING
#include <liburing.h>
#endif

#include "base/io.h"
#include "dev/dev.h"

enum { FILE_BYTES = 1 << 20 };

static const size_t mib = (size_t)1 << 20, gib = (size_t)1 << 30;

/* ---- small files ---- */

/* The line of a file that starts with `key` ("": the first), less key, colon and blanks; "": none. */
static const char *line_of(const char *path, const char *key, struct zt_str *text)
{
    struct zt_err ignored;
    zt_str_reset(text);
    if (zt_read_file(path, FILE_BYTES, text, &ignored))
        return "";
    for (char *line = text->buf; line && *line;) {
        char *end = line + strcspn(line, "\n");
        if (strncmp(line, key, strlen(key)) == 0) {
            *end = '\0';
            line += strlen(key);
            return line + strspn(line, " \t:");
        }
        line = *end ? end + 1 : end;
    }
    return "";
}

/* The number in front of such a line; -1: there is none. */
static int64_t number_of(const char *path, const char *key)
{
    struct zt_str text = {0};
    char *end;
    const char *line = line_of(path, key, &text);
    long long n = strtoll(line, &end, 10);
    if (end == line)
        n = -1;
    zt_str_release(&text);
    return n;
}

/* "Debian GNU/Linux 12 (bookworm)", of a line PRETTY_NAME="..."; "": not known. */
static void distribution(char *buf, size_t bytes)
{
    struct zt_str text = {0};
    const char *line = line_of("/etc/os-release", "PRETTY_NAME=", &text);
    line += *line == '"';
    snprintf(buf, bytes, "%.*s", (int)strcspn(line, "\""), line);
    zt_str_release(&text);
}

/*
 * The least that a control group (version 2) or one above it gives: `take` reads a group's folder, and has -1 where
 * it says nothing.
 */
static double least_of_groups(double (*take)(const char *dir))
{
    struct zt_str text = {0}, dir = {0};
    double least = -1;
    zt_str_printf(&dir, "/sys/fs/cgroup%s", line_of("/proc/self/cgroup", "0::", &text));
    for (;;) {
        double here = take(dir.buf);
        if (here >= 0 && (least < 0 || here < least))
            least = here;
        char *slash = strrchr(dir.buf, '/');
        if (slash <= dir.buf + strlen("/sys/fs"))
            break;
        *slash = '\0';
    }
    zt_str_release(&text);
    zt_str_release(&dir);
    return least;
}

static const char *in_dir(const char *dir, const char *name, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%s/%s", dir, name);
    return buf;
}

/* ---- processors ---- */

static double group_cores(const char *dir)
{
    char path[4096];
    struct zt_str text = {0};
    long long quota, period;
    const char *line = line_of(in_dir(dir, "cpu.max", path, sizeof path), "", &text);
    double cores = sscanf(line, "%lld %lld", &quota, &period) == 2 && period > 0
                       ? (double)quota / (double)period
                       : -1;
    zt_str_release(&text);
    return cores;
}

static void check_cpu(struct doctor_probe *p)
{
    char log[512];
    struct zt_dev *dev;
    struct zt_err err;
    struct zt_str text = {0};
    cpu_set_t ours;
    const int there = (int)sysconf(_SC_NPROCESSORS_ONLN);
    const int cores = sched_getaffinity(0, sizeof ours, &ours) ? there : CPU_COUNT(&ours);
    const double quota = least_of_groups(group_cores);
    const bool throttled = quota >= 0 && quota < cores;
    if (zt_cpu_dev_create(&dev, log, sizeof log, &err)) {
        doctor_say(p, "processor", DOCTOR_FAIL, "without it nothing can be computed here", NULL,
                   "%s", err.msg);
        return;
    }
    zt_cpu_dev_free(dev);
    char quota_text[64] = "";
    if (throttled)
        snprintf(quota_text, sizeof quota_text, ", of which its control group gives %.1f", quota);
    const char *model = line_of("/proc/cpuinfo", "model name", &text);
    const char *kernels = strncmp(log, "cpu: ", 5) ? log : log + 5;
    doctor_say(p, "processor", throttled ? DOCTOR_WARN : DOCTOR_OK,
               throttled ? "raise the group's CPU limit, or set parallel.threads" : NULL,
               json_pack("{s:s, s:i, s:i, s:s}", "model", model, "cores", cores, "cores_present",
                         there, "kernels", kernels),
               "%s, %d core%s%s", *model ? model : "of unknown name", cores, cores == 1 ? "" : "s",
               quota_text);
    doctor_say(p, "kernels", DOCTOR_OK, NULL, NULL, "%s", kernels);
    zt_str_release(&text);
}

static void check_system(struct doctor_probe *p)
{
    struct utsname u;
    char name[128];
    distribution(name, sizeof name);
    if (uname(&u))
        return;
    doctor_say(p, "system", DOCTOR_OK, NULL,
               json_pack("{s:s, s:s, s:s}", "distribution", name, "kernel", u.release, "machine",
                         u.machine),
               "%s%sLinux %s, %s", name, *name ? ", " : "", u.release, u.machine);
}

/* ---- memory ---- */

static void check_memory(struct doctor_probe *p)
{
    struct zt_dev *dev;
    struct zt_err err;
    size_t free_bytes, total_bytes;
    char total[DOCTOR_SIZE_BYTES], left[DOCTOR_SIZE_BYTES];
    if (zt_cpu_dev_create(&dev, NULL, 0, &err)) /* check_cpu() has said it */
        return;
    int rc = dev->ops->memory(dev, &free_bytes, &total_bytes, &err);
    zt_cpu_dev_free(dev);
    if (rc) {
        doctor_say(p, "memory", DOCTOR_FAIL, "is /proc there?", NULL, "%s", err.msg);
        return;
    }
    const int64_t all = number_of("/proc/meminfo", "MemTotal") * 1024;
    const bool little = free_bytes < total_bytes / 10;
    doctor_say(p, "memory", little ? DOCTOR_WARN : DOCTOR_OK,
               little ? "end what else runs there, or limit training with --host_memory" : NULL,
               json_pack("{s:I, s:I}", "total_bytes", (json_int_t)total_bytes, "free_bytes",
                         (json_int_t)free_bytes),
               "%s%s, %s free", zt_fmt_gib(total, sizeof total, (double)total_bytes),
               (int64_t)total_bytes < all ? " by its control group's limit" : "",
               zt_fmt_gib(left, sizeof left, (double)free_bytes));
}

static void check_swap(struct doctor_probe *p)
{
    const int64_t total = number_of("/proc/meminfo", "SwapTotal") * 1024;
    const int64_t used = total - number_of("/proc/meminfo", "SwapFree") * 1024;
    char t[DOCTOR_SIZE_BYTES], u[DOCTOR_SIZE_BYTES];
    if (total <= 0) {
        doctor_say(p, "swap", DOCTOR_OK, NULL, NULL, "none");
        return;
    }
    const bool much = used > (int64_t)gib;
    doctor_say(
        p, "swap", much ? DOCTOR_WARN : DOCTOR_OK,
        much ? "what is swapped out is slow to come back: free memory, or swapoff -a" : NULL,
        json_pack("{s:I, s:I}", "total_bytes", (json_int_t)total, "used_bytes", (json_int_t)used),
        "%s, %s of it used", zt_fmt_gib(t, sizeof t, (double)total),
        zt_fmt_gib(u, sizeof u, (double)used));
}

/* "always madvise [never]": is the word in brackets there? */
static void check_huge_pages(struct doctor_probe *p)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    struct zt_str text = {0};
    const char *line = line_of(path, "", &text), *at = strchr(line, '[');
    const bool never = !at || strncmp(at, "[never]", 7) == 0;
    char word[32] = "not in this kernel";
    if (at)
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at + 1, "]"), at + 1);
    doctor_say(p, "huge pages", never ? DOCTOR_WARN : DOCTOR_OK,
               never ? "arenas want them, and are slower without: echo madvise "
                       ">/sys/kernel/mm/transparent_hugepage/enabled"
                     : NULL,
               json_pack("{s:s}", "transparent", word), "transparent: %s", word);
    zt_str_release(&text);
}

static void check_shm(struct doctor_probe *p)
{
    struct statvfs fs;
    char total[DOCTOR_SIZE_BYTES], left[DOCTOR_SIZE_BYTES];
    const bool there = statvfs("/dev/shm", &fs) == 0;
    const double free_bytes = there ? (double)fs.f_bavail * (double)fs.f_frsize : 0;
    const double total_bytes = there ? (double)fs.f_blocks * (double)fs.f_frsize : 0;
    const bool little = p->n_gpus > 1 && free_bytes < (double)gib;
    doctor_say(p, "/dev/shm", little ? DOCTOR_WARN : DOCTOR_OK,
               little ? "NCCL uses it between GPUs: docker run --shm-size=8g, or mount -o "
                        "remount,size=8G /dev/shm"
                      : NULL,
               json_pack("{s:f, s:f}", "total_bytes", total_bytes, "free_bytes", free_bytes),
               "%s%s%s free%s", there ? zt_fmt_gib(total, sizeof total, total_bytes) : "none, ",
               there ? ", " : "", zt_fmt_gib(left, sizeof left, free_bytes),
               p->n_gpus > 1 ? "" : " (CPU workers do without)");
}

/* ---- limits ---- */

static const char *limit_text(rlim_t n, bool bytes, char *buf, size_t buf_bytes)
{
    if (n == RLIM_INFINITY)
        snprintf(buf, buf_bytes, "unlimited");
    else if (bytes)
        zt_fmt_gib(buf, buf_bytes, (double)n);
    else
        snprintf(buf, buf_bytes, "%llu", (unsigned long long)n);
    return buf;
}

static json_t *limit_facts(const struct rlimit *l)
{
    return json_pack(
        "{s:o, s:o}", "soft",
        l->rlim_cur == RLIM_INFINITY ? json_null() : json_integer((json_int_t)l->rlim_cur), "hard",
        l->rlim_max == RLIM_INFINITY ? json_null() : json_integer((json_int_t)l->rlim_max));
}

static void check_memlock(struct doctor_probe *p)
{
    struct rlimit l;
    char text[DOCTOR_SIZE_BYTES];
    if (getrlimit(RLIMIT_MEMLOCK, &l))
        return;
    const bool little = p->n_gpus > 0 && l.rlim_cur < 64 * mib;
    doctor_say(p, "memlock", little ? DOCTOR_WARN : DOCTOR_OK,
               little ? "pinned memory makes copies to GPUs and networks fast: `ulimit -l "
                        "unlimited`, limits.conf(5), or docker run --ulimit memlock=-1"
                      : NULL,
               limit_facts(&l), "%s%s", limit_text(l.rlim_cur, true, text, sizeof text),
               p->n_gpus > 0 ? "" : " (CPU workers lock nothing)");
}

/* Pipes and sockets of an agent for its workers, and of a worker for all ranks. */
static void check_open_files(struct doctor_probe *p)
{
    struct rlimit l;
    char text[DOCTOR_SIZE_BYTES], hard[DOCTOR_SIZE_BYTES];
    const rlim_t need = 64 + 8 * (rlim_t)json_integer_value(json_object_get(p->ask, "ranks"));
    if (getrlimit(RLIMIT_NOFILE, &l))
        return;
    const bool few = l.rlim_cur < need;
    doctor_say(p, "open files", few ? DOCTOR_FAIL : DOCTOR_OK,
               few ? "raise it: `ulimit -n 65536`, limits.conf(5)" : NULL, limit_facts(&l),
               "%s (at most %s)%s", limit_text(l.rlim_cur, false, text, sizeof text),
               limit_text(l.rlim_max, false, hard, sizeof hard),
               few ? "; fewer than this many ranks need" : "");
}

static double group_tasks(const char *dir)
{
    char path[4096];
    const int64_t most = number_of(in_dir(dir, "pids.max", path, sizeof path), "");
    const int64_t now = number_of(in_dir(dir, "pids.current", path, sizeof path), "");
    return most < 0 ? -1 : (double)ZT_MAX(most - ZT_MAX(now, (int64_t)0), (int64_t)0);
}

/* Threads count as processes. */
static void check_processes(struct doctor_probe *p)
{
    enum { OF_A_WORKER = 32 };
    struct rlimit l;
    char text[DOCTOR_SIZE_BYTES];
    const json_t *slots = json_array_get(json_object_get(p->ask, "slots"), (size_t)p->w.node);
    if (getrlimit(RLIMIT_NPROC, &l))
        return;
    const double room = least_of_groups(group_tasks);
    rlim_t left = geteuid() == 0 ? RLIM_INFINITY : l.rlim_cur;
    if (room >= 0)
        left = ZT_MIN(left, (rlim_t)room);
    const rlim_t need = OF_A_WORKER * (rlim_t)ZT_MAX(json_integer_value(slots), (json_int_t)1) +
                        (rlim_t)sysconf(_SC_NPROCESSORS_ONLN);
    const bool few = left < need;
    doctor_say(p, "processes", few ? DOCTOR_FAIL : DOCTOR_OK,
               few ? "raise it: `ulimit -u`, limits.conf(5); in a container --pids-limit" : NULL,
               NULL, "%s%s", limit_text(left, false, text, sizeof text),
               few ? "; fewer than the threads of its workers" : "");
}

/* ---- io_uring ---- */

#ifdef ZT_HAVE_URING
static int try_uring(void)
{
    struct io_uring ring;
    int rc = io_uring_queue_init(1, &ring, 0);
    if (!rc)
        io_uring_queue_exit(&ring);
    return -rc;
}
#endif

static void check_uring(struct doctor_probe *p)
{
    const char *matters = "offload to NVMe then goes by threads, which is slower";
    const bool nvme = json_is_string(json_object_get(p->ask, "nvme"));
    const enum doctor_verdict without = nvme ? DOCTOR_WARN : DOCTOR_OK;
#ifdef ZT_HAVE_URING
    const int no = try_uring();
    if (no)
        doctor_say(p, "io_uring", without,
                   nvme ? "allow it: sysctl kernel.io_uring_disabled=0; in a container another "
                          "seccomp profile"
                        : NULL,
                   NULL, "not allowed (%s): %s", strerror(no), matters);
    else
        doctor_say(p, "io_uring", DOCTOR_OK, NULL, NULL, "allowed");
#else
    doctor_say(p, "io_uring", without, nvme ? "build with liburing" : NULL, NULL,
               "not in this build: %s", matters);
#endif
}

/* ---- what changes a training from outside ---- */

static void check_variables(struct doctor_probe *p)
{
    extern char **environ;
    static const char *const prefixes[] = {"NCCL_", "CUDA_", "OMP_", "ZT_", "GOMP_", "KMP_"};
    struct zt_str text = {0};
    for (char **v = environ; *v; v++)
        for (size_t i = 0; i < ZT_ARRAY_LEN(prefixes); i++)
            if (strncmp(*v, prefixes[i], strlen(prefixes[i])) == 0 &&
                strncmp(*v, "ZT_JOB_", 7) != 0)
                zt_str_printf(&text, "%s%.100s", text.len ? " " : "", *v);
    if (text.len)
        doctor_say(p, "variables", DOCTOR_OK, NULL, NULL, "%s", text.buf);
    zt_str_release(&text);
}

void doctor_check_host(struct doctor_probe *p)
{
    check_system(p);
    check_cpu(p);
    check_memory(p);
    check_swap(p);
    check_huge_pages(p);
    check_shm(p);
    check_memlock(p);
    check_open_files(p);
    check_processes(p);
    check_uring(p);
    check_variables(p);
}
