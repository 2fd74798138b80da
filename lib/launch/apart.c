#include "launch/apart.h"

#include <stdlib.h>

#include "base/arena.h"

static bool *at(const struct zt_apart *a, int node, int other)
{
    return &a->cut[(size_t)node * (size_t)a->n + (size_t)other];
}

void zt_apart_add(struct zt_apart *a, int node, int other)
{
    if (!a->cut)
        a->cut = zt_xcalloc((size_t)a->n * (size_t)a->n, sizeof *a->cut);
    *at(a, node, other) = *at(a, other, node) = true;
}

bool zt_apart_between(const struct zt_apart *a, int node, int other)
{
    return a->cut && *at(a, node, other);
}

/* From how many that are left `node` is apart. */
static int degree(const struct zt_apart *a, const bool *gone, const bool *out, int node)
{
    int n = 0;
    for (int i = 0; i < a->n && !gone[node] && !out[node]; i++)
        n += !gone[i] && !out[i] && *at(a, node, i);
    return n;
}

int zt_apart_mend(const struct zt_apart *a, const bool *gone, bool *out)
{
    int n_there = 0, n_out = 0;
    memset(out, 0, (size_t)a->n * sizeof *out);
    for (int i = 0; i < a->n; i++)
        n_there += !gone[i];
    while (a->cut) {
        int most = 0, worst = -1;
        for (int i = 0; i < a->n; i++) {
            const int n = degree(a, gone, out, i);
            if (n && n >= most) {
                most = n;
                worst = i;
            }
        }
        if (worst < 0)
            break;
        out[worst] = true;
        n_out++;
    }
    if (2 * (n_there - n_out) >= n_there)
        return n_out;
    memset(out, 0, (size_t)a->n * sizeof *out);
    return 0;
}

void zt_apart_release(struct zt_apart *a)
{
    free(a->cut);
    a->cut = NULL;
}
