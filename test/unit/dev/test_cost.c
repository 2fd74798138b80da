#include "dev/cost.h"

#include "harness.h"

static char memory; /* never read: operands that are given */

static struct zt_ref of(enum zt_dtype t)
{
    return (struct zt_ref){&memory, t};
}

TEST(dev_cost_of_products)
{
    struct zt_matmul a = {
        .m = 3, .n = 5, .k = 7, .a = of(ZT_BF16), .b = of(ZT_BF16), .c = of(ZT_F32)};
    CHECK_NEAR(zt_cost_matmul(&a).flops, 2 * 3 * 5 * 7, 0);
    CHECK_NEAR(zt_cost_matmul(&a).bytes, 2 * (3 * 7 + 5 * 7) + 4 * 3 * 5, 0);
    a.accumulate = true;
    CHECK_NEAR(zt_cost_matmul(&a).bytes, 2 * (3 * 7 + 5 * 7) + 2 * 4 * 3 * 5, 0);
}

/* Three queries of a sequence of three see one, two and three keys; with an offset of 2, two more each. */
TEST(dev_cost_of_attention)
{
    struct zt_attention a = {
        .batch = 1, .q_len = 3, .k_len = 3, .n_head = 2, .n_kv_head = 1, .head_dim = 8};
    CHECK_NEAR(zt_cost_attention_fwd(&a).flops, 4 * 2 * 8 * (1 + 2 + 3), 1e-9);
    CHECK_NEAR(zt_cost_attention_bwd(&a).flops, 10 * 2 * 8 * (1 + 2 + 3), 1e-9);
    a.q_offset = 2;
    CHECK_NEAR(zt_cost_attention_fwd(&a).flops, 4 * 2 * 8 * (3 + 4 + 5), 1e-9);
}

/* Bytes of an element: what mixed precision is known for. */
TEST(dev_cost_of_updates)
{
    float state[1];
    const struct zt_update_range ranges[] = {{0, 4, 0, 1}, {6, 10, 0, 1}};
    struct zt_update a = {ZT_ADAMW, ranges, 2,          NULL,        of(ZT_BF16),
                          state,    state,  of(ZT_F32), of(ZT_BF16), false};
    CHECK_NEAR(zt_cost_update(&a).bytes, 8 * (2 + 8 + 8 + 8 + 2), 0);
    a.grad = a.param = of(ZT_F32);
    a.master.ptr = NULL;
    CHECK_NEAR(zt_cost_update(&a).bytes, 8 * (4 + 8 + 8 + 8), 0);
    a.v = NULL;
    CHECK_NEAR(zt_cost_update(&a).bytes, 8 * (4 + 8 + 8), 0);
}

TEST(dev_cost_of_scattered_gradients)
{
    struct zt_embed_bwd a = {
        .rows = 10, .cols = 4, .vocab = 100, .dout = of(ZT_BF16), .dwte = of(ZT_F32)};
    CHECK_NEAR(zt_cost_embed_bwd(&a).bytes, 10 * 4 * 2 + 100 * 4 * 4, 0);
    a.accumulate_wte = true;
    CHECK_NEAR(zt_cost_embed_bwd(&a).bytes, 10 * 4 * 2 + 2 * 10 * 4 * 4, 0);
}

TEST_MAIN()
