/*
 * checkpoint.h: a checkpoint on disk, whatever made it.
 *
 *     DIR/step-000200/manifest.json            what there is and where (zerotrain-checkpoint(5))
 *     DIR/step-000200/rank-00000.safetensors   one file for each slice of the model
 *     DIR/latest                               the newest one's name
 *     DIR/.lock-N                              held by the run that writes here
 *
 * The state of a tensor is up to three parts: PARAM (fp32 values; a tensor that is not trained has its own
 * type), M and V (fp32). A part is cut into pieces: ranges of the tensor's elements, row-major, in some
 * file. So a slice is found by name and element range alone, whatever cut it.
 *
 * Checksums are XXH3-128 of blocks of a file, which the manifest lists; its own stands in its first line. A
 * reader checks the blocks that it touches, so that reading a slice needs no more than that slice and a few
 * blocks of memory.
 *
 *   manifest.c        struct zt_manifest -> text
 *   manifest_parse.c  and back; every size is checked
 *   shard.c           writes one file, front to back
 *   checkpoint.c      opens, reads ranges, verifies
 *   blocks.c          a checkpoint's blocks, read and checked ahead of who wants them
 *   ring.c, direct.c  several blocks on their way at once, past the page cache
 */
#ifndef ZT_CKPT_CHECKPOINT_H
#define ZT_CKPT_CHECKPOINT_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/mesh.h"
#include "base/str.h"

enum {
    ZT_CKPT_VERSION = 1,
    ZT_CKPT_MAX_DIMS = 8,
    ZT_CKPT_MAX_FILES = 1 << 16,
    ZT_CKPT_MANIFEST_BYTES = 1 << 29, /* the largest that is read */
    ZT_CKPT_BLOCK_BYTES = 4 << 20,    /* what we write; readers take 64 KiB to 64 MiB */
    ZT_CKPT_WRITE_BYTES = 16 << 20,   /* of buffers while a file is written */
    ZT_CKPT_READ_BYTES = 24 << 20,    /* while one is read, or two blocks */
    ZT_CKPT_KEPT_BYTES = 64 << 20,    /* beside these, of blocks that more is wanted of */
};

#define ZT_CKPT_MANIFEST "manifest.json"

enum zt_ckpt_part_kind { ZT_CKPT_PARAM, ZT_CKPT_M, ZT_CKPT_V, ZT_CKPT_N_PARTS };

const char *zt_ckpt_part_name(enum zt_ckpt_part_kind k); /* "param", "m", "v" */

struct zt_ckpt_sum {
    unsigned char bytes[16]; /* XXH3-128 in its canonical (big-endian) form */
};

struct zt_ckpt_sum zt_ckpt_sum_of(const void *bytes, size_t n);

/* Elements [begin, end) of a tensor, at a byte of a file. */
struct zt_ckpt_piece {
    int file;
    int64_t begin, end;
    size_t offset;
};

struct zt_ckpt_part {
    enum zt_dtype dtype;          /* ZT_F32, ZT_BF16 or ZT_F16 */
    int n;                        /* 0: the checkpoint has no such part of the tensor */
    struct zt_ckpt_piece *pieces; /* by begin; together all elements, each once */
};

struct zt_ckpt_tensor {
    const char *name; /* the model's parameter: zt_param_spec.name */
    int n_dims;
    int64_t dims[ZT_CKPT_MAX_DIMS];
    int64_t n_elems;
    struct zt_ckpt_part parts[ZT_CKPT_N_PARTS];
};

struct zt_ckpt_file {
    const char *name; /* inside the checkpoint's folder */
    size_t bytes;
    size_t n_sums; /* one for each block, the last of which may be short */
    struct zt_ckpt_sum *sums;
};

/* Where training stood: what a continuation needs beside the tensors. */
struct zt_ckpt_progress {
    int64_t step;     /* batches consumed */
    int64_t updates;  /* of them applied: what Adam's t and the schedule count */
    int64_t skipped;  /* step - updates, unless the run began with something else */
    int64_t position; /* samples of the training order consumed */
    int64_t samples;  /* in the training set: the order is a permutation of them */
    int64_t seq_len;
    int64_t seed;
    bool has_loss_scale; /* fp16 with a dynamic one; the next three */
    double loss_scale;
    int64_t scale_patience;      /* zt_loss_scaler.patience */
    int64_t scale_last_overflow; /* step; -1: none */
    double best_val_loss;        /* NAN: never evaluated */
};

struct zt_manifest {
    struct zt_arena arena; /* owns what the pointers point to */
    const char *program;   /* "zerotrain 0.1.0" */
    const char *recipe;    /* as resolved, YAML */
    const char *optimizer; /* its type in the recipe: "AdamW" */
    struct zt_mesh mesh;   /* that wrote it */
    int stage;
    enum zt_dtype dtype; /* of parameters in training */
    struct zt_ckpt_progress at;
    size_t block_bytes;
    int n_files, n_tensors;
    struct zt_ckpt_file *files;
    struct zt_ckpt_tensor *tensors;
};

/* The text of manifest.json, checksum included. */
void zt_manifest_print(const struct zt_manifest *m, struct zt_str *out);

/*
 * And back. `name` begins messages. All that is read is consistent: pieces lie inside their files and
 * cover their tensors, there is a checksum for every block, names lead out of no folder. Release m on
 * success only.
 */
int zt_manifest_parse(const char *name, const void *bytes, size_t n, struct zt_manifest *m,
                      struct zt_err *err) ZT_MUST_CHECK;
void zt_manifest_release(struct zt_manifest *m);

/* The tensor called `name`, or NULL. */
const struct zt_ckpt_tensor *zt_manifest_find(const struct zt_manifest *m, const char *name);

/* ---- writing one file (shard.c) ---- */

/* A piece to be written: its place in the file follows from the ones before it. */
struct zt_shard_piece {
    enum zt_ckpt_part_kind part;
    const struct zt_ckpt_tensor *tensor;
    enum zt_dtype dtype;
    int64_t begin, end;
};

/*
 * The safetensors header of a file of these pieces, padded so that the data begin at a multiple of 4096
 * bytes. offsets[i] (if not NULL) becomes the piece's byte in the file, *bytes the file's size. Tensors are
 * called "param/NAME", "m/NAME", "v/NAME", and have their shape, or [n] where the piece is not all of it.
 */
void zt_shard_header(const struct zt_shard_piece *pieces, int n, struct zt_str *header,
                     size_t *offsets, size_t *bytes);

/*
 * Writes a file of `bytes` from its first byte to its last, and makes its checksums on the way: blocks are
 * copied to ZT_CKPT_WRITE_BYTES of buffers, which threads sum and write past the page cache, several at once.
 */
struct zt_shard_writer;
int zt_shard_create(const char *path, size_t bytes, struct zt_shard_writer **out,
                    struct zt_err *err) ZT_MUST_CHECK;
int zt_shard_put(struct zt_shard_writer *w, const void *bytes, size_t n,
                 struct zt_err *err) ZT_MUST_CHECK;

/*
 * All bytes are put: fsync and close. *sums (free it) has *n_sums checksums. Frees the writer whether it fails
 * or not; after a failure of put, call abandon instead.
 */
int zt_shard_finish(struct zt_shard_writer *w, struct zt_ckpt_sum **sums, size_t *n_sums,
                    struct zt_err *err) ZT_MUST_CHECK;
void zt_shard_abandon(struct zt_shard_writer *w); /* accepts NULL */

/* ---- reading (checkpoint.c) ---- */

struct zt_blocks;

struct zt_ckpt {
    const char *path; /* DIR/step-000200 */
    int64_t id;       /* of the manifest's bytes: from 1 to below 2^62, the same for the same */
    struct zt_manifest m;
    struct zt_blocks *blocks;
};

/*
 * The folder of one checkpoint. The manifest is checked whole; every file must be there with its size, but
 * is not read. ZT_EINPUT with the file's name in the message: it is damaged, or is called step-N and of another
 * step. Another code, here and of what reads: it cannot be read now, which tells nothing about it.
 */
int zt_ckpt_open(const char *path, struct zt_ckpt *c, struct zt_err *err) ZT_MUST_CHECK;
void zt_ckpt_close(struct zt_ckpt *c); /* accepts a zeroed one */

/*
 * Elements [begin, begin + n) of a part, as fp32. Every block that is touched has its checksum checked; memory:
 * the block read last, which the next range may begin in. One thread at a time. ZT_EINPUT names the file and
 * the block.
 */
int zt_ckpt_read_f32(struct zt_ckpt *c, const struct zt_ckpt_tensor *t, enum zt_ckpt_part_kind part,
                     int64_t begin, int64_t n, float *out, struct zt_err *err) ZT_MUST_CHECK;

/*
 * What zt_ckpt_read_f32 will be asked for, range by range in that order; then read_ahead, once: threads read
 * and check the blocks before they are wanted. Reading anything else, or in another order, works as without.
 */
void zt_ckpt_expect(struct zt_ckpt *c, const struct zt_ckpt_tensor *t, enum zt_ckpt_part_kind part,
                    int64_t begin, int64_t n);
void zt_ckpt_read_ahead(struct zt_ckpt *c);

/* Read all files and check all blocks. Once, with nothing expected. */
int zt_ckpt_verify(struct zt_ckpt *c, struct zt_err *err) ZT_MUST_CHECK;

#endif
