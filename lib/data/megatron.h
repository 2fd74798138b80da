/*
 * megatron.h: Megatron-LM's token files, NAME.bin with its index NAME.idx.
 *
 * The index, little-endian, without gaps (NVIDIA/Megatron-LM, indexed_dataset.py):
 *
 *   magic "MMIDIDX\0\0", version 1 (u64), type code (u8), number of sequences (u64) and of document
 *   marks (u64); then per sequence its length in tokens (i32), then per sequence its first byte in
 *   the .bin (i64), then the marks (i64): the sequence that each document begins with, and last the
 *   number of sequences
 *
 * Read are tokens of type uint8, int32 and uint16, in sequences that follow each other without gaps
 * from the first byte of the .bin to its last, as Megatron's tools write them.
 */
#ifndef ZT_DATA_MEGATRON_H
#define ZT_DATA_MEGATRON_H

#include "data/token_file.h"

struct zt_bytes {
    const char *name; /* of the file, for messages; of the caller */
    const unsigned char *data;
    size_t n;
};

/* The bytes begin with the magic. */
bool zt_is_megatron_index(const void *bytes, size_t n);

/*
 * Check the whole index against the size of the .bin, whose tokens are checked when they are read.
 * The file keeps pointers to both.
 */
int zt_megatron_parse(const struct zt_bytes *index, const struct zt_bytes *bin,
                      struct zt_token_file *f, struct zt_err *err) ZT_MUST_CHECK;

/* The first token behind `pos` that begins a document; n_tokens when there is none. */
int64_t zt_megatron_next_document(const struct zt_token_file *f, int64_t pos);

#endif
