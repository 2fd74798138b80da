/* st_writer.h: small safetensors files for tests. */
#ifndef ZT_TEST_ST_WRITER_H
#define ZT_TEST_ST_WRITER_H

#include "base/str.h"

struct st_writer {
    struct zt_str header; /* entries, each ending in a comma */
    struct zt_str data;
};

/* Add a tensor; shape is JSON, such as "[2,3]". */
static inline void st_put(struct st_writer *w, const char *name, const char *dtype,
                          const char *shape, const void *bytes, size_t n)
{
    zt_str_printf(&w->header, "\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]},",
                  name, dtype, shape, w->data.len, w->data.len + n);
    zt_str_add(&w->data, bytes, n);
}

/* A file of any header text and any data; appended to out. */
static inline void st_raw(const char *header, const void *data, size_t n, struct zt_str *out)
{
    uint64_t len = strlen(header);
    unsigned char le[8];
    for (int i = 0; i < 8; i++)
        le[i] = (unsigned char)(len >> 8 * i);
    zt_str_add(out, le, sizeof le);
    zt_str_puts(out, header);
    zt_str_add(out, data, n);
}

static inline void st_finish(struct st_writer *w, struct zt_str *out)
{
    struct zt_str header = {0};
    size_t n = w->header.len;
    zt_str_puts(&header, "{");
    zt_str_add(&header, zt_str_get(&w->header), n ? n - 1 : 0);
    zt_str_puts(&header, "}");
    st_raw(header.buf, zt_str_get(&w->data), w->data.len, out);
    zt_str_release(&header);
    zt_str_release(&w->header);
    zt_str_release(&w->data);
}

#endif
