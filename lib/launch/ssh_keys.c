#include "launch/ssh_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

enum { PASS_BYTES = 1024, TRIES = 3 };

struct agent_at {
    const char *path;
    struct zt_ssh_agent a; /* fd -1: nobody answers there */
};

struct asking {
    int tty; /* -1: nobody is asked */
    struct termios before;
    struct zt_ssh_key_file *file;
    int n_wrong;
    char line[PASS_BYTES];
    size_t len;
};

struct zt_ssh_keys {
    struct zt_arena arena;
    struct zt_ssh_key_file **files;
    size_t n_files, cap_files;
    struct agent_at **agents;
    size_t n_agents, cap_agents;
    struct asking ask;
};

struct zt_ssh_keys *zt_ssh_keys_create(void)
{
    struct zt_ssh_keys *k = zt_xcalloc(1, sizeof *k);
    k->ask.tty = -1;
    return k;
}

static void stop_asking(struct zt_ssh_keys *k)
{
    struct asking *a = &k->ask;
    if (a->tty >= 0) {
        tcsetattr(a->tty, TCSAFLUSH, &a->before);
        close(a->tty);
    }
    explicit_bzero(a->line, sizeof a->line);
    a->tty = -1;
    a->len = 0;
    a->n_wrong = 0;
    a->file = NULL;
}

void zt_ssh_keys_rest(struct zt_ssh_keys *k)
{
    stop_asking(k);
    for (size_t i = 0; i < k->n_agents; i++)
        zt_ssh_agent_release(&k->agents[i]->a);
    k->n_agents = 0;
}

void zt_ssh_keys_free(struct zt_ssh_keys *k)
{
    if (!k)
        return;
    zt_ssh_keys_rest(k);
    for (size_t i = 0; i < k->n_files; i++)
        zt_ssh_key_release(&k->files[i]->key);
    free(k->files);
    free(k->agents);
    zt_arena_release(&k->arena);
    free(k);
}

/* ---- what there is ---- */

static struct zt_ssh_key_file *file_at(struct zt_ssh_keys *k, const char *path)
{
    struct zt_err err;
    for (size_t i = 0; i < k->n_files; i++)
        if (strcmp(k->files[i]->path, path) == 0)
            return k->files[i];
    struct zt_ssh_key_file *f = zt_arena_alloc(&k->arena, 1, sizeof *f);
    f->path = zt_arena_strdup(&k->arena, path);
    int rc = zt_ssh_key_read(path, &f->key, &err);
    if (rc == 0)
        f->state = f->key.pkey ? ZT_SSH_KEY_READY : ZT_SSH_KEY_LOCKED;
    else
        f->state = rc == ZT_EINPUT ? ZT_SSH_KEY_ABSENT : ZT_SSH_KEY_UNUSED;
    f->why = rc ? zt_arena_strdup(&k->arena, err.msg) : "";
    if (rc) /* the agent may have it */
        zt_ssh_key_read_public(path, &f->key);
    ZT_GROW(k->files, k->n_files + 1, k->cap_files);
    k->files[k->n_files++] = f;
    return f;
}

/* NULL: none, or one that does not answer, which ssh passes over too. */
static struct zt_ssh_agent *agent_for(struct zt_ssh_keys *k, const struct zt_ssh_config *c)
{
    const char *path = c->identity_agent;
    struct zt_err err;
    if (!path || strcmp(path, "SSH_AUTH_SOCK") == 0)
        path = getenv("SSH_AUTH_SOCK");
    else if (path[0] == '$')
        path = getenv(path + 1);
    if (c->no_agent || !path || !path[0])
        return NULL;
    size_t i = 0;
    while (i < k->n_agents && strcmp(k->agents[i]->path, path))
        i++;
    if (i == k->n_agents) {
        struct agent_at *at = zt_arena_alloc(&k->arena, 1, sizeof *at);
        at->path = zt_arena_strdup(&k->arena, path);
        if (zt_ssh_agent_open(path, &at->a, &err))
            at->a.fd = -1;
        ZT_GROW(k->agents, k->n_agents + 1, k->cap_agents);
        k->agents[k->n_agents++] = at;
    }
    return k->agents[i]->a.fd >= 0 ? &k->agents[i]->a : NULL;
}

/* ---- what a host is offered ---- */

static bool is_key_of(const struct zt_ssh_agent_key *held, const struct zt_ssh_key_file *f)
{
    return f->key.blob && f->key.blob_len == held->blob_len &&
           memcmp(f->key.blob, held->blob, held->blob_len) == 0;
}

/* Of which file of the configuration it is; n: of none. */
static int file_of(const struct zt_ssh_agent_key *held, struct zt_ssh_key_file *const *files, int n)
{
    int i = 0;
    while (i < n && !is_key_of(held, files[i]))
        i++;
    return i;
}

static void offer_held(struct zt_ssh_keys *k, struct zt_ssh_agent *a,
                       const struct zt_ssh_agent_key *held, bool rsa, struct zt_ssh_identities *out)
{
    size_t n;
    const char *type = zt_ssh_key_type(held->blob, held->blob_len, &n);
    if (zt_ssh_key_type_served(held->blob, held->blob_len) &&
        (rsa || !zt_ssh_key_is_rsa(held->blob, held->blob_len)))
        out->v[out->n++] = (struct zt_ssh_identity){.agent = a, .held = held};
    else if (!out->other)
        out->other = zt_arena_printf(&k->arena, "the agent's key %s is of type %.*s", held->comment,
                                     (int)n, type);
}

static void offer_file(struct zt_ssh_keys *k, struct zt_ssh_key_file *f, bool rsa,
                       struct zt_ssh_identities *out)
{
    const char *why = f->state == ZT_SSH_KEY_UNUSED ? f->why : NULL;
    if (f->state < ZT_SSH_KEY_UNUSED && !rsa && zt_ssh_key_is_rsa(f->key.blob, f->key.blob_len))
        why = zt_arena_printf(&k->arena, "the key %s is of type ssh-rsa", f->path);
    if (why && !out->other)
        out->other = why;
    if (!why && f->state < ZT_SSH_KEY_UNUSED)
        out->v[out->n++] = (struct zt_ssh_identity){.file = f};
}

void zt_ssh_keys_for(struct zt_ssh_keys *k, const struct zt_ssh_config *c, bool rsa,
                     struct zt_ssh_identities *out)
{
    struct zt_ssh_agent *a = agent_for(k, c);
    struct zt_ssh_key_file *files[ZT_SSH_MAX_FILES];
    const int n = c->identity_files.n, n_held = a ? a->n_keys : 0;
    *out = (struct zt_ssh_identities){
        .v = zt_arena_alloc(&k->arena, (size_t)(n + n_held + 1), sizeof *out->v)};
    for (int i = 0; i < n; i++)
        files[i] = file_at(k, c->identity_files.v[i]);
    for (int i = 0; i <= n; i++) /* the last: keys of no file */
        for (int j = 0; j < n_held && !(i == n && c->identities_only); j++)
            if (file_of(&a->keys[j], files, n) == i)
                offer_held(k, a, &a->keys[j], rsa, out);
    for (int i = 0; i < n; i++) {
        bool held = false;
        for (int j = 0; j < n_held; j++)
            held = held || is_key_of(&a->keys[j], files[i]);
        if (!held)
            offer_file(k, files[i], rsa, out);
    }
}

const uint8_t *zt_ssh_identity_blob(const struct zt_ssh_identity *id, size_t *len)
{
    *len = id->held ? id->held->blob_len : id->file->key.blob_len;
    return id->held ? id->held->blob : id->file->key.blob;
}

int zt_ssh_identity_sign(const struct zt_ssh_identity *id, enum zt_ssh_rsa rsa, const uint8_t *data,
                         size_t len, uint8_t **sig, size_t *sig_len, struct zt_err *err)
{
    if (id->agent)
        return zt_ssh_agent_sign(id->agent, id->held->blob, id->held->blob_len, rsa, data, len, sig,
                                 sig_len, err);
    if (id->file->state == ZT_SSH_KEY_LOCKED)
        return 1;
    if (id->file->state != ZT_SSH_KEY_READY)
        return zt_err_set(err, ZT_EINPUT, "%s", id->file->why);
    return zt_ssh_key_sign(&id->file->key, rsa, data, len, sig, sig_len, err);
}

/* ---- passphrases ---- */

static void keep(struct zt_ssh_keys *k, struct zt_ssh_key_file *f, const char *why)
{
    f->state = ZT_SSH_KEY_KEPT;
    f->why =
        zt_arena_printf(&k->arena, "%s; `ssh-add %s` gives the key to ssh-agent", why, f->path);
}

static void say(int tty, const char *text)
{
    while (*text) {
        ssize_t n = write(tty, text, strlen(text));
        if (n < 0 && errno != EINTR)
            return;
        text += n > 0 ? n : 0;
    }
}

static void prompt(const struct asking *a)
{
    struct zt_str s = {0};
    zt_str_printf(&s, "Enter passphrase for key '%s': ", a->file->path);
    say(a->tty, s.buf);
    zt_str_release(&s);
}

void zt_ssh_keys_ask(struct zt_ssh_keys *k, struct zt_ssh_key_file *file)
{
    struct asking *a = &k->ask;
    if (a->tty >= 0 || file->state != ZT_SSH_KEY_LOCKED)
        return;
    int tty = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (tty < 0 || tcgetpgrp(tty) != getpgrp() || tcgetattr(tty, &a->before)) {
        if (tty >= 0)
            close(tty);
        keep(k, file, "its passphrase cannot be asked for, as there is no terminal");
        return;
    }
    struct termios quiet = a->before;
    quiet.c_lflag &= ~(tcflag_t)(ECHO | ECHOE | ECHOK | ECHONL);
    quiet.c_lflag |= ICANON | ISIG;
    tcsetattr(tty, TCSAFLUSH, &quiet);
    a->tty = tty;
    a->file = file;
    a->n_wrong = 0;
    a->len = 0;
    prompt(a);
}

int zt_ssh_keys_ask_fd(const struct zt_ssh_keys *k)
{
    return k->ask.tty;
}

/* The line is complete. */
static void try_line(struct zt_ssh_keys *k)
{
    struct asking *a = &k->ask;
    struct zt_err err;
    a->line[a->len] = '\0';
    say(a->tty, "\n");
    int rc = zt_ssh_key_unlock(&a->file->key, a->line, &err);
    explicit_bzero(a->line, sizeof a->line);
    a->len = 0;
    if (rc == 0) {
        a->file->state = ZT_SSH_KEY_READY;
    } else if (rc != ZT_EINPUT) {
        a->file->state = ZT_SSH_KEY_UNUSED;
        a->file->why = zt_arena_strdup(&k->arena, err.msg);
    } else if (++a->n_wrong < TRIES) {
        prompt(a);
        return;
    } else {
        keep(k, a->file, "its passphrase was not given");
    }
    stop_asking(k);
}

void zt_ssh_keys_answer(struct zt_ssh_keys *k)
{
    struct asking *a = &k->ask;
    char c;
    ssize_t n = 1;
    while (a->tty >= 0 && (n = read(a->tty, &c, 1)) == 1) {
        if (c == '\n')
            try_line(k);
        else if (a->len < sizeof a->line - 1)
            a->line[a->len++] = c;
    }
    if (a->tty >= 0 &&
        (n == 0 || (errno != EAGAIN && errno != EINTR))) { /* Ctrl-D, or it hung up */
        keep(k, a->file, "its passphrase was not given");
        stop_asking(k);
    }
}
