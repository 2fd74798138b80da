/*
 * display_memory.h: what ranks report of their memory, and how it is shown. A part of display.h.
 */
#ifndef ZT_CMD_DISPLAY_MEMORY_H
#define ZT_CMD_DISPLAY_MEMORY_H

#include <jansson.h>

#include "display.h"

struct rank_memory *display_memory_create(int world); /* free it */

/* A rank's report "memory". */
void display_memory_add(struct display *d, int rank, const json_t *o);

/* The table of all ranks that reported. */
void display_memory_print(struct display *d);

/* One object for every rank that came to its end; *digest is of them all. */
json_t *display_memory_json(const struct display *d, uint64_t *digest);

#endif
