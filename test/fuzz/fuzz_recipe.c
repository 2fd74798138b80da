/*
 * fuzz_recipe.c: any bytes as a recipe. It loads or fails with a message; one that loads prints to a
 * text that loads to the same values. Keys that name other files are left out: what those hold is not
 * the fuzzer's.
 */
#include "base/compat.h"

#include "recipe/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct zt_recipe *load(const char *text, struct zt_err *err)
{
    const struct zt_recipe_opts o = {
        .path = "fuzz.yaml", .text = text, .n_ranks = 4, .for_plan = true};
    struct zt_recipe *r = NULL;
    err->msg[0] = '\0';
    int rc = zt_recipe_load(&o, &r, err);
    ZT_ASSERT(rc == 0 ? r != NULL : err->msg[0] != '\0');
    return rc == 0 ? r : NULL;
}

static void check_round_trip(const struct zt_recipe *r)
{
    struct zt_str text = {0};
    struct zt_err err;
    zt_recipe_print(r, &text);
    struct zt_recipe *again = load(zt_str_get(&text), &err);
    if (!again || again->n_values != r->n_values) {
        fprintf(stderr, "%s\n%s", again ? "" : err.msg, zt_str_get(&text));
        abort();
    }
    for (int i = 0; i < r->n_values; i++)
        ZT_ASSERT(strcmp(again->values[i].value, r->values[i].value) == 0);
    zt_recipe_free(again);
    zt_str_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    /* The last four could spell such a key another way. */
    static const char *const files[] = {"include", "config", "from", "\\x", "\\u", "\\U", "\\\n"};
    char *text = malloc(n + 1);
    struct zt_err err;
    if (!text)
        abort();
    if (n)
        memcpy(text, data, n);
    text[n] = '\0';
    bool reads_files = false;
    for (size_t i = 0; i < ZT_ARRAY_LEN(files); i++)
        reads_files = reads_files || strstr(text, files[i]);
    struct zt_recipe *r = reads_files ? NULL : load(text, &err);
    if (r)
        check_round_trip(r);
    zt_recipe_free(r);
    free(text);
    return 0;
}
