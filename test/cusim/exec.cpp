/*
 * exec.cpp: carries out one launch of a kernel in the calling thread: a fiber per CUDA thread, one block
 * after the other (device.h says what that models). A fiber runs until it meets a barrier or a warp
 * operation, then switches straight to the next one that can run; a kernel without either runs a warp's
 * lanes one after the other on one stack.
 */
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cusim/device.h"
#include "cusim/fiber.h"
#include "cusim/sim.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

using cusim::fiber;

namespace
{

constexpr size_t STATIC_SHARED_BYTES = 48 << 10;
constexpr int MAX_SHARED_ARRAYS = 32, WARP = 32;
#if defined(CUSIM_TSAN)
constexpr bool TSAN = true;
#else
constexpr bool TSAN = false;
#endif

enum state { RUNNING, AT_BARRIER, AT_WARP_OP, DONE };

struct lane {
    cusim_thread pub; /* first: what cusim_cur points to */
    fiber *fib;       /* NULL: has not started, or has ended */
    state at;
    int index;

    /* What it waits for. */
    unsigned mask;
    int op, arg;
    const void *in;
    void *out;
    cusim_warp_fn fn;
    const char *file;
    int line;
};

struct warp {
    unsigned live, runnable, waiting; /* bits of lanes; waiting: at a warp operation */
    unsigned generation;              /* of __syncwarp() */
};

struct shared_array {
    const void *key;
    char *base, *p;
};

/* Points in memory that stand for what a block's barriers order; in two copies used in turn, so that
 * a thread that is late at one barrier learns nothing of what others did before the next. */
struct block_tags {
    char barrier[2];
    char warp[WARP][2];
};

enum { NAMELESS = 2 };

/* The executor of one host thread. */
struct executor {
    const char *name = "";
    void (*run)(void *) = nullptr;
    void *args = nullptr;
    std::vector<lane> lanes;
    std::vector<warp> warps;
    fiber main;
    /* Free fibers: for ThreadSanitizer two sets of either kind in turn, so that neighbouring blocks
     * share neither a name nor a stack. */
    fiber *idle[4] = {};
    fiber *spent = nullptr; /* by lanes of this block that have ended */
    int set = 0;            /* 0, 1: with names; NAMELESS and the next one: without */
    fiber *whole[2] = {};   /* ThreadSanitizer: names of blocks whose lanes have none, in turn */
    lane *cur = nullptr;

    int live = 0, at_barrier = 0, pred_sum = 0, pred_result = 0;
    unsigned generation = 0; /* of the barrier */
    char start_tag = 0, end_tag = 0;
    block_tags *tags = nullptr;

    char *dyn_base = nullptr, *dyn = nullptr;
    size_t smem = 0, static_bytes = 0;
    shared_array arrays[MAX_SHARED_ARRAYS];
    int n_arrays = 0;

    bool shuffle = false;
    unsigned long long rng = 0;

    executor();
    ~executor();
};

thread_local std::unique_ptr<executor> own_executor;
/* The same as a plain pointer: read at each barrier. */
__thread executor *X __attribute__((tls_model("initial-exec")));

unsigned random_below(executor *x, unsigned n)
{
    x->rng = x->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(x->rng >> 33) % n;
}

/* ---- Failing ---- */

void describe(const executor *x)
{
    const lane *before = nullptr;
    int shown = 0;
    for (const lane &l : x->lanes) {
        bool same = before && before->at == l.at && (l.at == DONE || before->line == l.line);
        before = &l;
        if (same || shown++ == 12)
            continue;
        int i = l.index;
        if (l.at == AT_BARRIER)
            fprintf(stderr, "    thread %d: waits at %s:%d, __syncthreads\n", i, l.file, l.line);
        else if (l.at == AT_WARP_OP)
            fprintf(stderr, "    thread %d: waits at %s:%d, a warp operation with mask %08x\n", i,
                    l.file, l.line, l.mask);
        else if (l.at == DONE)
            fprintf(stderr, "    thread %d: has exited\n", i);
        else
            fprintf(stderr, "    thread %d: runs\n", i);
    }
}

[[noreturn]] void die(const char *why)
{
    const executor *x = X;
    uint3 b = x->lanes[0].pub.bid;
    fprintf(stderr, "cusim: %s: kernel %s, block (%u,%u,%u)\n", why, x->name, b.x, b.y, b.z);
    describe(x);
    abort();
}

/* ---- Scheduling ---- */

void fiber_main();

/* The next lane that can run: of the current warp first, so that warps drift apart. */
lane *pick(executor *x)
{
    const int n = (int)x->warps.size();
    int w = x->cur ? x->cur->index / WARP : 0;
    if (x->shuffle)
        w = (int)random_below(x, (unsigned)n);
    for (int i = 0; i < n; i++, w = w + 1 < n ? w + 1 : 0) {
        unsigned ready = x->warps[w].runnable;
        if (!ready)
            continue;
        int l = __builtin_ctz(ready);
        if (x->shuffle) {
            for (unsigned skip = random_below(x, (unsigned)__builtin_popcount(ready)); skip; skip--)
                ready &= ready - 1;
            l = __builtin_ctz(ready);
        }
        return &x->lanes[w * WARP + l];
    }
    return nullptr;
}

void make_current(executor *x, lane *l)
{
    x->cur = l;
    l->at = RUNNING;
    x->warps[l->index / WARP].runnable &= ~(1u << l->index % WARP);
    cusim_cur = &l->pub;
}

/* Switches from the fiber `from` to whatever can run: a lane, or the main fiber at the block's end. */
void go_on(executor *x, fiber *from, bool ends)
{
    lane *next = pick(x);
    if (!next) {
        if (x->live)
            die("deadlock: a barrier or warp operation that not all threads reach");
        switch_fiber(from, &x->main, ends);
        return;
    }
    make_current(x, next);
    if (!next->fib) {
        next->fib = cusim::pop(&x->idle[x->set]);
        if (!next->fib)
            next->fib = cusim::make_fiber(x->set < NAMELESS);
        cusim::arm(next->fib, fiber_main);
    }
    if (next->fib != from)
        switch_fiber(from, next->fib, ends);
}

void set_runnable(executor *x, lane *l)
{
    x->warps[l->index / WARP].runnable |= 1u << l->index % WARP;
}

void try_barrier(executor *x)
{
    if (!x->at_barrier || x->at_barrier != x->live)
        return;
    x->at_barrier = 0;
    x->pred_result = x->pred_sum;
    x->pred_sum = 0;
    x->generation++;
    for (lane &l : x->lanes) {
        if (l.at == AT_BARRIER)
            set_runnable(x, &l);
    }
}

/* Carries out the operation that lane l waits for if all lanes of its mask are there. */
bool try_warp_op(executor *x, lane *l)
{
    warp *w = &x->warps[l->index / WARP];
    const unsigned need = l->mask & w->live;
    if ((w->waiting & need) != need)
        return false;
    lane *first = &x->lanes[l->index / WARP * WARP];
    const void *in[WARP] = {};
    void *out[WARP] = {};
    for (int i = 0; i < WARP; i++) {
        if (!(need >> i & 1))
            continue;
        const lane *m = first + i;
        if (m->mask != l->mask || m->op != l->op || m->fn != l->fn || m->arg != l->arg)
            die("lanes of a warp meet in different warp operations or with different masks");
        in[i] = m->in;
        out[i] = m->out;
    }
    if (l->fn)
        l->fn(need, in, out, l->arg);
    w->waiting &= ~need;
    w->runnable |= need;
    if (l->op == CUSIM_OP_SYNCWARP)
        w->generation++;
    return true;
}

/* The current lane has run to its end: who waits for it?  */
void lane_ends(executor *x, lane *me)
{
    warp *w = &x->warps[me->index / WARP];
    me->at = DONE;
    me->fib = nullptr;
    x->live--;
    w->live &= ~(1u << me->index % WARP);
    try_barrier(x);
    for (unsigned left = w->waiting; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        if (w->waiting >> i & 1)
            try_warp_op(x, &x->lanes[me->index / WARP * WARP + i]);
    }
}

void fiber_main()
{
    executor *x = X;
    cusim::fiber_begins();
    for (;;) {
        fiber *self = x->cur->fib;
        cusim::acquire(&x->start_tag);
        x->run(x->args);
        cusim::release(&x->end_tag);
        lane_ends(x, x->cur);
        if (x->set >= NAMELESS) { /* a lane that has not started may have this stack */
            lane *next = pick(x);
            if (next && !next->fib) {
                next->fib = self;
                make_current(x, next);
                continue;
            }
        }
        push(&x->spent, self);
        go_on(x, self, true);
        abort();
    }
}

/* ---- Shared memory ---- */

/* NaNs, so that nothing can lean on zeros or on what another block left. */
char *fresh(size_t bytes, size_t align, char **base)
{
    cusim::quiet q;
    size_t offset = align < 128 ? align : 0; /* aligned to `align` and not better */
    *base = (char *)aligned_alloc(128, (offset + bytes + 127) / 128 * 128);
    if (!*base)
        die("out of memory");
    char *p = *base + offset;
    memset(p, 0xff, bytes);
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(*base, offset);
    __asan_poison_memory_region(p + bytes, (size_t)(-(intptr_t)(p + bytes) & 127));
#endif
    return p;
}

void stale(char *base)
{
    cusim::quiet q;
    free(base);
}

/* ---- Blocks ---- */

executor::executor()
{
    const char *seed = getenv("CUSIM_SHUFFLE");
    shuffle = seed != nullptr;
    rng = seed ? strtoull(seed, nullptr, 10) : 0;
    cusim::adopt_thread(&main);
}

executor::~executor()
{
    for (fiber *&list : idle) {
        while (fiber *f = cusim::pop(&list))
            cusim::free_fiber(f);
    }
    for (fiber *f : whole) {
        if (f)
            cusim::free_fiber(f);
    }
}

void begin_block(executor *x, uint3 bid, dim3 block, dim3 grid)
{
    const int n = (int)x->lanes.size();
    for (int i = 0; i < n; i++) {
        lane *l = &x->lanes[i];
        unsigned u = (unsigned)i;
        *l = lane();
        l->index = i;
        l->pub.tid = {u % block.x, u / block.x % block.y, u / (block.x * block.y)};
        l->pub.bid = bid;
        l->pub.bdim = block;
        l->pub.gdim = grid;
    }
    for (int w = 0; w < (int)x->warps.size(); w++) {
        int lanes = std::min(WARP, n - w * WARP);
        unsigned all = lanes == WARP ? ~0u : (1u << lanes) - 1;
        x->warps[w] = {all, all, 0, 0};
    }
    x->live = n;
    x->at_barrier = x->pred_sum = x->pred_result = 0;
    x->cur = nullptr;
    x->n_arrays = 0;
    x->static_bytes = 0;
    x->dyn = x->smem ? fresh(x->smem, 128, &x->dyn_base) : nullptr;
}

void end_block(executor *x)
{
    cusim_cur = nullptr;
    if (x->dyn)
        stale(x->dyn_base);
    for (int i = 0; i < x->n_arrays; i++)
        stale(x->arrays[i].base);
    while (fiber *f = pop(&x->spent))
        push(&x->idle[x->set], f);
}

} // namespace

/* ---- What kernels call ---- */

int cusim_syncthreads(int pred, const char *file, int line)
{
    executor *x = X;
    lane *me = x->cur;
    const char *tag = x->tags ? &x->tags->barrier[x->generation & 1] : nullptr;
    me->file = file;
    me->line = line;
    me->at = AT_BARRIER;
    x->pred_sum += pred;
    x->at_barrier++;
    if (tag)
        cusim::release(tag);
    try_barrier(x);
    go_on(x, me->fib, false);
    if (tag)
        cusim::acquire(tag);
    return x->pred_result;
}

void cusim_warp_op(unsigned mask, int op, const void *in, void *out, cusim_warp_fn fn, int arg,
                   const char *file, int line)
{
    executor *x = X;
    lane *me = x->cur;
    warp *w = &x->warps[me->index / WARP];
    const char *tag = nullptr;
    if (op == CUSIM_OP_SYNCWARP && x->tags)
        tag = &x->tags->warp[me->index / WARP][w->generation & 1];
    me->mask = mask;
    me->op = op;
    me->in = in;
    me->out = out;
    me->fn = fn;
    me->arg = arg;
    me->file = file;
    me->line = line;
    me->at = AT_WARP_OP;
    if (!(mask >> me->index % WARP & 1))
        die("a lane calls a warp operation and is not in its own mask");
    if (tag)
        cusim::release(tag);
    w->waiting |= 1u << me->index % WARP;
    if (try_warp_op(x, me))
        make_current(x, me);
    else
        go_on(x, me->fib, false);
    if (tag)
        cusim::acquire(tag);
}

void *cusim_shared(const void *key, size_t bytes, size_t align)
{
    executor *x = X;
    for (int i = 0; i < x->n_arrays; i++) {
        if (x->arrays[i].key == key)
            return x->arrays[i].p;
    }
    x->static_bytes += bytes;
    if (x->n_arrays == MAX_SHARED_ARRAYS || x->static_bytes > STATIC_SHARED_BYTES)
        die("more than 48 KiB or 32 arrays of static shared memory");
    if (x->static_bytes + x->smem > cusim::settings().shared_bytes)
        die("more than a block may have of static and dynamic shared memory together");
    shared_array *a = &x->arrays[x->n_arrays++];
    a->key = key;
    a->p = fresh(bytes, align, &a->base);
    return a->p;
}

void *cusim_dyn_shared(void)
{
    return X->dyn;
}

void cusim_trap(const char *why, const char *file, int line)
{
    fprintf(stderr, "cusim: %s:%d: %s\n", file, line, why);
    die("trap");
}

void cusim_fence(void)
{
    X->cur->pub.fenced = true;
}

/* An atomic after a fence publishes what was written before; who sees it, acquires. */
void cusim_atomic_order(const void *p)
{
#if defined(CUSIM_TSAN)
    if (X->cur->pub.fenced)
        cusim::release(p);
    cusim::acquire(p);
#else
    (void)p;
#endif
}

__thread cusim_thread *cusim_cur __attribute__((tls_model("initial-exec")));

/*
 * For ThreadSanitizer the lanes of a block are threads, each of which costs as much as there are of them at every
 * barrier: in the first and the last blocks of a launch and in some between. In the others they are one thread, as what
 * blocks and streams do to each other needs no more.
 */
static bool lanes_are_threads(size_t i, size_t n_blocks)
{
    return TSAN && (i < 2 || i + 2 >= n_blocks || i % 8 == 0);
}

/* The set of fibers for the i-th block. */
static void begin_names(executor *x, size_t i, size_t n_blocks, int *n_named)
{
    if (!TSAN) {
        x->set = NAMELESS;
        return;
    }
    if (lanes_are_threads(i, n_blocks)) {
        x->set = (*n_named)++ % 2;
        return;
    }
    x->set = NAMELESS + (int)(i % 2);
    fiber *&name = x->whole[i % 2];
    if (!name)
        name = cusim::make_fiber(true);
    cusim::take_name(name);
}

void cusim::run_kernel(const char *name, dim3 grid, dim3 block, size_t smem, void (*run)(void *),
                       void *args)
{
    if (!own_executor)
        own_executor = std::make_unique<executor>();
    executor *x = X = own_executor.get();
    const unsigned n_threads = block.x * block.y * block.z;
    const size_t n_blocks = (size_t)grid.x * grid.y * grid.z;
    x->name = name;
    x->run = run;
    x->args = args;
    x->smem = smem;
    x->lanes.resize(n_threads);
    x->warps.resize((n_threads + WARP - 1) / WARP);
    std::unique_ptr<block_tags[]> tags;
#if defined(CUSIM_TSAN)
    {
        quiet q;
        tags.reset(new block_tags[n_blocks]);
    }
#endif
    release(&x->start_tag);
    const size_t start = x->shuffle ? random_below(x, (unsigned)n_blocks) : 0;
    int n_named = 0;
    for (size_t i = 0; i < n_blocks; i++) {
        const size_t b = (i + start) % n_blocks;
        const size_t plane = (size_t)grid.x * grid.y;
        begin_block(
            x, {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / plane)},
            block, grid);
        begin_names(x, i, n_blocks, &n_named);
        x->tags = x->set >= NAMELESS ? nullptr : &tags[i];
        go_on(x, &x->main, false);
        end_block(x);
    }
    acquire(&x->end_tag); /* no order between blocks: what races across blocks is a race */
    quiet q;
    tags.reset();
}
