/*
 * Frames: the first byte says how the rest is cut into feeds. However it is cut, the same frames come
 * out; memory stays within what was fed; payload parsers survive every payload.
 */
#include "launch/blame.h"
#include "launch/env.h"
#include "launch/proto.h"
#include "launch/spawn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct outcome {
    int rc;
    size_t n_frames, n_bytes;
    uint64_t hash;
};

static void parse_payload(const struct zt_frame *f)
{
    struct zt_death d;
    struct zt_job job;
    struct zt_err err;
    if (f->type == ZT_FRAME_JOB && zt_job_get(&job, f, &err) == 0) {
        ZT_ASSERT(job.n_workers >= 1 && job.first_rank + job.n_workers <= job.world);
        zt_job_release(&job);
    }
    if (f->type == ZT_FRAME_EXIT && zt_death_get(&d, f))
        ZT_ASSERT(d.rank >= 0);
    if (f->type == ZT_FRAME_ENV && zt_env_check((const char *)f->data, f->len, &err) == 0)
        ZT_ASSERT(memchr(f->data, '=', f->len));
}

static struct outcome read_all(const uint8_t *data, size_t n, size_t cut)
{
    struct outcome o = {0};
    struct zt_frame_reader r = {0};
    struct zt_frame f;
    struct zt_err err;
    for (size_t at = 0; at < n && o.rc >= 0; at += cut) {
        zt_frame_feed(&r, data + at, ZT_MIN(cut, n - at));
        while ((o.rc = zt_frame_next(&r, &f, &err)) > 0) {
            parse_payload(&f);
            o.n_frames++;
            o.n_bytes += ZT_FRAME_HEADER + f.len;
            o.hash = o.hash * 31 + f.type;
            for (size_t i = 0; i < f.len; i++)
                o.hash = o.hash * 31 + f.data[i];
        }
        ZT_ASSERT_CMP(r.in.len, <=, n);
    }
    ZT_ASSERT_CMP(o.n_bytes, <=, n);
    zt_frame_reader_release(&r);
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2)
        return 0;
    struct outcome whole = read_all(data + 1, n - 1, n - 1);
    struct outcome cut = read_all(data + 1, n - 1, (size_t)data[0] + 1);
    ZT_ASSERT_CMP(whole.rc, ==, cut.rc);
    ZT_ASSERT_CMP(whole.n_frames, ==, cut.n_frames);
    ZT_ASSERT_CMP(whole.hash, ==, cut.hash);
    return 0;
}
