/* Case S01: every parameter is updated once, whatever the number of ranks; padding never. */
#include "harness.h"

#include <math.h>

#include "optim/groups.h"

enum { MAX_TENSORS = 4 };

/* A plan of one unit, laid out with an alignment of our choice. */
struct layout {
    struct zt_param_spec specs[MAX_TENSORS];
    int64_t off[MAX_TENSORS];
    struct zt_model model;
    struct zt_unit unit;
    struct zt_plan plan;
    struct zt_arena arena;
};

static void layout_init(struct layout *l, int n, const int64_t *elems, const int *n_dims,
                        int64_t align, int n_ranks)
{
    memset(l, 0, sizeof *l);
    int64_t end = 0;
    for (int i = 0; i < n; i++) {
        l->specs[i] = (struct zt_param_spec){.name = "t",
                                             .n_elems = elems[i],
                                             .n_dims = n_dims[i],
                                             .trainable = true,
                                             .decay = n_dims[i] >= 2,
                                             .weight_decay = n_dims[i] >= 2 ? 0.1f : 0,
                                             .lr_scale = 1};
        l->off[i] = (end + align - 1) / align * align;
        end = l->off[i] + elems[i];
    }
    l->unit = (struct zt_unit){.n_params = n, .param_off = l->off};
    l->unit.slice_elems = ((end + n_ranks - 1) / n_ranks + align - 1) / align * align;
    l->unit.padded_elems = l->unit.slice_elems * n_ranks;
    l->model.params = l->specs;
    l->plan.model = &l->model;
    l->plan.units = &l->unit;
    l->plan.n_units = 1;
}

static int ranges_of(struct layout *l, int rank, const struct zt_update_range **out)
{
    int64_t n = l->unit.slice_elems;
    return zt_update_ranges(&l->plan, 0, rank * n, (rank + 1) * n, &l->arena, out);
}

TEST(groups_decay_only_matrices)
{
    static const int64_t elems[] = {96, 10, 64, 64};
    static const int dims[] = {2, 1, 1, 2};
    struct layout l;
    const struct zt_update_range *r;
    layout_init(&l, 4, elems, dims, 64, 1);
    CHECK_INT(ranges_of(&l, 0, &r), 4);
    static const struct zt_update_range want[] = {
        {0, 96, 0.1f, 1}, {128, 138, 0, 1}, {192, 256, 0, 1}, {256, 320, 0.1f, 1}};
    for (int i = 0; i < 4; i++) {
        CHECK(r[i].begin == want[i].begin && r[i].end == want[i].end);
        CHECK(r[i].weight_decay == want[i].weight_decay && r[i].lr_scale == 1);
    }
    l.specs[0].trainable = false;
    CHECK_INT(ranges_of(&l, 0, &r), 3);
    CHECK_INT(r[0].begin, 128);
    zt_arena_release(&l.arena);
}

TEST(groups_touching_ranges_are_joined)
{
    static const int64_t elems[] = {64, 128, 64};
    static const int dims[] = {1, 1, 2};
    struct layout l;
    const struct zt_update_range *r;
    layout_init(&l, 3, elems, dims, 64, 2);
    CHECK_INT(ranges_of(&l, 0, &r), 1);
    CHECK(r[0].begin == 0 && r[0].end == 128 && r[0].weight_decay == 0);
    CHECK_INT(ranges_of(&l, 1, &r), 2);
    CHECK(r[0].begin == 0 && r[0].end == 64 && r[1].begin == 64 && r[1].end == 128);
    CHECK(r[0].weight_decay == 0 && r[1].weight_decay == 0.1f);
    zt_arena_release(&l.arena);
}

/* S01's table: (parameters, ranks, alignment) -> real elements of the slices. */
TEST(groups_s01_real_elements)
{
    static const struct {
        int64_t n;
        int ranks;
        int64_t align, slice, first, last;
    } cases[] = {
        {57, 2, 1, 29, 29, 28},
        {57, 2, 2, 30, 30, 27},
        {57, 4, 1, 15, 15, 12},
        {57, 4, 2, 16, 16, 9},
        {10, 4, 1, 3, 3, 1},
        {10, 4, 2, 4, 4, 0},
        {255381772, 4, 1, 63845443, 63845443, 63845443},
        {255381772, 4, 2, 63845444, 63845444, 63845440},
        {124439808, 7, 1, 17777116, 17777116, 17777112},
        {572, 3, 1, 191, 191, 190},
        {572, 6, 2, 96, 96, 92},
        {124439808, 7, 64, 17777152, 17777152, 124439808 - 6 * 17777152},
    };
    static const int dims[] = {2};
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct layout l;
        const struct zt_update_range *r;
        int64_t sum = 0;
        layout_init(&l, 1, &cases[i].n, dims, cases[i].align, cases[i].ranks);
        CHECK_INT(l.unit.slice_elems, cases[i].slice);
        for (int rank = 0; rank < cases[i].ranks; rank++) {
            int n = ranges_of(&l, rank, &r);
            int64_t real = n ? r[0].end - r[0].begin : 0;
            CHECK(n <= 1 && (!n || r[0].begin == 0));
            if (rank == 0)
                CHECK_INT(real, cases[i].first);
            if (rank == cases[i].ranks - 1)
                CHECK_INT(real, cases[i].last);
            sum += real;
        }
        CHECK_INT(sum, cases[i].n);
        zt_arena_release(&l.arena);
    }
}

/* On 7 ranks, with tensors cut across slices, each element has one owner and its own setting. */
TEST(groups_every_element_once)
{
    static const int64_t elems[] = {1000, 65, 3, 500};
    static const int dims[] = {2, 1, 1, 2};
    static const int64_t aligns[] = {1, 2, 64};
    for (size_t a = 0; a < ZT_ARRAY_LEN(aligns); a++) {
        struct layout l;
        unsigned char seen[4096] = {0};
        float decay[4096];
        layout_init(&l, 4, elems, dims, aligns[a], 7);
        CHECK(l.unit.padded_elems <= 4096);
        for (int rank = 0; rank < 7; rank++) {
            const struct zt_update_range *r;
            int n = ranges_of(&l, rank, &r);
            for (int i = 0; i < n; i++) {
                CHECK(r[i].begin < r[i].end && r[i].end <= l.unit.slice_elems);
                CHECK(i == 0 || r[i - 1].end <= r[i].begin);
                for (int64_t e = r[i].begin; e < r[i].end; e++) {
                    seen[rank * l.unit.slice_elems + e]++;
                    decay[rank * l.unit.slice_elems + e] = r[i].weight_decay;
                }
            }
        }
        for (int64_t e = 0, t = 0; e < l.unit.padded_elems; e++) {
            while (t < 3 && e >= l.off[t + 1])
                t++;
            bool real = e < l.off[t] + elems[t];
            CHECK_INT(seen[e], real);
            CHECK(!real || decay[e] == (dims[t] == 2 ? 0.1f : 0.0f));
        }
        zt_arena_release(&l.arena);
    }
}

/* ---- groups by name ---- */

static struct zt_err err;

static struct zt_model *small_gpt2(struct zt_arena *arena)
{
    const struct zt_model_config cfg = {.type = ZT_MODEL_GPT2,
                                        .n_layer = 2,
                                        .n_head = 2,
                                        .n_embd = 8,
                                        .vocab_size = 11,
                                        .n_positions = 4,
                                        .norm_eps = 1e-5f,
                                        .initializer_range = 0.02f,
                                        .tie_embeddings = true};
    struct zt_model *m = NULL;
    return zt_model_build(&cfg, arena, &m, &err) ? NULL : m;
}

static const struct zt_param_spec *spec_of(const struct zt_model *m, const char *name)
{
    return &m->params[zt_model_find_param(m, name)];
}

TEST(groups_without_any_decay_matrices)
{
    struct zt_arena arena = {0};
    struct zt_model *m = small_gpt2(&arena);
    CHECK(m);
    CHECK_OK(zt_groups_assign(m, 0.1, NULL, 0, &err), err);
    for (int i = 0; i < m->n_params; i++) {
        CHECK(m->params[i].weight_decay == (m->params[i].n_dims > 1 ? 0.1f : 0));
        CHECK(m->params[i].lr_scale == 1 && m->params[i].trainable);
    }
    zt_arena_release(&arena);
}

/* The first glob that fits holds; names are Hugging Face's, with or without the prefix. */
TEST(groups_first_fit_holds)
{
    const struct zt_group groups[] = {
        {"transformer.h.1.ln_2.*", 0.5, 2, false},
        {"*.bias", (double)NAN, 0.25, false},
        {"h.?.ln_*", 0.3, 1, false},
        {"wte.weight", (double)NAN, 1, true},
    };
    struct zt_arena arena = {0};
    struct zt_model *m = small_gpt2(&arena);
    CHECK(m);
    CHECK_OK(zt_groups_assign(m, 0.1, groups, 4, &err), err);
    CHECK(spec_of(m, "h.1.ln_2.bias")->weight_decay == 0.5f);
    CHECK(spec_of(m, "h.1.ln_2.bias")->lr_scale == 2);
    CHECK(spec_of(m, "h.0.ln_2.bias")->weight_decay == 0); /* as without a group */
    CHECK(spec_of(m, "h.0.ln_2.bias")->lr_scale == 0.25f);
    CHECK(spec_of(m, "h.0.ln_2.weight")->weight_decay == 0.3f);
    CHECK(spec_of(m, "ln_f.weight")->weight_decay == 0);
    CHECK(spec_of(m, "h.0.mlp.c_fc.weight")->weight_decay == 0.1f);
    CHECK(!spec_of(m, "wte.weight")->trainable && spec_of(m, "wpe.weight")->trainable);
    zt_arena_release(&arena);
}

TEST(groups_that_do_nothing_are_errors)
{
    const struct {
        struct zt_group groups[2];
        int n;
        const char *want;
    } cases[] = {
        {{{"*.biass", 0, 1, false}},
         1,
         "optimizer.param_groups: \"*.biass\" fits no parameter of the model; they are called "
         "wte.weight to ln_f.bias"},
        {{{"h.*", 0, 1, false}, {"h.1.ln_1.bias", 0, 2, false}},
         2,
         "optimizer.param_groups: all that \"h.1.ln_1.bias\" fits belongs to groups before it: the "
         "first that fits holds"},
        {{{"*", 0, 1, true}},
         1,
         "optimizer.param_groups: every parameter is frozen; nothing is left to train"},
        {{{"lm_head.weight", 0, 1, true}}, /* tied: it is wte.weight */
         1,
         "optimizer.param_groups: \"lm_head.weight\" fits no parameter of the model; they are "
         "called wte.weight to ln_f.bias"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_arena arena = {0};
        struct zt_model *m = small_gpt2(&arena);
        CHECK(m);
        CHECK_INT(zt_groups_assign(m, 0.1, cases[i].groups, cases[i].n, &err), ZT_EINPUT);
        CHECK_STR(err.msg, cases[i].want);
        zt_arena_release(&arena);
    }
}

/* A frozen tensor is cut out of the norm, wherever the borders of the slices fall; padding is not. */
TEST(groups_norm_leaves_out_frozen_tensors)
{
    static const int64_t elems[] = {96, 10, 64, 64};
    static const int dims[] = {2, 1, 1, 2};
    struct layout l;
    const struct zt_span *s;
    layout_init(&l, 4, elems, dims, 64, 2); /* at 0, 128, 192, 256; slices of 192 */
    CHECK_INT(zt_norm_spans(&l.plan, 0, 0, 192, &l.arena, &s), 1);
    CHECK(s[0].begin == 0 && s[0].end == 192);
    l.specs[1].trainable = l.specs[2].trainable = false;
    CHECK_INT(zt_norm_spans(&l.plan, 0, 0, 192, &l.arena, &s), 2);
    CHECK(s[0].begin == 0 && s[0].end == 128 && s[1].begin == 138 && s[1].end == 192);
    CHECK_INT(zt_norm_spans(&l.plan, 0, 192, 384, &l.arena, &s), 1);
    CHECK(s[0].begin == 64 && s[0].end == 192);
    CHECK_INT(zt_norm_spans(&l.plan, 0, 192, 256, &l.arena, &s), 0);
    zt_arena_release(&l.arena);
}

TEST_MAIN()
