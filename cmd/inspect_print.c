#include "inspect.h"

static const char gap[] = "  ";

/* A key as a person reads it. */
static void print_key(const char *key, int width, FILE *out)
{
    int n = 0;
    for (; key[n]; n++)
        fputc(key[n] == '_' ? ' ' : key[n], out);
    fprintf(out, "%*s", width - n, "");
}

static void add_text(struct zt_str *out, const char *text)
{
    for (const char *p = text; *p; p++) {
        char c = (unsigned char)*p < ' ' || *p == 0x7f ? '?' : *p;
        zt_str_add(out, &c, 1);
    }
}

static void add_value(struct zt_str *out, const json_t *value)
{
    const json_t *item;
    size_t i;
    switch (json_typeof(value)) {
    case JSON_STRING:
        add_text(out, json_string_value(value));
        return;
    case JSON_INTEGER:
        zt_str_printf(out, "%lld", (long long)json_integer_value(value));
        return;
    case JSON_REAL:
        zt_str_printf(out, "%.9g", json_real_value(value));
        return;
    case JSON_TRUE:
        zt_str_puts(out, "yes");
        return;
    case JSON_FALSE:
        zt_str_puts(out, "no");
        return;
    case JSON_ARRAY:
        zt_str_puts(out, "(");
        json_array_foreach(value, i, item)
        {
            zt_str_puts(out, i ? ", " : "");
            add_value(out, item);
        }
        zt_str_puts(out, ")");
        return;
    case JSON_OBJECT:
    case JSON_NULL:
        return;
    }
}

static void print_line(const char *key, const json_t *value, int width, FILE *out)
{
    struct zt_str text = {0};
    char rounded[32];
    add_value(&text, value);
    if (strcmp(key, "bytes") == 0 && json_integer_value(value) >= 1000000)
        zt_str_printf(&text, " (%s)",
                      zt_fmt_gb(rounded, sizeof rounded, (double)json_integer_value(value)));
    print_key(key, width, out);
    fprintf(out, "%s%s\n", gap, zt_str_get(&text));
    zt_str_release(&text);
}

/* ---- tables: lists of objects that have the same keys ---- */

/* Not shown: nothing is said, or nothing is in it. */
static bool is_empty(const json_t *value)
{
    return json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0);
}

static bool is_table(const json_t *value)
{
    return json_is_array(value) && json_is_object(json_array_get(value, 0));
}

static size_t widest(const json_t *rows, const char *key)
{
    size_t width = strlen(key), i;
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        struct zt_str cell = {0};
        const json_t *value = json_object_get(row, key);
        if (value)
            add_value(&cell, value);
        width = ZT_MAX(width, cell.len);
        zt_str_release(&cell);
    }
    return width;
}

/* Numbers stand to the right; no blanks behind the last column. */
static void print_cell(const json_t *value, int width, bool last, FILE *out)
{
    struct zt_str cell = {0};
    if (value)
        add_value(&cell, value);
    if (json_is_number(value))
        fprintf(out, "%s%*s", gap, width, zt_str_get(&cell));
    else
        fprintf(out, "%s%-*s", gap, last ? 0 : width, zt_str_get(&cell));
    zt_str_release(&cell);
}

static void print_table(const char *name, json_t *rows, FILE *out)
{
    enum { MAX_COLUMNS = 16 };
    json_t *first = json_array_get(rows, 0), *value;
    int widths[MAX_COLUMNS], n = 0;
    const char *key, *keys[MAX_COLUMNS];
    const json_t *row;
    size_t i;
    json_object_foreach(first, key, value)
    {
        ZT_ASSERT_CMP(n, <, MAX_COLUMNS);
        keys[n] = key;
        widths[n++] = (int)widest(rows, key);
    }
    fprintf(out, "\n%s\n", name);
    for (int c = 0; c < n; c++) {
        bool number = json_is_number(json_object_get(first, keys[c]));
        fprintf(out, number ? "%s%*s" : c == n - 1 ? "%s%.*s" : "%s%-*s", gap, widths[c], keys[c]);
    }
    fputc('\n', out);
    json_array_foreach(rows, i, row)
    {
        for (int c = 0; c < n; c++)
            print_cell(json_object_get(row, keys[c]), widths[c], c == n - 1, out);
        fputc('\n', out);
    }
}

void inspect_print(const json_t *root, FILE *out)
{
    json_t *all = json_deep_copy(root), *value;
    const char *key;
    int width = 0;
    json_object_foreach(all, key, value)
    {
        if (!is_table(value) && !is_empty(value))
            width = ZT_MAX(width, (int)strlen(key));
    }
    json_object_foreach(all, key, value)
    {
        if (!is_table(value) && !is_empty(value))
            print_line(key, value, width, out);
    }
    json_object_foreach(all, key, value)
    {
        if (is_table(value))
            print_table(key, value, out);
    }
    json_decref(all);
}
