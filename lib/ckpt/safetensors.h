/*
 * safetensors.h: reading Hugging Face's safetensors files. An 8-byte little-endian header length, a
 * JSON header, then the tensors' bytes (huggingface/safetensors, README "Format"). Every size of the
 * header is checked against the file before it is used; tensors may not overlap or leave holes.
 */
#ifndef ZT_CKPT_SAFETENSORS_H
#define ZT_CKPT_SAFETENSORS_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/io.h"
#include "model/model.h"

struct zt_st_tensor {
    const char *name;
    enum zt_dtype dtype;
    int n_dims;
    int64_t dims[8];
    int64_t n_elems;
    const void *data; /* inside the mapping; may be unaligned */
};

struct zt_st_file {
    struct zt_mapped map;
    int n_tensors;
    struct zt_st_tensor *tensors;
    struct zt_arena arena;
    const char *path;
};

int zt_st_open(const char *path, struct zt_st_file *f, struct zt_err *err) ZT_MUST_CHECK;
void zt_st_close(struct zt_st_file *f);
/* The same on bytes in memory (fuzzing, tests). f->map is left empty. */
int zt_st_parse(const char *name, const void *bytes, size_t n, struct zt_st_file *f,
                struct zt_err *err) ZT_MUST_CHECK;

/* n elements from `begin`, converted to fp32. */
void zt_st_read_f32(const struct zt_st_tensor *t, int64_t begin, int64_t n, float *out);

/*
 * A folder of weights matched to a model: model.safetensors, or model.safetensors.index.json with its
 * shards. tensors[i] is the model's parameter i. Every parameter must be there with its shape; unknown
 * names are errors, except buffers known to be no weights (h.N.attn.bias, attn.masked_bias, a tied
 * lm_head.weight equal to the embedding). All problems are reported at once.
 */
struct zt_weights {
    int n_files;
    struct zt_st_file *files;
    const struct zt_st_tensor **tensors; /* (model->n_params) */
};

int zt_weights_open(const char *dir, const struct zt_model *m, struct zt_weights *w,
                    struct zt_err *err) ZT_MUST_CHECK;
void zt_weights_close(struct zt_weights *w);

#endif
