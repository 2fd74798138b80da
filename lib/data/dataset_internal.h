/*
 * dataset_internal.h: what dataset.c (opening) and sample.c (reading) share.
 */
#ifndef ZT_DATA_DATASET_INTERNAL_H
#define ZT_DATA_DATASET_INTERNAL_H

#include "base/arena.h"
#include "base/io.h"
#include "data/blend.h"
#include "data/data.h"
#include "data/token_file.h"

/* The part of a file that lies in the range. */
struct zt_data_part {
    struct zt_mapped map;
    struct zt_mapped index, mask; /* empty if there is none */
    struct zt_token_file file;
    const char *index_name, *mask_name; /* NULL: none */
    int64_t begin, n;                   /* tokens of the file */
    int64_t first; /* of these, in the set: its first sample; packed: its first token */
};

/* Parts, or sources that take turns. */
struct zt_dataset {
    struct zt_dataset_opts opts;
    struct zt_dataset **sources; /* (blend.n_sources) heap; NULL: parts */
    struct zt_blend blend;
    struct zt_arena arena;
    struct zt_data_part *parts; /* heap; by `first` */
    size_t n_parts, parts_cap;
    int64_t n_samples;
    int64_t n_tokens;   /* inside the range, of all files */
    int64_t all_tokens; /* of all files */
    int64_t longest;    /* tokens of the longest part */
    size_t n_taken;     /* files that are data, inside the range or not */
    int n_files;        /* that overlap the range */
    int n_short;        /* of these: too short for a sample */
    int n_left_out;
    const char *first_name; /* decides the kind of all */
    enum zt_token_kind kind;
};

#endif
