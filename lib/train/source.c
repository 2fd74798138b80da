#include "train/engine.h"

#include "base/rng.h"
#include "base/size.h"
#include "ckpt/safetensors.h"

static void fill_initial(const struct zt_source *s, int param, int64_t begin, int64_t n, float *out)
{
    const struct zt_param_spec *spec = &s->model->params[param];
    switch (spec->init) {
    case ZT_INIT_ZEROS:
        memset(out, 0, (size_t)n * sizeof *out);
        return;
    case ZT_INIT_ONES:
        for (int64_t i = 0; i < n; i++)
            out[i] = 1.0f;
        return;
    case ZT_INIT_NORMAL:
        zt_rng_normal(s->seed, ZT_RNG_INIT, (uint64_t)param, begin, n, out);
        for (int64_t i = 0; i < n; i++)
            out[i] *= spec->init_std;
        return;
    }
}

static void fill_piece(const struct zt_source *s, const struct zt_plan *p, int unit, int64_t begin,
                       int64_t n, float *out)
{
    const struct zt_unit *u = &p->units[unit];
    memset(out, 0, (size_t)n * sizeof *out);
    for (int i = 0; i < u->n_params; i++) {
        int param = u->first_param + i;
        int64_t off = u->param_off[i], elems = s->model->params[param].n_elems;
        int64_t lo = ZT_MAX(begin, off), hi = ZT_MIN(begin + n, off + elems);
        if (lo >= hi)
            continue;
        if (s->weights)
            zt_weights_read_f32(s->weights, param, lo - off, hi - lo, out + (lo - begin));
        else
            fill_initial(s, param, lo - off, hi - lo, out + (lo - begin));
    }
}

void zt_source_fill(const struct zt_source *s, const struct zt_plan *p, int unit, int64_t begin,
                    int64_t n, float *out)
{
    enum { PIECE = 65536 }; /* a value depends on its place alone, so threads change nothing */
    int64_t n_pieces = zt_ceil_div_i64(n, PIECE);
    int n_threads = ZT_MAX(p->cfg.n_threads, 1);
    (void)n_threads; /* ThreadSanitizer builds have no OpenMP */
#pragma omp parallel for num_threads(n_threads) schedule(dynamic) if (n_pieces > 1)
    for (int64_t i = 0; i < n_pieces; i++)
        fill_piece(s, p, unit, begin + i * PIECE, ZT_MIN(n - i * PIECE, (int64_t)PIECE),
                   out + i * PIECE);
}
