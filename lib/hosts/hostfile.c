/*
 * hostfile.c: DeepSpeed's hostfile. The reference takes what its regular expression finds in a line; here
 * what it would overlook ("slots=4x", a second word) is an error.
 */
#include <ctype.h>

#include "base/io.h"
#include "internal.h"

struct parser {
    const char *path;
    int line;
    const char *begin, *end; /* of the line, without what ends it */
    struct zt_hosts *out;
    struct problems wrong;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && is_blank(*p))
        p++;
    return p;
}

static const char *word_end(const char *p, const char *end)
{
    while (p < end && !is_blank(*p))
        p++;
    return p;
}

static int column(const struct parser *ps, const char *at)
{
    return (int)(at - ps->begin) + 1;
}

/* `user` in user@name: what a Unix account may be called. */
static bool is_user(const char *s, size_t len)
{
    bool ok = len > 0 && len < ZT_HOST_NAME_BYTES && s[0] != '-';
    for (size_t i = 0; i < len; i++)
        ok = ok && (isalnum((unsigned char)s[i]) || (s[i] && strchr("._-+", s[i])));
    return ok;
}

/* The first word of a line. */
static bool take_name(struct parser *ps, const char *p, const char *end, char *name, char *user)
{
    char shown[ZT_QUOTED_BYTES];
    const char *at = memrchr(p, '@', (size_t)(end - p));
    user[0] = '\0';
    if (at && !is_user(p, (size_t)(at - p))) {
        zt_problem(&ps->wrong, "%s:%d:%d: \"%s\" is no user; write user@host slots=N", ps->path,
                   ps->line, column(ps, p), zt_quoted(p, (size_t)(at - p), shown));
        return false;
    }
    if (at) {
        snprintf(user, ZT_HOST_NAME_BYTES, "%.*s", (int)(at - p), p);
        p = at + 1;
    }
    const char *wrong = zt_host_name(p, (size_t)(end - p), name);
    if (wrong)
        zt_problem(&ps->wrong, "%s:%d:%d: \"%s\" %s", ps->path, ps->line, column(ps, p),
                   zt_quoted(p, (size_t)(end - p), shown), wrong);
    return !wrong;
}

/* "slots=N", the second word and the last; its number, or 0 after a message. */
static int take_slots(struct parser *ps, const char *p, const char *end)
{
    static const char key[] = "slots=";
    const size_t key_len = sizeof key - 1;
    char shown[ZT_QUOTED_BYTES];
    size_t len = (size_t)(end - p);
    zt_quoted(p, len, shown);
    if (len < key_len || memcmp(p, key, key_len)) {
        zt_problem(&ps->wrong, "%s:%d:%d: \"%s\" is not slots=N; a line is [user@]name slots=N",
                   ps->path, ps->line, column(ps, p), shown);
        return 0;
    }
    int n = zt_digits(p + key_len, len - key_len, ZT_HOST_MAX_SLOTS);
    if (n < 0)
        zt_problem(&ps->wrong, "%s:%d:%d: \"%s\": the slots of a host are a number from 1 to %d",
                   ps->path, ps->line, column(ps, p + key_len), shown, ZT_HOST_MAX_SLOTS);
    if (n == 0)
        zt_problem(&ps->wrong,
                   "%s:%d:%d: a host with no slots takes no part; leave its line out, or put # "
                   "before it",
                   ps->path, ps->line, column(ps, p + key_len));
    return ZT_MAX(n, 0);
}

static void add_host(struct parser *ps, const char *at, const char *name, const char *user, int n)
{
    const struct zt_host *before = zt_hosts_find(ps->out, name);
    if (before)
        zt_problem(&ps->wrong,
                   "%s:%d:%d: %s is on line %d too; name a host once, with all its slots", ps->path,
                   ps->line, column(ps, at), name, before->line);
    else if (ps->out->n == ZT_HOSTS_MAX)
        zt_problem(&ps->wrong, "%s:%d:1: more than %d hosts", ps->path, ps->line, ZT_HOSTS_MAX);
    else
        zt_hosts_add(ps->out, name, user[0] ? user : NULL, n)->line = ps->line;
}

static void parse_line(struct parser *ps)
{
    char name[ZT_HOST_NAME_BYTES], user[ZT_HOST_NAME_BYTES], shown[ZT_QUOTED_BYTES];
    const char *p = skip_blanks(ps->begin, ps->end), *end = ps->end;
    if (p == end || *p == '#')
        return;
    const char *name_end = word_end(p, end);
    if (!take_name(ps, p, name_end, name, user))
        return;
    const char *second = skip_blanks(name_end, end);
    if (second == end || *second == '#') {
        zt_problem(&ps->wrong, "%s:%d:%d: slots=N is missing; write \"%s slots=1\" for one device",
                   ps->path, ps->line, column(ps, name_end),
                   zt_quoted(p, (size_t)(name_end - p), shown));
        return;
    }
    const char *slots_end = word_end(second, end);
    int n = take_slots(ps, second, slots_end);
    const char *third = skip_blanks(slots_end, end);
    if (n > 0 && third < end && *third != '#')
        zt_problem(&ps->wrong, "%s:%d:%d: \"%s\" is too much; a line is [user@]name slots=N",
                   ps->path, ps->line, column(ps, third),
                   zt_quoted(third, (size_t)(word_end(third, end) - third), shown));
    else if (n > 0)
        add_host(ps, p, name, user, n);
}

int zt_hosts_parse(const char *path, const char *text, size_t len, struct zt_hosts *out,
                   struct zt_err *err)
{
    struct parser ps = {.path = path, .out = out};
    const char *p = text, *end = text + len;
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        p += 3;
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        ps.begin = p;
        ps.end = nl ? nl : end;
        p = nl ? nl + 1 : end;
        if (ps.end > ps.begin && ps.end[-1] == '\r')
            ps.end--;
        ps.line++;
        parse_line(&ps);
    }
    if (!out->n && !ps.wrong.n)
        zt_problem(&ps.wrong, "%s: no host in it; write a line \"name slots=N\" for each", path);
    int rc = zt_problems_report(&ps.wrong, err);
    if (rc)
        zt_hosts_release(out);
    return rc;
}

int zt_hosts_read(const char *path, struct zt_hosts *out, struct zt_err *err)
{
    struct zt_str text = {0};
    int rc = zt_read_file(path, ZT_HOSTS_FILE_BYTES, &text, err);
    if (!rc)
        rc = zt_hosts_parse(path, zt_str_get(&text), text.len, out, err);
    zt_str_release(&text);
    return rc;
}
