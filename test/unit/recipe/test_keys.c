#include "recipe_test.h"

#include "base/io.h"
#include "recipe/keys.h"

TEST(recipe_table_is_sound)
{
    for (int i = 0; i < zt_n_keys; i++) {
        const struct zt_key *k = &zt_keys[i];
        if (!k->doc || !k->doc[0])
            FAIL("%s has no doc", k->path);
        if (zt_key_canonical(k->path) != k->path)
            FAIL("%s is another key's alias", k->path);
        if (k->status == ZT_KEY_CARRIED && k->type != ZT_KEY_SECTION && k->dest == ZT_NO_DEST &&
            strcmp(k->path, "include") != 0)
            FAIL("%s is carried out nowhere", k->path);
        for (int j = 0; j < i; j++) {
            if (strcmp(k->path, zt_keys[j].path) == 0)
                FAIL("%s stands there twice", k->path);
        }
        const char *dot = strrchr(k->path, '.');
        char section[128];
        snprintf(section, sizeof section, "%.*s", dot ? (int)(dot - k->path) : 0, k->path);
        int at = dot ? zt_key_find(section) : -1;
        if (dot && (at < 0 || zt_keys[at].type != ZT_KEY_SECTION))
            FAIL("%s has no section", k->path);
    }
    for (int i = 0; i < zt_n_key_aliases; i++) {
        int at = zt_key_find(zt_key_aliases[i].canonical);
        if (at < 0 || strcmp(zt_keys[at].path, zt_key_aliases[i].canonical) != 0)
            FAIL("alias of the unknown key %s", zt_key_aliases[i].canonical);
    }
}

static void check_manual_entry(const char *manual, const struct zt_key *k)
{
    char item[160], dflt[64];
    snprintf(item, sizeof item, "\n.It Ic %s\n", k->path);
    const char *entry = strstr(manual, item);
    if (!entry)
        FAIL("man/zerotrain-recipe.5 lacks %s", k->path);
    if (!k->dflt || k->status != ZT_KEY_CARRIED || strchr(k->dflt, '\\'))
        return;
    const char *line = entry + strlen(item);
    snprintf(dflt, sizeof dflt, ", default %s.\n", k->dflt);
    const char *at = strstr(line, dflt);
    if (!at || at > strchr(line, '\n'))
        FAIL("man/zerotrain-recipe.5: the default of %s is %s", k->path, k->dflt);
}

TEST(recipe_manual_has_every_key)
{
    struct zt_str manual = {0};
    CHECK_OK(zt_read_file("man/zerotrain-recipe.5", 1 << 20, &manual, &err), err);
    for (int i = 0; i < zt_n_keys; i++) {
        if (zt_keys[i].type != ZT_KEY_SECTION)
            check_manual_entry(zt_str_get(&manual), &zt_keys[i]);
    }
    for (int i = 0; i < zt_n_key_aliases; i++) {
        struct zt_key k = {.path = zt_key_aliases[i].path};
        check_manual_entry(zt_str_get(&manual), &k);
    }
    zt_str_release(&manual);
}

TEST_MAIN()
