/*
 * inspect.h: what `zerotrain inspect` finds out, as one JSON object; --json prints it, and without it
 * the same is printed for a person.
 */
#ifndef ZT_CMD_INSPECT_H
#define ZT_CMD_INSPECT_H

#include <jansson.h>

#include "base/err.h"
#include "base/io.h"

struct inspection {
    const char *path;
    bool verify;
    json_t *root;     /* keys in the order in which they are to be read */
    json_t *problems; /* strings; anything in it makes what was inspected invalid */
};

void inspect_set(struct inspection *in, const char *key, json_t *value); /* takes the value over */
void inspect_int(struct inspection *in, const char *key, int64_t value);
void inspect_str(struct inspection *in, const char *key, const char *value);
void inspect_problem(struct inspection *in, const char *text);

/*
 * Each returns 0, with problems noted, or an error: it is no such thing, or damaged beyond what can be
 * told.
 */
int inspect_safetensors(struct inspection *in, const char *path, struct zt_err *err) ZT_MUST_CHECK;
int inspect_hf_folder(struct inspection *in, const char *dir, struct zt_err *err) ZT_MUST_CHECK;
int inspect_checkpoint(struct inspection *in, const char *path, struct zt_err *err) ZT_MUST_CHECK;
/* The folder of a run: which checkpoints it has, and all of the newest valid one. */
int inspect_run(struct inspection *in, const char *dir, struct zt_err *err) ZT_MUST_CHECK;
int inspect_llmc_model(struct inspection *in, const struct zt_mapped *map,
                       struct zt_err *err) ZT_MUST_CHECK;
/* Token files by content; a Megatron pair by either name. */
int inspect_tokens(struct inspection *in, const struct zt_mapped *map,
                   struct zt_err *err) ZT_MUST_CHECK;

/*
 * For a person: "key  value" lines; "bytes" with a rounded size; lists of objects as tables. What comes
 * from files is printed without control characters.
 */
void inspect_print(const json_t *root, FILE *out);

#endif
