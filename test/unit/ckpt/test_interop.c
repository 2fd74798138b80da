/* Our reader against the reference implementation; see scripts/interop-safetensors.py. */
#include "harness.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/safetensors.h"
#include "unit/ckpt/st_find.h"

enum { SKIPPED = 77 };

static void check_values(const char *dir)
{
    struct zt_st_file f;
    struct zt_err err;
    char path[256], name[32];
    snprintf(path, sizeof path, "%s/values.safetensors", dir);
    CHECK_OK(zt_st_open(path, &f, &err), err);
    CHECK_INT(f.n_tensors, 6);
    CHECK(st_find(&f, "empty") && st_find(&f, "mask"));
    snprintf(path, sizeof path, "%s/values.txt", dir);
    FILE *values = fopen(path, "r");
    CHECK(values);
    int n = 0;
    long long i;
    for (double want; fscanf(values, "%31s %lld %la", name, &i, &want) == 3; n++) {
        const struct zt_st_tensor *t = st_find(&f, name);
        float got;
        CHECK(t && i < t->n_elems);
        zt_st_read_f32(t, i, 1, &got);
        if ((double)got != want)
            FAIL("%s[%lld] is %a, not %a", name, i, (double)got, want);
    }
    CHECK_INT(n, 19);
    fclose(values);
    zt_st_close(&f);
}

/*
 * What we accept, the reference accepts. What it accepts and we do not is on purpose: names that
 * stand twice (the format's text forbids them), types of less than a byte, more than 8 dimensions.
 */
static void check_verdicts(const char *dir)
{
    char path[256], line[512];
    snprintf(path, sizeof path, "%s/verdicts.txt", dir);
    FILE *verdicts = fopen(path, "r");
    CHECK(verdicts);
    int n = 0;
    for (; fgets(line, sizeof line, verdicts); n++) {
        struct zt_st_file f;
        struct zt_err err;
        line[strcspn(line, "\n")] = '\0';
        bool reference = strncmp(line, "accept ", 7) == 0;
        bool ours = zt_st_open(line + 7, &f, &err) == 0;
        if (ours)
            zt_st_close(&f);
        if (ours && !reference)
            FAIL("%s: we accept it", line);
        if (!ours && reference && !strstr(err.msg, "duplicate object key") &&
            !strstr(err.msg, "unknown dtype") && !strstr(err.msg, "dimensions; at most"))
            FAIL("%s: %s", line, err.msg);
    }
    CHECK(n > 10);
    fclose(verdicts);
}

TEST(interop_safetensors)
{
    char dir[] = "build/test-interop-XXXXXX", cmd[256], reason[256] = "no output";
    if ((mkdir("build", 0777) && access("build", W_OK)) || !mkdtemp(dir))
        FAIL("no folder under build/");
    snprintf(cmd, sizeof cmd,
             "python3 scripts/interop-safetensors.py %s test/fuzz/corpus/safetensors/* "
             "test/cases/fixture_*/model.safetensors 2>&1",
             dir);
    FILE *out = popen(cmd, "r");
    CHECK(out);
    while (fgets(reason, sizeof reason, out))
        reason[strcspn(reason, "\n")] = '\0';
    int status = pclose(out);
    status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    bool skipped = status == SKIPPED || status == 127; /* 127: no python3 */
    if (!skipped && status == 0) {
        check_values(dir);
        check_verdicts(dir);
    }
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    CHECK_INT(system(cmd), 0);
    RETURN_IF_FAILED();
    if (skipped)
        SKIP("%s", reason);
    if (status)
        FAIL("the script ended with %d: %s", status, reason);
}

TEST_MAIN()
