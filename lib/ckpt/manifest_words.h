/*
 * manifest_words.h: words that the manifest's writer and its parser share. Inside lib/ckpt only.
 */
#ifndef ZT_CKPT_MANIFEST_WORDS_H
#define ZT_CKPT_MANIFEST_WORDS_H

#include "ckpt/checkpoint.h"

#define ZT_MANIFEST_FORMAT "zerotrain-checkpoint"
#define ZT_MANIFEST_CHECKSUM "xxh3-128"

/* The first line of the text; the sum is that of all bytes behind it. */
#define ZT_MANIFEST_FIRST_LINE "{\"sum\": \"%s\",\n"

enum {
    ZT_MANIFEST_HEX = 32, /* digits of a sum */
    ZT_MANIFEST_LINE_BYTES = sizeof(ZT_MANIFEST_FIRST_LINE) - 3 + ZT_MANIFEST_HEX,
};

extern const char *const zt_manifest_dtypes[ZT_N_DTYPES]; /* NULL: not one of a checkpoint */
extern const char *const zt_manifest_axes[ZT_N_AXES];

const char *zt_manifest_hex(const struct zt_ckpt_sum *sum, char out[ZT_MANIFEST_HEX + 1]);

#endif
