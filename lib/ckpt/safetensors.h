/*
 * safetensors.h: reading Hugging Face's safetensors files. An 8-byte little-endian header length, a
 * JSON header, then the tensors' bytes (huggingface/safetensors, README "Format"). Every size of
 * the header is checked against the file before it is used. As the reference implementation
 * demands, the header is at most 100 MB and begins with '{', and the tensors cover the bytes after
 * it exactly: no overlap, no hole, nothing behind. A key that stands twice is refused (the format
 * forbids it; the reference takes the last). `__metadata__` may hold strings only and is ignored.
 */
#ifndef ZT_CKPT_SAFETENSORS_H
#define ZT_CKPT_SAFETENSORS_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/io.h"
#include "base/mark.h"
#include "ckpt/llmc.h"
#include "model/model.h"

enum { ZT_ST_MAX_DIMS = 8 };

struct zt_st_tensor {
    const char *name;
    const char *dtype_name; /* the file's word: "F32", "BF16", "U8", ... */
    int dtype;              /* ZT_F32, ZT_F16, ZT_BF16; -1: a type that weights do not have */
    int n_dims;             /* 0: a scalar */
    int64_t dims[ZT_ST_MAX_DIMS];
    int64_t n_elems;
    size_t bytes;
    const void *data; /* inside the mapping; may be unaligned */
};

struct zt_st_file {
    struct zt_mapped map;
    int n_tensors;
    struct zt_st_tensor *tensors; /* in the order of their bytes */
    struct zt_arena arena;
    const char *path;
};

/* Nothing but the header is read. A failed open leaves nothing to close. */
int zt_st_open(const char *path, struct zt_st_file *f, struct zt_err *err) ZT_MUST_CHECK;
void zt_st_close(struct zt_st_file *f);
/* The same on bytes in memory (fuzzing, tests). f->map is left empty. */
int zt_st_parse(const char *name, const void *bytes, size_t n, struct zt_st_file *f,
                struct zt_err *err) ZT_MUST_CHECK;

/* n elements from `begin`, converted to fp32. The tensor's dtype must not be -1. */
void zt_st_read_f32(const struct zt_st_tensor *t, int64_t begin, int64_t n, float *out);

/*
 * Weights matched to a model: a folder with model.safetensors, or model.safetensors.index.json and
 * its shards; or a file of llm.c (ckpt/llmc.h), which is known by its magic number. In a folder, names may carry Hugging Face's prefix
 * ("transformer.", "model."). Every parameter must be there once, with its shape; unknown names are
 * errors, except buffers known to be no weights (h.N.attn.bias, h.N.attn.masked_bias). A tied
 * lm_head.weight may stand beside the embedding, with the same values, or for it. All problems are
 * reported at once (the first of them when they do not fit a message).
 */
struct zt_weights {
    int n_files; /* of safetensors */
    struct zt_st_file *files;
    const struct zt_st_tensor **tensors; /* (model->n_params); NULL: it is a file of llm.c */
    struct zt_mapped map;                /* of that file */
    struct zt_llmc llmc;
    struct zt_arena arena;
};

int zt_weights_open(const char *path, const struct zt_model *m, struct zt_weights *w,
                    struct zt_err *err) ZT_MUST_CHECK;
void zt_weights_close(struct zt_weights *w);

/* One for each parameter of the model, in its order. */
void zt_weights_marks(const struct zt_weights *w, const struct zt_model *m, struct zt_marks *out);

/* n elements of the model's parameter from `begin`, in fp32. Thread-safe. */
void zt_weights_read_f32(const struct zt_weights *w, int param, int64_t begin, int64_t n,
                         float *out);

#endif
