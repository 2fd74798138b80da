#include "recipe/keys.h"

#include <strings.h>

int zt_key_find(const char *path)
{
    const char *dot = strrchr(path, '.');
    size_t section_len = dot ? (size_t)(dot - path) + 1 : 0;
    int wildcard = -1;
    for (int i = 0; i < zt_n_keys; i++) {
        const char *p = zt_keys[i].path;
        if (strcmp(p, path) == 0)
            return i;
        if (section_len && strncmp(p, path, section_len) == 0 && strcmp(p + section_len, "*") == 0)
            wildcard = i;
    }
    return wildcard;
}

const char *zt_key_canonical(const char *path)
{
    for (int i = 0; i < zt_n_key_aliases; i++) {
        if (strcmp(zt_key_aliases[i].path, path) == 0)
            return zt_key_aliases[i].canonical;
    }
    return path;
}

static const char *leaf_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* Does `path` stand directly in the section that the first `len` bytes of `section` name? */
static bool in_section(const char *path, const char *section, size_t len)
{
    return strncmp(path, section, len) == 0 && !strchr(path + len, '.') && path[len] != '*';
}

/* What others call it, which is near no name. */
static const char *by_other_word(const char *leaf)
{
    static const char *const words[][2] = {
        {"learning_rate", "optimizer.params.lr"},
        {"beta1", "optimizer.params.betas"},
        {"beta2", "optimizer.params.betas"},
        {"max_steps", "train.steps"},
        {"num_train_epochs", "train.epochs"},
        {"micro_batch_size", "train_micro_batch_size_per_gpu"},
        {"batch_size", "train_micro_batch_size_per_gpu"},
        {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
        {"max_grad_norm", "gradient_clipping"},
        {"zero_stage", "zero_optimization.stage"},
        {"save_steps", "checkpoint.every_steps"},
        {"save_total_limit", "checkpoint.keep"},
        {"output_dir", "checkpoint.dir"},
        {"eval_steps", "train.eval_every"},
        {"logging_steps", "steps_per_print"},
        {"block_size", "data.seq_len"},
        {"max_seq_length", "data.seq_len"},
        {"model_name_or_path", "model.from"},
        {"train_file", "data.train"},
        {"model", "model.from"},
        {"data", "data.train"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(words); i++)
        if (strcmp(words[i][0], leaf) == 0)
            return words[i][1];
    return NULL;
}

const char *zt_recipe_key_named(const char *word)
{
    const char *other = by_other_word(word);
    for (int i = 0; i < zt_n_keys && !other; i++) {
        const char *p = zt_keys[i].path, *leaf = leaf_of(p);
        const size_t len = strlen(word);
        if (zt_keys[i].status != ZT_KEY_CARRIED || zt_keys[i].type == ZT_KEY_SECTION)
            continue;
        if (strcmp(leaf, word) == 0 ||
            (strncmp(p, word, len) == 0 && strcmp(p + len, ".enabled") == 0))
            other = p;
    }
    return other;
}

const char *zt_key_suggest(const char *path, struct zt_arena *arena)
{
    const char *leaf = leaf_of(path);
    size_t section_len = (size_t)(leaf - path);
    size_t max = (size_t)zt_n_keys + (size_t)zt_n_key_aliases, n = 0;
    const char **names = zt_xcalloc(max, sizeof *names);
    const char *elsewhere = NULL;
    for (size_t i = 0; i < max; i++) {
        const char *p =
            i < (size_t)zt_n_keys ? zt_keys[i].path : zt_key_aliases[i - (size_t)zt_n_keys].path;
        if (in_section(p, path, section_len))
            names[n++] = leaf_of(p);
        if (!elsewhere && strcmp(leaf_of(p), leaf) == 0)
            elsewhere = p;
    }
    const char *near = zt_nearest(leaf, names, n);
    free(names);
    if (elsewhere)
        return zt_arena_printf(arena, "; it belongs at %s", elsewhere);
    if (!near && by_other_word(leaf))
        return zt_arena_printf(arena, "; did you mean %s?", by_other_word(leaf));
    return near ? zt_arena_printf(arena, "; did you mean \"%s\"?", near) : "";
}

int zt_word_index(const char *list, const char *word)
{
    size_t len = strlen(word);
    int i = 0;
    for (const char *p = list; p && *p; i++) {
        size_t n = strcspn(p, "|");
        if (n == len && strncasecmp(p, word, n) == 0)
            return i;
        p += n + (p[n] == '|');
    }
    return -1;
}

int zt_word_count(const char *list)
{
    int n = list && *list ? 1 : 0;
    for (const char *p = list; p && *p; p++)
        n += *p == '|';
    return n;
}

const char *zt_word_at(const char *list, int i, struct zt_arena *arena)
{
    const char *p = list;
    for (; i > 0; i--)
        p += strcspn(p, "|") + 1;
    return zt_arena_printf(arena, "%.*s", (int)strcspn(p, "|"), p);
}
