#include "doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "offload/disk.h"

/* Of `path` the part that there is: itself, or a folder above it, in which it would be made. */
static void existing(const char *path, struct zt_str *out)
{
    zt_str_puts(out, path);
    while (access(out->buf, F_OK) && out->len > 1) {
        char *slash = strrchr(out->buf, '/');
        out->len = slash && slash > out->buf ? (size_t)(slash - out->buf) : 1;
        out->buf[out->len] = '\0';
    }
}

/* A folder in it, for a moment: 0 or errno. Rights do not tell: root may write /proc, and nobody can make one there. */
static int try_making(const char *dir)
{
    struct zt_str path = {0};
    zt_str_printf(&path, "%s/.zerotrain-doctor-XXXXXX", dir);
    const int no = mkdtemp(path.buf) && !rmdir(path.buf) ? 0 : errno;
    zt_str_release(&path);
    return no;
}

/* A file in it, without a name: nothing is left when we die. 0 or errno. */
static int try_writing(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) {
        int rc = write(fd, "zerotrain", 9) == 9 ? 0 : errno ? errno : ENOSPC;
        close(fd);
        return rc;
    }
    if (errno == EOPNOTSUPP || errno == EISDIR) /* such files are not known there */
        return try_making(dir);
    return errno;
}

static void check_folder(struct doctor_probe *p, const char *name, const char *path, bool writes)
{
    struct zt_str dir = {0};
    struct statvfs fs = {0};
    char left[DOCTOR_SIZE_BYTES], total[DOCTOR_SIZE_BYTES];
    existing(path, &dir);
    const bool there = *path && strcmp(dir.buf, path) == 0; /* "": ours has been removed */
    const bool lacks = !there && !writes;
    const int no = lacks     ? ENOENT
                   : !writes ? 0
                   : there   ? try_writing(dir.buf)
                             : try_making(dir.buf);
    const double free_bytes = statvfs(dir.buf, &fs) ? 0 : (double)fs.f_bavail * (double)fs.f_frsize;
    const bool little = writes && free_bytes < (double)(1 << 30);
    if (no)
        doctor_say(p, name, DOCTOR_FAIL,
                   lacks ? "every host needs it by this path: share it, or make it there"
                         : "make it writable for this user, or name another",
                   NULL, "%s: %s", *path ? path : "the current folder", strerror(no));
    else
        doctor_say(p, name, little ? DOCTOR_WARN : DOCTOR_OK,
                   little ? "there is hardly any room: remove something, or name another" : NULL,
                   json_pack("{s:s, s:f, s:f}", "path", path, "free_bytes", free_bytes,
                             "total_bytes", (double)fs.f_blocks * (double)fs.f_frsize),
                   "%s%s: %s free of %s", path, there ? "" : " (it will be made)",
                   zt_fmt_gib(left, sizeof left, free_bytes),
                   zt_fmt_gib(total, sizeof total, (double)fs.f_blocks * (double)fs.f_frsize));
    zt_str_release(&dir);
}

/* As offload would use it. */
static void check_drive(struct doctor_probe *p, const char *dir)
{
    const struct zt_disk_opts opts = {
        .dir = dir, .bytes = 1 << 20, .block_bytes = 1 << 20, .queue_depth = 4, .n_threads = 1};
    struct zt_disk *disk;
    struct zt_err err;
    check_folder(p, "nvme folder", dir, true);
    if (zt_disk_open(&opts, &disk, &err)) {
        doctor_say(p, "nvme I/O", DOCTOR_FAIL, "offload to NVMe needs it; name another nvme_path",
                   NULL, "%s", err.msg);
        return;
    }
    const bool best = strstr(zt_disk_describe(disk), "io_uring,") != NULL;
    doctor_say(p, "nvme I/O", best ? DOCTOR_OK : DOCTOR_WARN,
               best ? NULL : "it works, but slower than by io_uring with direct I/O", NULL, "%s",
               zt_disk_describe(disk));
    zt_disk_close(disk);
}

/* Data and weights, by paths or patterns, that every host reads. */
static void check_reads(struct doctor_probe *p)
{
    const json_t *paths = json_object_get(p->ask, "reads"), *path;
    size_t i, n = json_array_size(paths);
    json_array_foreach(paths, i, path)
    {
        const char *pattern = json_string_value(path);
        glob_t found;
        const int none = glob(pattern, GLOB_NOSORT, NULL, &found);
        const bool no = none || access(found.gl_pathv[0], R_OK);
        const char *why = none ? "not there" : strerror(errno);
        if (no)
            doctor_say(p, "data", DOCTOR_FAIL,
                       "every host reads it by this path: share its folder, or copy it there", NULL,
                       "%s: %s", pattern, why);
        globfree(&found);
        if (no)
            return;
    }
    if (n)
        doctor_say(p, "data", DOCTOR_OK, NULL, NULL, "what the recipe reads is there");
}

void doctor_check_folders(struct doctor_probe *p)
{
    json_t *folder;
    size_t i;
    const char *nvme = json_string_value(json_object_get(p->ask, "nvme"));
    json_array_foreach(json_object_get(p->ask, "folders"), i, folder)
        check_folder(p, json_string_value(json_object_get(folder, "check")),
                     json_string_value(json_object_get(folder, "path")),
                     json_is_true(json_object_get(folder, "writes")));
    check_reads(p);
    if (nvme)
        check_drive(p, nvme);
}
