#include "ckpt/hf.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/io.h"
#include "base/size.h"
#include "ckpt/folder.h"
#include "ckpt/safetensors_write.h"

/*
 * Before the writer's process number: what the next export may remove has a name that nobody gives; what was there,
 * set aside; and the files that zt_st_create() and io.h have begun.
 */
#define TEMP ".zerotrain-tmp."
#define OLD ".old."
#define BEGUN ".tmp."

enum { PIECE = 1 << 18 }; /* elements that are converted and written at a time */

static const char config_name[] = "config.json", one_name[] = "model.safetensors",
                  index_name[] = "model.safetensors.index.json";

/* What may stand beside the weights and belongs to the tokenizer, or to how text is generated. */
static const char *const companions[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
    "chat_template.json",
    "chat_template.jinja",
    "generation_config.json",
};

struct writing {
    const struct zt_hf_opts *o;
    const struct zt_hf_source *source;
    struct zt_hf_result *result;
    char *dir; /* the temporary folder */
    int lock;  /* of it; -1: none */
    struct zt_arena arena;
    struct zt_st_entry *entries; /* (model->n_params) */
    int *shard;                  /* (model->n_params), from 0 */
    int n_shards;
    float *in;      /* (PIECE) */
    uint16_t *half; /* (PIECE) */
};

static const char *path_in(struct writing *w, const char *dir, const char *name)
{
    return zt_arena_printf(&w->arena, "%s/%s", dir, name);
}

/* ---- which folders may be written ---- */

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && strcmp(s + n - k, suffix) == 0;
}

static bool is_exports_file(const char *name)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(companions); i++) {
        if (strcmp(name, companions[i]) == 0)
            return true;
    }
    return strcmp(name, config_name) == 0 || strcmp(name, index_name) == 0 ||
           (strncmp(name, "model", 5) == 0 && has_suffix(name, ".safetensors"));
}

static bool is_mount_point(const char *dir)
{
    struct zt_str above = {0};
    struct statx x;
    struct stat st, up;
    if (statx(AT_FDCWD, dir, 0, 0, &x) == 0 && (x.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT))
        return x.stx_attributes & STATX_ATTR_MOUNT_ROOT;
    zt_str_printf(&above, "%s/..", dir);
    const bool is = stat(dir, &st) == 0 && stat(above.buf, &up) == 0 && st.st_dev != up.st_dev;
    zt_str_release(&above);
    return is;
}

/* Nothing that no folder can be renamed onto: the kernel would say so when all is written. */
static int check_place(const char *dir, struct zt_err *err)
{
    struct stat link, st, here;
    if (lstat(dir, &link)) /* nothing is there; what else is wrong comes out soon */
        return 0;
    if (stat(dir, &st))
        return zt_err_errno(err, ZT_EINPUT, "%s", dir);
    if (stat(".", &here) == 0 && st.st_dev == here.st_dev && st.st_ino == here.st_ino)
        return zt_err_set(err, ZT_EINPUT,
                          "%s: is the current folder, which cannot be replaced as a whole; name a "
                          "folder in it",
                          dir);
    if (S_ISDIR(st.st_mode) && is_mount_point(dir))
        return zt_err_set(
            err, ZT_EINPUT,
            "%s: is a mount point, which cannot be replaced as a whole; name a folder "
            "in it",
            dir);
    return 0;
}

static const char *without_slashes(struct zt_arena *a, const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    return zt_arena_printf(a, "%.*s", (int)n, dir);
}

/* What a rename can replace: not the link to a folder, and neither "a/." nor "a/..". */
static const char *real_place(struct zt_arena *a, const char *dir)
{
    const char *plain = without_slashes(a, dir), *slash = strrchr(plain, '/');
    const char *name = slash ? slash + 1 : plain;
    struct stat st;
    const bool is_link = lstat(plain, &st) == 0 && S_ISLNK(st.st_mode);
    if (!is_link && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
        return plain;
    char *real = realpath(plain, NULL);
    if (real)
        plain = zt_arena_strdup(a, real);
    free(real);
    return plain;
}

static int check_contents(const char *dir, bool force, struct zt_err *err)
{
    struct zt_dir d;
    int rc = zt_dir_open(&d, dir, err);
    if (rc)
        return d.missing ? 0 : rc;
    for (const char *name; !rc && (name = zt_dir_next(&d));) {
        if (!force)
            rc = zt_err_set(err, ZT_EINPUT,
                            "%s: is not empty; name another folder, or give --force to replace the "
                            "model in it",
                            dir);
        else if (!is_exports_file(name))
            rc = zt_err_set(err, ZT_EINPUT,
                            "%s: holds %.200s, which is no part of a model; --force replaces "
                            "exported models only",
                            dir, name);
    }
    return zt_dir_close(&d, rc, err);
}

int zt_hf_check(const char *dir, bool force, struct zt_err *err)
{
    struct zt_arena a = {0};
    int rc = check_place(without_slashes(&a, dir), err);
    zt_arena_release(&a);
    return rc ? rc : check_contents(dir, force, err);
}

/* ---- files ---- */

/* Where each tensor goes: the next shard begins where one would become too large. */
static void assign_shards(struct writing *w)
{
    const struct zt_model *m = w->o->model;
    size_t in_shard = 0, elem = zt_dtype_bytes(w->o->dtype);
    for (int i = 0; i < m->n_params; i++) {
        size_t bytes = (size_t)m->params[i].n_elems * elem;
        if (in_shard &&
            (bytes > w->o->max_shard_bytes || in_shard > w->o->max_shard_bytes - bytes)) {
            w->n_shards++;
            in_shard = 0;
        }
        w->shard[i] = w->n_shards;
        in_shard += bytes;
        w->result->bytes += bytes;
        w->result->n_elems += m->params[i].n_elems;
    }
    w->n_shards++;
}

static void name_tensors(struct writing *w)
{
    const struct zt_model *m = w->o->model;
    const char *prefix = m->cfg.type == ZT_MODEL_GPT2 ? "transformer." : "model.";
    for (int i = 0; i < m->n_params; i++) {
        const struct zt_param_spec *p = &m->params[i];
        bool head = strcmp(p->name, "lm_head.weight") == 0;
        w->entries[i] = (struct zt_st_entry){
            .name = zt_arena_printf(&w->arena, "%s%s", head ? "" : prefix, p->name),
            .dtype = w->o->dtype,
            .n_dims = p->n_dims,
            .dims = p->dims,
        };
    }
}

static const char *shard_name(struct writing *w, int shard)
{
    if (w->n_shards == 1)
        return one_name;
    return zt_arena_printf(&w->arena, "model-%05d-of-%05d.safetensors", shard + 1, w->n_shards);
}

static bool is_finite(float x)
{
    return (zt_f32_bits(x) & 0x7f800000u) != 0x7f800000u;
}

/* w->in as the file's type; what to write of it. */
static int convert(struct writing *w, int param, int64_t n, const void **bytes, struct zt_err *err)
{
    *bytes = w->o->dtype == ZT_F32 ? (const void *)w->in : w->half;
    if (w->o->dtype == ZT_BF16) {
        for (int64_t i = 0; i < n; i++)
            w->half[i] = zt_f32_to_bf16(w->in[i]);
    } else if (w->o->dtype == ZT_F16) {
        for (int64_t i = 0; i < n; i++) {
            w->half[i] = zt_f32_to_f16(w->in[i]);
            if ((w->half[i] & 0x7c00) == 0x7c00 && is_finite(w->in[i]))
                return zt_err_set(err, ZT_EINPUT,
                                  "%s: a value of %g is too large for fp16; use bf16 or fp32",
                                  w->o->model->params[param].name, (double)w->in[i]);
        }
    }
    return 0;
}

static int write_tensor(struct writing *w, int param, struct zt_st_writer *out, struct zt_err *err)
{
    int64_t n_elems = w->o->model->params[param].n_elems;
    size_t elem = zt_dtype_bytes(w->o->dtype);
    int rc = 0;
    for (int64_t at = 0; at < n_elems && !rc; at += PIECE) {
        int64_t n = ZT_MIN(n_elems - at, (int64_t)PIECE);
        const void *bytes;
        rc = w->source->read(w->source->ctx, param, at, n, w->in, err);
        if (!rc)
            rc = convert(w, param, n, &bytes, err);
        if (!rc)
            rc = zt_st_append(out, bytes, (size_t)n * elem, err);
    }
    return rc;
}

/* The tensors [first, end) as one file. */
static int write_shard(struct writing *w, int first, int end, struct zt_err *err)
{
    static const struct zt_st_meta format = {"format", "pt"};
    const char *path = path_in(w, w->dir, shard_name(w, w->shard[first]));
    struct zt_st_writer out = {0};
    struct zt_str header = {0};
    size_t bytes;
    int rc = zt_st_header(w->entries + first, end - first, &format, 1, &header, &bytes, err);
    if (!rc)
        rc = zt_st_create(path, &header, bytes, &out, err);
    for (int i = first; i < end && !rc; i++)
        rc = write_tensor(w, i, &out, err);
    if (!rc)
        rc = zt_st_commit(&out, err);
    zt_st_abandon(&out);
    zt_str_release(&header);
    return rc;
}

static int write_index(struct writing *w, struct zt_err *err)
{
    const struct zt_hf_result *r = w->result;
    json_t *map = json_object();
    for (int i = 0; i < w->o->model->n_params; i++)
        json_object_set_new(map, w->entries[i].name, json_string(shard_name(w, w->shard[i])));
    json_t *root =
        json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters", (json_int_t)r->n_elems,
                  "total_size", (json_int_t)r->bytes, "weight_map", map);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS);
    int rc = text ? zt_write_file_atomic(path_in(w, w->dir, index_name), text, strlen(text), err)
                  : zt_err_set(err, ZT_ENOMEM, "out of memory");
    free(text);
    json_decref(root);
    return rc;
}

static int write_weights(struct writing *w, struct zt_err *err)
{
    int n = w->o->model->n_params, rc = 0;
    for (int first = 0, end; first < n && !rc; first = end) {
        for (end = first + 1; end < n && w->shard[end] == w->shard[first];)
            end++;
        rc = write_shard(w, first, end, err);
    }
    return rc || w->n_shards == 1 ? rc : write_index(w, err);
}

static int write_config(struct writing *w, struct zt_err *err)
{
    struct zt_str text = {0};
    int rc = zt_hf_config(w->o, &text, err);
    if (!rc)
        rc = zt_write_file_atomic(path_in(w, w->dir, config_name), text.buf, text.len, err);
    zt_str_release(&text);
    return rc;
}

static int copy_companions(struct writing *w, struct zt_err *err)
{
    int rc = 0;
    for (size_t i = 0; w->o->from && i < ZT_ARRAY_LEN(companions) && !rc; i++) {
        const char *from = path_in(w, w->o->from, companions[i]);
        struct zt_mapped map;
        if (access(from, F_OK))
            continue;
        rc = zt_map_file(from, &map, err);
        if (rc)
            break;
        rc = zt_write_file_atomic(path_in(w, w->dir, companions[i]), map.data, map.bytes, err);
        zt_unmap_file(&map);
        w->result->n_copied += !rc;
    }
    return rc;
}

/* ---- the folder ---- */

/* What was begun, after a failure that has its own message. */
static void discard(const char *path)
{
    struct zt_err ignored;
    int rc = zt_ckpt_remove(path, &ignored);
    (void)rc;
}

/*
 * Others leave the folder alone as long as the descriptor is open. Without locks on this file system the number of
 * our process must do, and the time.
 */
static int lock_folder(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        (void)!flock(fd, LOCK_EX | LOCK_NB);
    return fd;
}

/* The finished folder and `dir` change places where the file system cannot do that at once. */
static int swap(struct writing *w, const char *dir, struct zt_err *err)
{
    const char *aside = zt_arena_printf(&w->arena, "%s" OLD "%ld", dir, (long)getpid());
    int rc = 0;
    if (rename(dir, aside))
        return zt_err_errno(err, ZT_EIO, "%s: rename to %s", dir, aside);
    if (rename(w->dir, dir)) {
        rc = zt_err_errno(err, ZT_EIO, "%s: rename", dir);
        if (rename(aside, dir))
            zt_err_wrap(err, "%s is now %s", dir, aside);
    } else if (rename(aside, w->dir)) {
        rc = zt_err_errno(err, ZT_EIO, "%s is written; what was there is now %s: rename", dir,
                          aside);
    }
    return rc;
}

/* Give the finished folder its name. One that may be replaced gets the temporary name. */
static int take_name(struct writing *w, const char *dir, struct zt_err *err)
{
    if (rename(w->dir, dir) == 0) /* nothing is there, or an empty folder */
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return zt_err_errno(err, ZT_EIO, "%s: rename", dir);
    int rc = check_contents(dir, w->o->force, err);
    if (rc || renameat2(AT_FDCWD, w->dir, AT_FDCWD, dir, RENAME_EXCHANGE) == 0)
        return rc;
    return swap(w, dir, err);
}

static bool take_entry(int fd, const char *entry, time_t *written)
{
    struct stat st;
    char name[256];
    const char *begun = strstr(entry, BEGUN);
    snprintf(name, sizeof name, "%.*s", begun ? (int)(begun - entry) : 255, entry);
    if (!is_exports_file(name) || fstatat(fd, entry, &st, AT_SYMLINK_NOFOLLOW))
        return false;
    *written = ZT_MAX(*written, st.st_mtime);
    return true;
}

/*
 * Holds files of an export and nothing else, whole or begun ("NAME.tmp.PID"). *written: when the folder or a file in it
 * last was.
 */
static bool is_exports_folder(const char *path, time_t *written)
{
    struct zt_dir d;
    struct zt_err ignored;
    struct stat st;
    if (zt_dir_open(&d, path, &ignored))
        return false;
    bool good = fstat(zt_dir_fd(&d), &st) == 0;
    *written = good ? st.st_mtime : 0;
    for (const char *name; good && (name = zt_dir_next(&d));)
        good = take_entry(zt_dir_fd(&d), name, written);
    return zt_dir_close(&d, 0, &ignored) == 0 && good;
}

/*
 * What a killed export to the same folder left, and nobody on another host of the shared file system holds
 * the lock of. What cannot be removed, or listed, stays, and is in nobody's way.
 */
static void remove_leftover(struct writing *w, const char *parent, const char *name,
                            const char *pid)
{
    const char *path = path_in(w, parent, name);
    time_t written;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && is_exports_folder(path, &written) &&
        zt_is_leftover(pid, written))
        discard(path);
    close(fd);
}

static void remove_leftovers(struct writing *w, const char *parent, const char *dir)
{
    const char *slash = strrchr(dir, '/'), *base = slash ? slash + 1 : dir;
    const char *prefix = zt_arena_printf(&w->arena, "%s" TEMP, base);
    struct zt_dir d;
    struct zt_err ignored;
    if (zt_dir_open(&d, parent, &ignored))
        return;
    for (const char *name; (name = zt_dir_next(&d));)
        if (strncmp(name, prefix, strlen(prefix)) == 0)
            remove_leftover(w, parent, name, name + strlen(prefix));
    (void)!zt_dir_close(&d, 0, &ignored);
}

static const char *parent_of(struct writing *w, const char *dir)
{
    const char *slash = strrchr(dir, '/');
    if (!slash)
        return ".";
    return slash == dir ? "/" : zt_arena_printf(&w->arena, "%.*s", (int)(slash - dir), dir);
}

/* All that belongs into the temporary folder, on the disk. */
static int fill_folder(struct writing *w, struct zt_err *err)
{
    int rc = write_weights(w, err);
    if (!rc)
        rc = copy_companions(w, err);
    if (!rc)
        rc = write_config(w, err);
    return rc ? rc : zt_fsync_dir(w->dir, err);
}

static int write_folder(struct writing *w, const char *dir, struct zt_err *err)
{
    const char *parent = parent_of(w, dir);
    int rc = zt_make_dirs(parent, err);
    if (rc)
        return rc;
    remove_leftovers(w, parent, dir);
    if (mkdir(w->dir, 0777))
        return zt_err_errno(err, ZT_EIO, "%s: mkdir", w->dir);
    w->lock = lock_folder(w->dir);
    rc = fill_folder(w, err);
    if (!rc)
        rc = take_name(w, dir, err);
    if (rc) {
        discard(w->dir);
        return rc;
    }
    rc = zt_fsync_dir(parent, err); /* before what was there is gone */
    return rc ? rc : zt_ckpt_remove(w->dir, err);
}

int zt_hf_write(const struct zt_hf_opts *o, const struct zt_hf_source *source,
                struct zt_hf_result *result, struct zt_err *err)
{
    struct writing w = {.o = o, .source = source, .result = result, .lock = -1};
    size_t n = (size_t)o->model->n_params;
    ZT_ASSERT(o->dtype == ZT_F32 || o->dtype == ZT_BF16 || o->dtype == ZT_F16);
    int rc = zt_hf_check(o->dir, o->force, err);
    if (rc)
        return rc;
    const char *dir = real_place(&w.arena, o->dir);
    w.dir = zt_arena_printf(&w.arena, "%s" TEMP "%ld", dir, (long)getpid());
    w.entries = zt_arena_alloc(&w.arena, n, sizeof *w.entries);
    w.shard = zt_arena_alloc(&w.arena, n, sizeof *w.shard);
    w.in = zt_arena_alloc(&w.arena, PIECE, sizeof *w.in);
    w.half = zt_arena_alloc(&w.arena, PIECE, sizeof *w.half);
    *result = (struct zt_hf_result){.n_tensors = (int)n};
    assign_shards(&w);
    name_tensors(&w);
    result->n_shards = w.n_shards;
    rc = write_folder(&w, dir, err);
    if (w.lock >= 0)
        close(w.lock);
    zt_arena_release(&w.arena);
    return rc;
}
