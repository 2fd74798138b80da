/*
 * Collectives of ranks on several nodes: the calls of calls.h, with one rank on each node, two, and three,
 * and what is left over on the last or the first node; over IPv4 and IPv6.
 */
#define TEST_RIGS                                                                                  \
    {.on_each = 1, .host = "127.0.0.1"}, {.on_each = 2, .host = "::1"},                            \
    {                                                                                              \
        .on_each = 3, .backwards = true, .host = "127.0.0.1"                                       \
    }
#include "calls.h"

TEST_MAIN()
