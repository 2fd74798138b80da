/*
 * llmc.h: the header of llm.c's model files, which recipe and checkpoint layer both read
 * (karpathy/llm.c, train_gpt2.py, write_model): 256 little-endian int32, the first eight of them magic
 * 20240326, version, longest sequence, vocabulary, layers, heads, width, vocabulary with padding. Version
 * 3 holds fp32, version 5 bf16.
 */
#ifndef ZT_BASE_LLMC_H
#define ZT_BASE_LLMC_H

#include "base/dtype.h"
#include "base/err.h"

enum { ZT_LLMC_HEADER_BYTES = 1024 };

struct zt_llmc_header {
    enum zt_dtype dtype; /* of all tensors */
    int64_t n_positions, vocab_size, n_layer, n_head, n_embd;
    int64_t padded_vocab_size; /* rows of the embedding in the file, at least vocab_size */
};

/* The bytes begin with the magic of a model file. */
bool zt_is_llmc_model(const void *bytes, size_t n);

/*
 * Read and check the header of the file called `name`; `bytes` are its first ones, ZT_LLMC_HEADER_BYTES
 * or more of them unless the file is shorter. Sizes are in [1, 2^28] and heads divide the width;
 * whether the file holds what they say is not looked at.
 */
int zt_llmc_header(const char *name, const void *bytes, size_t n, struct zt_llmc_header *h,
                   struct zt_err *err) ZT_MUST_CHECK;

#endif
