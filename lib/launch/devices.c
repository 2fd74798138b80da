#include "launch/launch.h"

#include <ctype.h>
#include <dirent.h>

enum entry_kind { ENTRY_INDEX, ENTRY_NAME, ENTRY_END, ENTRY_BAD };

/* CUDA takes indices and "GPU-..." or "MIG-..." names; an index of -1 ends the list. */
static enum entry_kind classify(const char *entry, int64_t *index)
{
    if (strncmp(entry, "GPU-", 4) == 0 || strncmp(entry, "MIG-", 4) == 0)
        return ENTRY_NAME;
    if (strcmp(entry, "-1") == 0 || strcmp(entry, "NoDevFiles") == 0) /* the latter is Slurm's */
        return ENTRY_END;
    return zt_parse_i64(entry, index) && *index >= 0 ? ENTRY_INDEX : ENTRY_BAD;
}

/* Cut the copy in *buf at its commas, in place, without the blanks around entries. */
static int split(struct zt_str *buf, const char **out, int max_out, int *n_out)
{
    char *p = buf->buf;
    *n_out = 0;
    for (;;) {
        char *comma = strchr(p, ',');
        char *next = comma ? comma + 1 : NULL;
        char *end = comma ? comma : p + strlen(p);
        while (end > p && isspace((unsigned char)end[-1]))
            end--;
        while (p < end && isspace((unsigned char)*p))
            p++;
        *end = '\0';
        if (*n_out == max_out)
            return -1;
        out[(*n_out)++] = p;
        if (!next)
            return 0;
        p = next;
    }
}

/* One device, also where its index is written in two ways: 1 and 01. */
static bool is_same(const char *a, const char *b)
{
    int64_t i, k;
    return strcmp(a, b) == 0 ||
           (classify(a, &i) == ENTRY_INDEX && classify(b, &k) == ENTRY_INDEX && i == k);
}

static int check_entries(const char *visible, int n_present, const char **out, int *n_out,
                         struct zt_err *err)
{
    int64_t index = 0;
    for (int i = 0; i < *n_out; i++) {
        switch (classify(out[i], &index)) {
        case ENTRY_END:
            *n_out = i;
            return 0;
        case ENTRY_BAD:
            return zt_err_set(err, ZT_EINPUT,
                              "CUDA_VISIBLE_DEVICES=%s: \"%s\" is neither an index nor a GPU-... "
                              "name",
                              visible, out[i]);
        case ENTRY_INDEX:
            if (n_present >= 0 && index >= n_present)
                return zt_err_set(err, ZT_EINPUT,
                                  "CUDA_VISIBLE_DEVICES=%s names device %s, but this host has %d "
                                  "(the first is 0)",
                                  visible, out[i], n_present);
            break;
        case ENTRY_NAME:
            break;
        }
        for (int j = 0; j < i; j++) {
            if (is_same(out[j], out[i]))
                return zt_err_set(err, ZT_EINPUT, "CUDA_VISIBLE_DEVICES=%s names device %s twice",
                                  visible, out[i]);
        }
    }
    return 0;
}

int zt_pick_devices(const char *visible, int n_present, int n_wanted, struct zt_str *buf,
                    const char **out, int max_out, int *n_out, struct zt_err *err)
{
    zt_str_reset(buf);
    *n_out = 0;
    if (visible) {
        zt_str_puts(buf, visible);
    } else {
        for (int i = 0; i < n_present; i++)
            zt_str_printf(buf, "%s%d", i ? "," : "", i);
    }
    size_t blank = strspn(zt_str_get(buf), " \t");
    if (blank < buf->len) {
        if (split(buf, out, max_out, n_out))
            return zt_err_set(err, ZT_EINPUT, "more than %d devices are visible", max_out);
        int rc = check_entries(visible, n_present, out, n_out, err);
        if (rc)
            return rc;
    }
    if (n_wanted > *n_out && visible)
        return zt_err_set(err, ZT_EINPUT,
                          "%d devices are wanted, but CUDA_VISIBLE_DEVICES=%s shows %d", n_wanted,
                          visible, *n_out);
    if (n_wanted > *n_out)
        return zt_err_set(err, ZT_EINPUT, "%d devices are wanted, but this host has %d", n_wanted,
                          *n_out);
    if (n_wanted > 0)
        *n_out = n_wanted;
    return 0;
}

int zt_count_devices(void)
{
    DIR *dir = opendir("/dev");
    int n = 0;
    if (!dir)
        return 0;
    for (struct dirent *e; (e = readdir(dir));) {
        int64_t minor;
        n += strncmp(e->d_name, "nvidia", 6) == 0 && zt_parse_i64(e->d_name + 6, &minor);
    }
    closedir(dir);
    return n;
}
