/*
 * data.h: token files as samples.
 *
 * A dataset is a list of mapped files, each a run of tokens: text as bytes (vocabulary 256), llm.c
 * files (GPT-2 uint16, Llama 3 uint32), raw uint16, Megatron pairs. Sample i covers T + 1 = seq_len +
 * 1 tokens, inputs the first T and targets the last T of them:
 *
 *   packing none        tokens [i * T, i * T + T] of its file; samples do not cross files, and a
 *                       file's last tokens that fill no sample are not seen
 *   packing documents   tokens [i * T, i * T + T] of all files one after the other. A document ends
 *                       with its separator token, where a Megatron index says so, and with its file.
 *                       Attention and positions restart with each document (a document cut by a
 *                       sample's border starts anew in the next), and its last token has no target
 *
 * A mask file holds a byte for each token of its token file: 0 where the token is no target, 1
 * where it is (anything else is an error when it is read).
 *
 * With weights, each path is a source of its own that has its own samples and order, and sources
 * take turns (data/blend.h).
 *
 * Any position of the data order is a sample index through a keyed permutation of [0, n_samples),
 * a new one each epoch. Files may be larger than memory; nothing is read before it is needed
 * (opening touches the first 8 KiB of each, and all of an index). Contents are checked: an id that is not below
 * vocab_size is an error with file and position, never looked up. Files must not be shortened while
 * they are open. All files of a dataset have one kind (data/token_file.h tells the kinds and how
 * they are recognised).
 *
 * A file that is named, or matched by a pattern, must be usable. From a folder (data/paths.h) those
 * that are no data are left out and counted: binary files for text, all but *.bin for the other
 * formats.
 */
#ifndef ZT_DATA_DATA_H
#define ZT_DATA_DATA_H

#include "base/err.h"
#include "base/mark.h"
#include "base/str.h"
#include "recipe/recipe.h"

struct zt_dataset;

struct zt_dataset_opts {
    struct zt_str_list paths; /* files, globs, directories (read recursively, in sorted order) */
    const double *weights;    /* of each path; NULL: one set of samples */
    enum zt_data_format format;
    int64_t seq_len;
    int64_t vocab_size;
    int64_t range[2]; /* [begin, end) tokens of the concatenation of all files; -1: open */
    bool packed;
    int64_t separator;        /* packed: the token that ends a document; -1: none */
    struct zt_str_list masks; /* like paths: one mask file for each token file; n 0: none */
    bool shuffle;
    uint64_t seed;
};

/* A dataset without a single sample is ZT_EINPUT; so is a range that the files do not fill. */
int zt_dataset_open(const struct zt_dataset_opts *opts, struct zt_dataset **out,
                    struct zt_err *err) ZT_MUST_CHECK;
void zt_dataset_free(struct zt_dataset *d);

/* Samples of an epoch (of all sources, with weights: there is no epoch of the whole); tokens inside the range. */
int64_t zt_dataset_samples(const struct zt_dataset *d);
int64_t zt_dataset_tokens(const struct zt_dataset *d);

/* Are its tokens bytes of text? Else they are ids of a vocabulary that we do not know. */
bool zt_dataset_is_text(const struct zt_dataset *d);

/*
 * For the start-up print: "3 files, 1003854 tokens (text as bytes), 15685 samples of 64; 2 files
 * left out: not text".
 */
void zt_dataset_describe(const struct zt_dataset *d, struct zt_str *out);

/*
 * All that samples are made of, in their order: of each file the tokens inside the range, its index and its mask. Two
 * datasets with the same options and marks give the same samples.
 */
void zt_dataset_marks(const struct zt_dataset *d, struct zt_marks *out);

/* One row of a batch, (seq_len) int32 each. */
struct zt_sample {
    int32_t *tokens;
    int32_t *targets;   /* ZT_IGNORE_TARGET where there is none */
    int32_t *positions; /* inside the document */
    int32_t *seg_start; /* index in the row of the document's first token */
};

/*
 * The sample at position `pos` of the data order (any pos >= 0; epoch = pos / n_samples, shuffled
 * anew or, without shuffle, from the start again). Thread-safe.
 */
int zt_dataset_get(const struct zt_dataset *d, int64_t pos, const struct zt_sample *out,
                   struct zt_err *err) ZT_MUST_CHECK;

#endif
