#include "metrics/record.h"

#include <sys/stat.h>
#include <unistd.h>

#include "metrics/metrics.h"

int zt_record_cut(const char *path, int64_t step, int64_t *last, struct zt_err *err)
{
    struct stat st;
    char *line = NULL;
    size_t cap = 0;
    off_t keep = 0;
    bool whole = true;
    *last = -1;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return zt_err_errno(err, ZT_EIO, "%s", path);
    for (ssize_t n; whole && (n = getline(&line, &cap, f)) > 0;) {
        struct zt_metrics m;
        struct zt_err bad;
        whole = line[n - 1] == '\n' && zt_metrics_from_json(line, (size_t)n - 1, &m, &bad) == 0 &&
                m.step <= step;
        keep += whole ? n : 0;
        *last = whole ? m.step : *last;
    }
    free(line);
    fclose(f);
    if (!whole && truncate(path, keep))
        return zt_err_errno(err, ZT_EIO, "%s", path);
    return 0;
}
