/* What a checkpoint of a plan holds: every element once, and its bytes where training has them. */
#include "harness.h"

#include "train/save.h"
#include "unit/plan/models.h"

static struct zt_err err;

static void check_sources(const struct zt_plan *p, const struct zt_layout *l)
{
    for (int i = 0; i < l->n; i++) {
        const struct zt_save_source *s = &l->sources[i];
        const struct zt_shard_piece *piece = &l->pieces[i];
        const struct zt_buf *b = &p->bufs[s->state];
        const int param = (int)(piece->tensor - l->m.tensors);
        CHECK(b->program < 0 && b->unit == p->unit_of_param[param] && b->dtype == piece->dtype);
        CHECK_INT(s->bytes, (size_t)(piece->end - piece->begin) * zt_dtype_bytes(b->dtype));
        CHECK(s->state_offset + s->bytes <= b->used);
        CHECK_INT(s->snapshot >= 0, p->programs[ZT_PROG_SAVE].n_ops > 0);
        if (s->snapshot >= 0)
            CHECK(s->slice_offset + s->bytes <= p->bufs[s->snapshot].used);
    }
}

/* The plans of all ranks; what the parser accepts covers every tensor, once, inside its files. */
static void check_config(const struct zt_model *m, const struct zt_plan_config *cfg)
{
    const int world = zt_mesh_world(&cfg->mesh);
    struct zt_str first = {0};
    for (int r = 0; r < world && !zt_test_failed; r++) {
        struct zt_str text = {0};
        struct zt_layout l;
        struct zt_plan *p;
        struct zt_manifest parsed;
        CHECK_OK(zt_plan_build(m, cfg, r, &p, &err), err);
        zt_layout_make(p, &l);
        check_sources(p, &l);
        l.m.program = l.m.recipe = l.m.optimizer = "x";
        l.m.at = (struct zt_ckpt_progress){.samples = 1, .seq_len = 1};
        zt_manifest_print(&l.m, &text);
        if (r == 0)
            zt_str_puts(&first, text.buf);
        CHECK_STR(text.buf, first.buf); /* all ranks agree */
        CHECK_OK(zt_manifest_parse("layout", text.buf, text.len, &parsed, &err), err);
        CHECK(parsed.n_files == world && parsed.n_tensors == m->n_params);
        for (int i = 0; i < m->n_params; i++)
            CHECK_INT(parsed.tensors[i].parts[ZT_CKPT_V].n > 0, m->params[i].trainable);
        zt_manifest_release(&parsed);
        zt_layout_release(&l);
        zt_str_release(&text);
        zt_plan_free(p);
    }
    zt_str_release(&first);
}

TEST(layout_covers_every_tensor_once)
{
    static const int ranks[] = {1, 2, 3, 5, 7};
    static const struct zt_model_config *const models[] = {&gpt2_fixture, &llama_fixture};
    for (int i = 0; i < 2 * 5 * 4 * 2 && !zt_test_failed; i++) {
        struct zt_arena arena = {0};
        struct zt_model *m;
        struct zt_plan_config cfg =
            plan_config(i / 10 % 4, ranks[i / 2 % 5], i & 1 ? ZT_BF16 : ZT_F32);
        cfg.saves = true;
        cfg.snapshot = i / 40 == 0;
        CHECK_OK(zt_model_build(models[i / 20 % 2], &arena, &m, &err), err);
        for (int k = 0; k < m->n_params && i % 3 == 0; k++) /* a whole unit is frozen */
            m->params[k].trainable = m->params[k].home_segment != 1;
        check_config(m, &cfg);
        zt_arena_release(&arena);
    }
}

TEST_MAIN()
