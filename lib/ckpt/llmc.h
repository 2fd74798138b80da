/*
 * llmc.h: the weights in llm.c's model files (base/llmc.h has their header): GPT-2's tensors one kind
 * after the other, each for all layers, matrices as torch.nn.Linear has them: (outputs, inputs), where
 * Hugging Face's GPT-2 and our model have (inputs, outputs). The embedding has rows of padding, which are
 * left out.
 */
#ifndef ZT_CKPT_LLMC_H
#define ZT_CKPT_LLMC_H

#include "base/llmc.h"
#include "model/model.h"

struct zt_llmc_tensor {
    const unsigned char *data; /* inside the caller's bytes; aligned as they are */
    bool transposed;           /* (dims[1], dims[0]) in the file */
    int64_t rows, cols;        /* of the model's parameter; one dimension: cols 1 */
};

struct zt_llmc {
    struct zt_llmc_header header;
    int n_tensors;
    struct zt_llmc_tensor *tensors; /* (model->n_params), of the arena */
};

/* Check a whole file's header and length. */
int zt_llmc_check(const char *name, const void *bytes, size_t n, struct zt_llmc_header *h,
                  struct zt_err *err) ZT_MUST_CHECK;

/* The same, and find each parameter of the model, whose shape must be the file's. */
int zt_llmc_parse(const char *name, const void *bytes, size_t n, const struct zt_model *m,
                  struct zt_arena *arena, struct zt_llmc *f, struct zt_err *err) ZT_MUST_CHECK;

/* n elements of the model's parameter from `begin`, in fp32. */
void zt_llmc_read_f32(const struct zt_llmc *f, int param, int64_t begin, int64_t n, float *out);

#endif
