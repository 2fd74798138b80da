/*
 * hf.h: writing a model as the folder that Hugging Face's transformers loads: config.json, and
 * model.safetensors or, where that would be larger than a shard may be, model-00001-of-0000N.safetensors
 * with model.safetensors.index.json. Names, shapes and the order of a matrix's dimensions are those of
 * the model's parameters (model.h), which are Hugging Face's. A tied head is not written again.
 *
 * The folder is there whole or not at all: it is written beside its place as DIR.zerotrain-tmp.PID,
 * synced, then renamed. Memory is bounded: values come in pieces from a source, whatever holds them.
 */
#ifndef ZT_CKPT_HF_H
#define ZT_CKPT_HF_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"
#include "model/model.h"

struct zt_hf_source {
    void *ctx;
    /* Elements [begin, begin + n) of the model's parameter, in fp32. */
    int (*read)(void *ctx, int param, int64_t begin, int64_t n, float *out, struct zt_err *err);
};

struct zt_hf_opts {
    const char *dir;
    const struct zt_model *model;
    const char *model_type;  /* "gpt2", "llama", "mistral", "qwen2", "qwen3" */
    enum zt_dtype dtype;     /* ZT_F32, ZT_BF16 or ZT_F16 of the file; rounded to nearest, even */
    size_t max_shard_bytes;  /* of data; a tensor that is larger is a shard of its own */
    int64_t sliding_window;  /* that the model was trained within; 0: none */
    bool use_sliding_window; /* qwen2, qwen3 */
    const char *from; /* the folder that training began with: its tokenizer's files are copied,
                                 config.json's token ids kept; NULL, or no longer there: none */
    bool force;       /* replace a folder that holds an exported model and nothing else */
};

struct zt_hf_result {
    int n_tensors, n_shards, n_copied; /* copied: the tokenizer's files */
    size_t bytes;                      /* of tensors */
    int64_t n_elems;
};

/*
 * The folder may be written: it is not there, is empty, or may be replaced, and a rename can do so: it is neither the
 * current one nor a mount point. A link is followed. Writes nothing.
 */
int zt_hf_check(const char *dir, bool force, struct zt_err *err) ZT_MUST_CHECK;

/*
 * ZT_EINPUT: the folder may not be written; a value is too large for fp16. Blocks; nothing is left of a
 * folder that failed.
 */
int zt_hf_write(const struct zt_hf_opts *o, const struct zt_hf_source *source,
                struct zt_hf_result *result, struct zt_err *err) ZT_MUST_CHECK;

/* The text of config.json, as transformers writes it; `from` may add token ids. Appended to `out`. */
int zt_hf_config(const struct zt_hf_opts *o, struct zt_str *out, struct zt_err *err) ZT_MUST_CHECK;

#endif
