/*
 * Feeds every file of a folder to LLVMFuzzerTestOneInput, so that a fuzz corpus is a test with any
 * compiler. The folder is ZT_CORPUS (set by the Makefile), or the first argument. An empty folder
 * fails: it would prove nothing.
 */
#include "base/compat.h"

#include <dirent.h>
#include <sys/stat.h>

#include "base/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int feed(const char *path)
{
    struct zt_mapped m;
    struct zt_err err;
    if (zt_map_file(path, &m, &err)) {
        printf("not ok fuzz: %s\n", err.msg);
        return -1;
    }
    /* A heap copy, so that AddressSanitizer sees a read past the end. */
    uint8_t *copy = malloc(m.bytes ? m.bytes : 1);
    if (!copy)
        abort();
    if (m.bytes)
        memcpy(copy, m.data, m.bytes);
    LLVMFuzzerTestOneInput(copy, m.bytes);
    free(copy);
    zt_unmap_file(&m);
    return 0;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : ZT_CORPUS;
    struct dirent **entries;
    int n = scandir(dir, &entries, NULL, alphasort), fed = 0, bad = 0;
    for (int i = 0; i < n; i++) {
        struct zt_str path = {0};
        struct stat st;
        zt_str_printf(&path, "%s/%s", dir, entries[i]->d_name);
        if (stat(path.buf, &st) == 0 && S_ISREG(st.st_mode)) {
            bad |= feed(path.buf);
            fed++;
        }
        zt_str_release(&path);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    if (!fed)
        printf("not ok fuzz: %s: no inputs\n", dir);
    else if (!bad)
        printf("ok fuzz %s: %d inputs\n", dir, fed);
    return bad || !fed;
}
