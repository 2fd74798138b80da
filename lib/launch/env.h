/*
 * env.h: environments as lists of "NAME=value", split at the first '=', values byte for byte (CASES
 * L10). A NAME is letters, digits and '_', not starting with a digit; a value is anything but NUL.
 */
#ifndef ZT_LAUNCH_ENV_H
#define ZT_LAUNCH_ENV_H

#include "base/err.h"
#include "base/str.h"

/* Owns its strings. v ends with NULL once anything was set; zero-initialised is empty. */
struct zt_env {
    char **v;
    size_t n, cap;
};

/* One entry as a user gave it, for instance with --env. */
int zt_env_check(const char *entry, size_t len, struct zt_err *err) ZT_MUST_CHECK;

/* Add an entry (already checked), in the place of one with the same name. */
void zt_env_set(struct zt_env *e, const char *entry, size_t len);
void zt_env_setf(struct zt_env *e, const char *fmt, ...) ZT_PRINTF(2, 3);
void zt_env_unset(struct zt_env *e, const char *name);
const char *zt_env_get(const struct zt_env *e, const char *name); /* the value, or NULL */
void zt_env_add_all(struct zt_env *e, char *const *entries);      /* such as environ */
void zt_env_release(struct zt_env *e);

/*
 * A file of entries, one a line; blank lines and lines that start with '#' are skipped, nothing is
 * unquoted or expanded. Every bad line is reported, by number, in one message; then *out is
 * unchanged. `path` is for messages in parse.
 */
int zt_env_parse(const char *path, const char *text, size_t len, struct zt_env *out,
                 struct zt_err *err) ZT_MUST_CHECK;
int zt_env_read_file(const char *path, struct zt_env *out, struct zt_err *err) ZT_MUST_CHECK;

/*
 * What DeepSpeed exports to the hosts of a hostfile: the file that DS_ENV_FILE names (not ""), which must be there;
 * else .deepspeed_env at home, then in the current folder, which wins, where they are. `notes` gets a line
 * "note: ..." for each that was read.
 */
int zt_env_read_deepspeed(struct zt_env *out, struct zt_str *notes,
                          struct zt_err *err) ZT_MUST_CHECK;

/*
 * Those variables of `from` that mean the same on another host: of NCCL, CUDA, OpenMP, UCX,
 * Python and ours, by prefix; never those that name devices, descriptors or files of this host.
 */
void zt_env_add_for_remote(struct zt_env *e, const struct zt_env *from);

#endif
