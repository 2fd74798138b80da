#include "base/build.h"

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/version.h"

enum { SHOWN_BYTES = 10 }; /* of the linker's 20: enough to tell builds apart */

static char name[sizeof ZT_VERSION + sizeof ", build " + 2 * SHOWN_BYTES];

static size_t padded(size_t n)
{
    return (n + 3) & ~(size_t)3;
}

/* Look for the linker's note in n bytes of notes; true when it is there. */
static bool find_note(const char *p, size_t n, char *hex)
{
    ElfW(Nhdr) h;
    while (n >= sizeof h) {
        memcpy(&h, p, sizeof h);
        const size_t name_bytes = padded(h.n_namesz),
                     all = sizeof h + name_bytes + padded(h.n_descsz);
        if (all > n)
            return false;
        const char *owner = p + sizeof h, *id = owner + name_bytes;
        if (h.n_type == NT_GNU_BUILD_ID && h.n_namesz == 4 && memcmp(owner, "GNU", 4) == 0 &&
            h.n_descsz >= SHOWN_BYTES) {
            for (int i = 0; i < SHOWN_BYTES; i++)
                snprintf(hex + 2 * i, 3, "%02x", (unsigned char)id[i]);
            return true;
        }
        p += all;
        n -= all;
    }
    return false;
}

/* The first object is the program itself. */
static int read_program(struct dl_phdr_info *info, size_t size, void *hex)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type == PT_NOTE &&
            find_note((const char *)(info->dlpi_addr + h->p_vaddr), h->p_memsz, hex))
            break;
    }
    return 1;
}

static void make_name(void)
{
    char hex[2 * SHOWN_BYTES + 1] = "unknown";
    dl_iterate_phdr(read_program, hex);
    snprintf(name, sizeof name, "%s, build %s", ZT_VERSION, hex);
}

const char *zt_build_name(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_name);
    return name;
}
