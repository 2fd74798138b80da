/*
 * token_file.h: one file as a run of tokens; the formats and their checks.
 *
 *   text    every byte is a token (vocabulary of 256)
 *   llm.c   256 little-endian int32 (magic, version, count, zeros), then `count` tokens:
 *           magic 20240520, version 1: uint16 (GPT-2); magic 20240801, version 7: uint32 (Llama 3)
 *           (karpathy/llm.c, dev/data/data_common.py, llmc/dataloader.h)
 *   raw     uint16, little-endian, no header (nanoGPT's train.bin)
 *   Megatron-LM's pairs NAME.bin and NAME.idx: data/megatron.h
 *
 * With format `auto`, llm.c is known by its magic, and the rest must look like text: a name in .bin
 * or a NUL byte in the first 8 KiB is refused, with a word on data.format. So no header is ever
 * read as tokens, and no tokens as a header.
 */
#ifndef ZT_DATA_TOKEN_FILE_H
#define ZT_DATA_TOKEN_FILE_H

#include "base/err.h"
#include "recipe/recipe.h"

enum zt_token_kind {
    ZT_TOKENS_TEXT,
    ZT_TOKENS_GPT2,
    ZT_TOKENS_LLAMA3,
    ZT_TOKENS_RAW_U16,
    ZT_TOKENS_MEGATRON,
};

struct zt_token_file {
    const char *name;          /* of the caller */
    const unsigned char *data; /* the first token, inside the caller's bytes; may be unaligned */
    enum zt_token_kind kind;
    int token_bytes;
    int64_t n_tokens;
    int64_t n_docs;                        /* that an index tells of; 0: there is none */
    const unsigned char *pointers, *marks; /* of a Megatron index */
};

/*
 * Check header and size; token ids are checked when they are read. Touches the first 8 KiB only.
 * A format with an index is ZT_EINPUT.
 */
int zt_token_file_parse(const char *name, const void *bytes, size_t n, enum zt_data_format format,
                        struct zt_token_file *f, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Tokens [begin, begin + n), which must be inside the file. An id that is not below vocab_size is
 * ZT_EINPUT with file and position.
 */
int zt_token_file_read(const struct zt_token_file *f, int64_t begin, int64_t n, int64_t vocab_size,
                       int32_t *out, struct zt_err *err) ZT_MUST_CHECK;

/* The bytes begin with llm.c's magic. */
bool zt_is_llmc(const void *bytes, size_t n);

/* No text: a NUL byte in the first 8 KiB, git's rule. */
bool zt_is_binary(const void *bytes, size_t n);

/* The name ends in ".bin". */
bool zt_is_bin_name(const char *name);

const char *zt_token_kind_name(enum zt_token_kind k); /* "llm.c GPT-2 tokens" */

#endif
