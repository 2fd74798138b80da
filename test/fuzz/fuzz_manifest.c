/*
 * manifest.json behind its first line, which is made here: a checksum that fits. What is accepted is
 * printed and parsed again, and every piece lies in its file.
 */
#include "ckpt/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void with_sum(const void *body, size_t n, struct zt_str *out)
{
    struct zt_ckpt_sum sum = zt_ckpt_sum_of(body, n);
    zt_str_puts(out, "{\"sum\": \"");
    for (int i = 0; i < 16; i++)
        zt_str_printf(out, "%02x", sum.bytes[i]);
    zt_str_puts(out, "\",\n");
    zt_str_add(out, body, n);
}

static void check_part(const struct zt_manifest *m, const struct zt_ckpt_tensor *t,
                       const struct zt_ckpt_part *part)
{
    int64_t at = 0;
    for (int i = 0; i < part->n; i++) {
        const struct zt_ckpt_piece *p = &part->pieces[i];
        const size_t bytes = (size_t)(p->end - p->begin) * zt_dtype_bytes(part->dtype);
        ZT_ASSERT_CMP(p->begin, ==, at);
        ZT_ASSERT_CMP(bytes, <=, m->files[p->file].bytes);
        ZT_ASSERT_CMP(p->offset, <=, m->files[p->file].bytes - bytes);
        at = p->end;
    }
    ZT_ASSERT(part->n == 0 || at == t->n_elems);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct zt_manifest m, again;
    struct zt_str text = {0}, printed = {0};
    struct zt_err err;
    with_sum(data, n, &text);
    int rc = zt_manifest_parse("x", text.buf, text.len, &m, &err);
    zt_str_release(&text);
    if (rc)
        return 0;
    for (int i = 0; i < m.n_tensors; i++)
        for (int k = 0; k < ZT_CKPT_N_PARTS; k++)
            check_part(&m, &m.tensors[i], &m.tensors[i].parts[k]);
    zt_manifest_print(&m, &printed);
    ZT_ASSERT_CMP(zt_manifest_parse("x", printed.buf, printed.len, &again, &err), ==, 0);
    zt_manifest_release(&again);
    zt_manifest_release(&m);
    zt_str_release(&printed);
    return 0;
}
