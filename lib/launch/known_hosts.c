#include "launch/known_hosts.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include "base/arena.h"

enum { KEY_BYTES = 16384, SSH_PORT = 22 };

/* A word of a line. */
struct word {
    const char *p;
    size_t len;
};

struct line {
    struct word marker, hosts, type, key; /* marker may be empty */
};

static bool word_is(struct word w, const char *text)
{
    return w.len == strlen(text) && memcmp(w.p, text, w.len) == 0;
}

/* ---- keys ---- */

static int key_type(struct zt_host_key key, struct word *type, struct zt_err *err)
{
    const uint8_t *b = key.blob;
    size_t n = key.len < 4 ? 0 : (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | b[3];
    bool ok = n > 0 && n < 64 && n <= key.len - 4;
    for (size_t i = 0; ok && i < n; i++)
        ok = isgraph(b[4 + i]);
    if (!ok)
        return zt_err_set(err, ZT_EPROTO, "malformed host key");
    *type = (struct word){(const char *)b + 4, n};
    return 0;
}

/* Base64, padded; -1: it is none. */
static int decode(struct word w, uint8_t *out, size_t out_bytes)
{
    if (w.len == 0 || w.len % 4 || w.len / 4 * 3 > out_bytes)
        return -1;
    int n = EVP_DecodeBlock(out, (const unsigned char *)w.p, (int)w.len);
    if (n < 0)
        return -1;
    return n - (w.p[w.len - 1] == '=') - (w.p[w.len - 2] == '=');
}

static bool same_key(struct word text, struct zt_host_key key)
{
    uint8_t blob[KEY_BYTES];
    int n = decode(text, blob, sizeof blob);
    return n >= 0 && (size_t)n == key.len && memcmp(blob, key.blob, key.len) == 0;
}

int zt_host_key_describe(struct zt_host_key key, struct zt_str *out, struct zt_err *err)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    unsigned char text[4 * (SHA256_DIGEST_LENGTH + 2) / 3 + 1];
    struct word type;
    if (key_type(key, &type, err))
        return err->code;
    SHA256(key.blob, key.len, digest);
    EVP_EncodeBlock(text, digest, sizeof digest);
    zt_str_printf(out, "%.*s SHA256:%.*s", (int)type.len, type.p,
                  (int)strcspn((const char *)text, "="), text);
    return 0;
}

/* ---- names ---- */

/* '*' is any run of characters, '?' one; without regard to case. */
static bool matches(struct word pattern, const char *name)
{
    const char *p = pattern.p, *end = p + pattern.len, *star = NULL, *retry = NULL;
    while (*name) {
        if (p < end && *p == '*') {
            star = ++p;
            retry = name;
        } else if (p < end &&
                   (*p == '?' || tolower((unsigned char)*p) == tolower((unsigned char)*name))) {
            p++;
            name++;
        } else if (star) { /* the last star takes one character more */
            p = star;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (p < end && *p == '*')
        p++;
    return p == end;
}

/* "|1|salt|HMAC-SHA1(salt, name)" */
static bool matches_hash(struct word w, const char *name)
{
    uint8_t salt[64], want[64], got[EVP_MAX_MD_SIZE];
    unsigned got_len = 0;
    const char *end = w.p + w.len, *bar = memchr(w.p + 3, '|', w.len - 3);
    if (!bar)
        return false;
    int salt_len = decode((struct word){w.p + 3, (size_t)(bar - w.p - 3)}, salt, sizeof salt);
    int want_len = decode((struct word){bar + 1, (size_t)(end - bar - 1)}, want, sizeof want);
    if (salt_len <= 0 || want_len != SHA_DIGEST_LENGTH)
        return false;
    return HMAC(EVP_sha1(), salt, salt_len, (const unsigned char *)name, strlen(name), got,
                &got_len) &&
           got_len == SHA_DIGEST_LENGTH && memcmp(got, want, got_len) == 0;
}

/* A list of patterns; one that begins with '!' and matches rules the line out. */
static bool is_for(struct word hosts, const char *name)
{
    bool found = false;
    if (hosts.len > 3 && memcmp(hosts.p, "|1|", 3) == 0)
        return matches_hash(hosts, name);
    for (const char *p = hosts.p, *end = p + hosts.len; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        struct word w = {p, (size_t)((comma ? comma : end) - p)};
        bool not = w.len && *w.p == '!';
        if (not )
            w = (struct word){w.p + 1, w.len - 1};
        if (w.len && matches(w, name)) {
            if (not )
                return false;
            found = true;
        }
        p += (size_t)((comma ? comma : end) - p) + 1;
    }
    return found;
}

/* ---- lines ---- */

static struct word next_word(const char **p, const char *end)
{
    while (*p < end && (**p == ' ' || **p == '\t'))
        (*p)++;
    const char *begin = *p;
    while (*p < end && **p != ' ' && **p != '\t' && **p != '\r')
        (*p)++;
    return (struct word){begin, (size_t)(*p - begin)};
}

static bool read_line(const char *p, const char *end, struct line *l)
{
    *l = (struct line){.hosts = next_word(&p, end)};
    if (l->hosts.len == 0 || *l->hosts.p == '#')
        return false;
    if (*l->hosts.p == '@') {
        l->marker = l->hosts;
        l->hosts = next_word(&p, end);
    }
    l->type = next_word(&p, end);
    l->key = next_word(&p, end);
    return l->key.len > 0;
}

/* What one line for this host says of the key; t goes from unknown to changed to known to revoked. */
static void judge(const struct line *l, struct word type, struct zt_host_key key, const char *path,
                  int number, struct zt_trust *t)
{
    enum zt_trust_kind kind = ZT_TRUST_UNKNOWN;
    bool same_type = l->type.len == type.len && memcmp(l->type.p, type.p, type.len) == 0;
    if (word_is(l->marker, "@cert-authority"))
        t->has_authority = true;
    else if (word_is(l->marker, "@revoked"))
        kind = same_key(l->key, key) ? ZT_TRUST_REVOKED : ZT_TRUST_UNKNOWN;
    else if (l->marker.len == 0 && same_type)
        kind = same_key(l->key, key) ? ZT_TRUST_KNOWN : ZT_TRUST_CHANGED;
    else if (l->marker.len == 0)
        t->other_types = true;
    static const int weight[] = {[ZT_TRUST_UNKNOWN] = 0,
                                 [ZT_TRUST_CHANGED] = 1,
                                 [ZT_TRUST_KNOWN] = 2,
                                 [ZT_TRUST_REVOKED] = 3};
    if (weight[kind] <= weight[t->kind])
        return;
    t->kind = kind;
    t->path = path;
    t->line = number;
}

/* Call fn for every line for that name. */
static void each_line(const struct zt_known_hosts *f, const char *name,
                      void (*fn)(void *ctx, const struct line *l, int number), void *ctx)
{
    struct line l;
    int number = 0;
    for (const char *p = f->text, *end = p + f->len; p < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        number++;
        if (read_line(p, nl ? nl : end, &l) && is_for(l.hosts, name))
            fn(ctx, &l, number);
        p = nl ? nl + 1 : end;
    }
}

struct judging {
    struct word type;
    struct zt_host_key key;
    const char *path;
    struct zt_trust *t;
};

static void judge_line(void *ctx, const struct line *l, int number)
{
    const struct judging *j = ctx;
    judge(l, j->type, j->key, j->path, number, j->t);
}

static void look(const struct zt_known_hosts *f, const char *name, struct word type,
                 struct zt_host_key key, struct zt_trust *t)
{
    struct judging j = {type, key, f->path, t};
    each_line(f, name, judge_line, &j);
}

bool zt_name_list_has(const char *list, const char *name, size_t len)
{
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == len && memcmp(p, name, len) == 0)
            return true;
    return false;
}

static void add_type(void *ctx, const struct line *l, int number)
{
    struct zt_str *out = ctx;
    (void)number;
    if (l->marker.len || zt_name_list_has(zt_str_get(out), l->type.p, l->type.len))
        return;
    zt_str_printf(out, "%s%.*s", out->len ? "," : "", (int)l->type.len, l->type.p);
}

int zt_known_as(const char *name, int port, char out[ZT_KNOWN_AS_BYTES], struct zt_err *err)
{
    int n = port == SSH_PORT ? snprintf(out, ZT_KNOWN_AS_BYTES, "%s", name)
                             : snprintf(out, ZT_KNOWN_AS_BYTES, "[%s]:%d", name, port);
    if (n >= ZT_KNOWN_AS_BYTES)
        return zt_err_set(err, ZT_EINPUT, "%.40s...: too long for the name of a host", name);
    for (char *p = out; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return 0;
}

int zt_known_hosts_check(const struct zt_known_hosts *files, int n_files, const char *name,
                         int port, struct zt_host_key key, struct zt_trust *out, struct zt_err *err)
{
    char entry[ZT_KNOWN_AS_BYTES], bare[ZT_KNOWN_AS_BYTES];
    struct zt_trust without_port = {0};
    struct word type;
    *out = (struct zt_trust){0};
    int rc = key_type(key, &type, err);
    if (!rc)
        rc = zt_known_as(name, port, entry, err);
    if (!rc)
        rc = zt_known_as(name, SSH_PORT, bare, err);
    for (int i = 0; !rc && i < n_files; i++) {
        look(&files[i], entry, type, key, out);
        if (port != SSH_PORT)
            look(&files[i], bare, type, key, &without_port);
    }
    if (without_port.kind == ZT_TRUST_REVOKED ||
        (without_port.kind == ZT_TRUST_KNOWN && out->kind == ZT_TRUST_UNKNOWN))
        *out = without_port;
    return rc;
}

int zt_known_hosts_types(const struct zt_known_hosts *files, int n_files, const char *name,
                         int port, struct zt_str *out, struct zt_err *err)
{
    char entry[ZT_KNOWN_AS_BYTES], bare[ZT_KNOWN_AS_BYTES];
    int rc = zt_known_as(name, port, entry, err);
    if (!rc)
        rc = zt_known_as(name, SSH_PORT, bare, err);
    for (int i = 0; !rc && i < n_files; i++) {
        each_line(&files[i], entry, add_type, out);
        if (port != SSH_PORT)
            each_line(&files[i], bare, add_type, out);
    }
    return rc;
}

/* ---- what to say ---- */

static bool is_pattern(struct word hosts)
{
    return memchr(hosts.p, '*', hosts.len) || memchr(hosts.p, '?', hosts.len);
}

static void find_line(void *ctx, const struct line *l, int number)
{
    struct zt_known_place *out = ctx;
    if (l->marker.len)
        return;
    if (!is_pattern(l->hosts))
        out->by_name = true;
    else if (out->n_patterns < ZT_KNOWN_MAX_PATTERNS)
        out->patterns[out->n_patterns++] = number;
}

bool zt_known_hosts_find(const struct zt_known_hosts *file, const char *known_as,
                         struct zt_known_place *out)
{
    *out = (struct zt_known_place){.path = file->path};
    each_line(file, known_as, find_line, out);
    return out->by_name || out->n_patterns;
}

/* Commands that take a host's keys away: patterns first, as the other command moves lines. */
static void put_removal(const char *known_as, const struct zt_known_place *place,
                        struct zt_str *out)
{
    if (place->n_patterns)
        zt_str_puts(out, "sed -i");
    for (int i = 0; i < place->n_patterns; i++)
        zt_str_printf(out, " -e '%ds/[^ \\t][^ \\t]*/&,!%s/'", place->patterns[i], known_as);
    if (place->n_patterns)
        zt_str_printf(out, " '%s' && ", place->path);
    if (place->by_name)
        zt_str_printf(out, "ssh-keygen -R '%s' -f '%s' && ", known_as, place->path);
}

static void put_command(const struct zt_key_doubt *d, struct zt_str *out)
{
    const char *type = d->key_type;
    zt_str_puts(out, "`");
    for (int i = 0; i < d->n_places; i++)
        put_removal(d->known_as, &d->places[i], out);
    zt_str_puts(out, "ssh -o StrictHostKeyChecking=ask ");
    if (type && strcmp(type, "ssh-rsa") == 0) /* that would be with SHA-1 */
        type = "rsa-sha2-512,rsa-sha2-256";
    if (type)
        zt_str_printf(out, "-o HostKeyAlgorithms=%s ", type);
    zt_str_printf(out, "%s true`", d->reach);
}

void zt_key_doubt_put(const struct zt_key_doubt *d, struct zt_str *out)
{
    const struct zt_trust *t = &d->trust;
    zt_str_printf(out, "%s: its host key", d->known_as);
    if (t->kind == ZT_TRUST_REVOKED) {
        zt_str_printf(out, "%s%s is marked @revoked in ", d->shown ? " " : "",
                      d->shown ? d->shown : "");
        if (t->path)
            zt_str_printf(out, "%s:%d", t->path, t->line);
        else
            zt_str_puts(out, "known_hosts");
        zt_str_puts(out, ": it is no longer to be trusted, and is not accepted");
        return;
    }
    if (t->kind == ZT_TRUST_UNKNOWN)
        zt_str_puts(out, " is not known");
    else if (t->path)
        zt_str_printf(out, " is another than in %s:%d", t->path, t->line);
    else
        zt_str_puts(out, " is another than in known_hosts");
    if (d->shown)
        zt_str_printf(out, ": %s", d->shown);
    if (t->kind == ZT_TRUST_CHANGED)
        zt_str_puts(out, "; it was installed anew, or somebody else answers");
    zt_str_puts(out, d->shown ? ". Compare this with what its owner says; then "
                              : ". Compare its fingerprint, which this command shows, with what "
                                "its owner says: ");
    put_command(d, out);
    zt_str_puts(out, " asks once, and accepts it");
}

int zt_trust_require(const struct zt_trust *t, const struct zt_known_hosts *files, int n_files,
                     const char *name, int port, const char *reach, struct zt_host_key key,
                     struct zt_err *err)
{
    char known_as[ZT_KNOWN_AS_BYTES];
    struct zt_str shown = {0}, words = {0};
    struct zt_arena arena = {0};
    struct zt_known_place *places = zt_arena_alloc(&arena, (size_t)n_files + 1, sizeof *places);
    struct zt_key_doubt doubt = {
        .trust = *t, .known_as = known_as, .reach = reach, .places = places};
    int rc = 0;
    if (t->kind != ZT_TRUST_KNOWN)
        rc = zt_host_key_describe(key, &shown, err);
    if (!rc)
        rc = zt_known_as(name, port, known_as, err);
    for (int i = 0; !rc && t->kind == ZT_TRUST_CHANGED && i < n_files; i++)
        doubt.n_places += zt_known_hosts_find(&files[i], known_as, &places[doubt.n_places]);
    if (!rc && t->kind != ZT_TRUST_KNOWN) {
        doubt.shown = zt_str_get(&shown);
        doubt.key_type =
            zt_arena_printf(&arena, "%.*s", (int)strcspn(doubt.shown, " "), doubt.shown);
        zt_key_doubt_put(&doubt, &words);
        rc = zt_err_set(err, ZT_EINPUT, "%s", zt_str_get(&words));
    }
    zt_arena_release(&arena);
    zt_str_release(&shown);
    zt_str_release(&words);
    return rc;
}
