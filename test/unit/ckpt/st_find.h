/* st_find.h: a tensor of a safetensors file by its name. */
#ifndef ZT_TEST_CKPT_ST_FIND_H
#define ZT_TEST_CKPT_ST_FIND_H

#include "ckpt/safetensors.h"

/* NULL: there is none. */
static inline const struct zt_st_tensor *st_find(const struct zt_st_file *f, const char *name)
{
    for (int i = 0; i < f->n_tensors; i++)
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
    return NULL;
}

#endif
