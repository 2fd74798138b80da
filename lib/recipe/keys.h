/*
 * keys.h: the table of every key that a recipe may hold, and the values that it fills.
 *
 * Internal to lib/recipe. A key is carried out, harmless (accepted; a note gives the reason), or
 * refused (an error says why; a note when only planning). `ok` lists the values that mean "off" or
 * "as we do anyway": they are accepted silently whatever the status is.
 */
#ifndef ZT_RECIPE_KEYS_H
#define ZT_RECIPE_KEYS_H

#include "recipe/recipe.h"

enum zt_key_type {
    ZT_KEY_SECTION, /* a mapping of keys that stand in the table themselves */
    ZT_KEY_ANY,     /* not looked into */
    ZT_KEY_BOOL,
    ZT_KEY_INT,  /* int64_t */
    ZT_KEY_SIZE, /* int64_t; a fraction is cut off, with a note: tools compute such sizes */
    ZT_KEY_FLOAT,
    ZT_KEY_ENUM,    /* int: index in `ok`, then in `known` */
    ZT_KEY_WORD,    /* const char *: one of `ok`, or of `known` */
    ZT_KEY_STR,     /* const char * */
    ZT_KEY_PATH,    /* const char *; relative to the folder of the file that holds it */
    ZT_KEY_PATHS,   /* struct zt_str_list; one or a list */
    ZT_KEY_SOURCES, /* PATHS, or a list of {path, weight}; only data.train: and its weights */
    ZT_KEY_RANGE,   /* int64_t[2]: [begin, end), -1 open */
    ZT_KEY_PAIR,    /* double[2] */
    ZT_KEY_GROUPS,  /* struct zt_recipe_groups */
};

enum zt_key_status { ZT_KEY_CARRIED, ZT_KEY_HARMLESS, ZT_KEY_REFUSED };

struct zt_key {
    const char *path; /* dotted; "section.*" is every key of that section not listed itself */
    enum zt_key_type type;
    enum zt_key_status status;
    const char *dflt;   /* as YAML; NULL: none, or derived */
    double min, max;    /* INT, SIZE, FLOAT, PAIR; both 0: not checked */
    bool above, below;  /* greater than min, less than max, not equal */
    bool auto_is_value; /* INT: the word auto means -1, not that nothing is given */
    bool inf_is_max;    /* INT: infinity, as JSON or YAML writes it, means max */
    const char *ok;     /* "a|b" */
    const char *known;  /* ENUM, WORD: understood, but refused */
    size_t dest;        /* offset in struct zt_settings; ZT_NO_DEST: nowhere */
    const char *doc;    /* what it does, or why it is harmless or refused */
};

#define ZT_NO_DEST SIZE_MAX

/* scheduler.params as given; resolve_schedule.c makes one struct zt_schedule of them. */
struct zt_schedule_keys {
    int64_t warmup_steps; /* Constant, Cosine */
    int64_t total_steps;  /* Cosine, as min_lr */
    double min_lr;
    double warmup_min_lr, warmup_max_lr, warmup_min_ratio, cos_min_ratio;
    int64_t warmup_num_steps, total_num_steps;
    int warmup_type;
    double range_min_lr, range_step_rate;
    int64_t range_step_size;
    bool range_staircase;
    double cycle_min_lr, cycle_max_lr, cycle_min_mom, cycle_max_mom;
    int64_t cycle_first_step_size, cycle_first_stair_count;
    int64_t cycle_second_step_size, cycle_second_stair_count;
    bool cycle_momentum;
    int64_t decay_step_size;
    double decay_lr_rate, decay_mom_rate;
};

/*
 * The recipe, and what the table fills that has no place of its own in it. `r` stands first: the
 * recipe handed out is freed as a whole.
 */
struct zt_settings {
    struct zt_recipe r;
    struct zt_schedule_keys schedule;
    bool fp16, bf16, adam_w_mode;
    int scheduler; /* enum zt_schedule_kind */
    int policy, comm;
    int64_t recompute_every, number_checkpoints;
    const char *model_config, *device_memory, *host_memory;
    const char *nvme_path_optimizer, *nvme_path_param;
    double betas[2];
    const char *rope_type, *rope_type_old; /* rope_scaling.rope_type, .type */
    double rope_theta_new;                 /* rope_parameters.rope_theta */
    int64_t sliding_window;
    bool use_sliding_window;
    int64_t seed, zero_stage, threads, sample_top_k; /* narrower in the recipe */
};

/* Another name of a key, in the same section. */
struct zt_key_alias {
    const char *path, *canonical;
};

extern const struct zt_key zt_keys[];
extern const int zt_n_keys;
extern const struct zt_key_alias zt_key_aliases[];
extern const int zt_n_key_aliases;

/* The row of a path, "section.*" included; -1: nobody knows it. */
int zt_key_find(const char *path);

/* The name that the table uses for `path`: itself, or what it is another name of. */
const char *zt_key_canonical(const char *path);

/* What to try instead of the unknown `path`, as words (", did you mean ...") or "". */
const char *zt_key_suggest(const char *path, struct zt_arena *arena);

/* Is `word` in the "a|b" list (NULL: empty), whatever its case? Its index, or -1. */
int zt_word_index(const char *list, const char *word);
int zt_word_count(const char *list);
const char *zt_word_at(const char *list, int i, struct zt_arena *arena);

#endif
