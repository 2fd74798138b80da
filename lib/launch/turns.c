#include "launch/turns.h"

#include <pthread.h>
#include <sys/random.h>

#include "launch/ssh_config.h"

struct zt_server {
    const char *name;
    int n_held, most;
};

struct zt_turns {
    pthread_mutex_t lock; /* over all places of all servers */
    struct zt_server *servers;
    int n;
    struct zt_arena arena;
};

struct zt_turns *zt_turns_create(int n_hosts)
{
    struct zt_turns *turns = zt_xcalloc(1, sizeof *turns);
    turns->servers = zt_xcalloc((size_t)n_hosts, sizeof *turns->servers);
    pthread_mutex_init(&turns->lock, NULL);
    return turns;
}

void zt_turns_free(struct zt_turns *turns)
{
    if (!turns)
        return;
    pthread_mutex_destroy(&turns->lock);
    zt_arena_release(&turns->arena);
    free(turns->servers);
    free(turns);
}

static const char *door(const char *host, int port, struct zt_arena *arena)
{
    enum { SSH_PORT = 22 };
    return zt_arena_printf(arena, "%s port %d", host, port ? port : SSH_PORT);
}

static const char *server_name(const struct zt_ssh_target *t, struct zt_arena *arena)
{
    const struct zt_ssh_config *c = t->config;
    if (!c)
        return door(t->host, t->port, arena);
    while (c->n_jumps && c->jumps[0].config)
        c = c->jumps[0].config;
    if (c->n_jumps)
        return door(c->jumps[0].host, c->jumps[0].port, arena);
    if (c->proxy_command)
        return zt_arena_printf(arena, "command %s", c->proxy_command);
    return door(c->hostname, c->port, arena);
}

void zt_turn_init(struct zt_turn *p, struct zt_turns *turns, const struct zt_ssh_target *t)
{
    const char *name = server_name(t, &turns->arena);
    int i = 0;
    while (i < turns->n && strcmp(turns->servers[i].name, name))
        i++;
    if (i == turns->n)
        turns->servers[turns->n++] = (struct zt_server){.name = name, .most = ZT_TURNS_OF_SERVER};
    *p = (struct zt_turn){.turns = turns, .server = &turns->servers[i]};
}

bool zt_turn_take(struct zt_turn *p, int64_t now_ns)
{
    struct zt_server *server = p->server;
    pthread_mutex_lock(&p->turns->lock);
    const bool free_now = now_ns >= p->retry_ns && server->n_held < server->most;
    server->n_held += free_now;
    p->state = free_now ? ZT_TURN_HELD : ZT_TURN_WANTED;
    pthread_mutex_unlock(&p->turns->lock);
    return free_now;
}

static void leave(struct zt_turn *p)
{
    p->server->n_held -= p->state == ZT_TURN_HELD;
    p->state = ZT_TURN_LEFT;
}

void zt_turn_leave(struct zt_turn *p)
{
    pthread_mutex_lock(&p->turns->lock);
    leave(p);
    pthread_mutex_unlock(&p->turns->lock);
}

bool zt_turn_come_again(struct zt_turn *p, int64_t now_ns)
{
    static const int64_t ms = 1000000;
    enum { FIRST_MS = 50, MOST_DOUBLINGS = 5 };
    uint32_t random = 0;
    if (!p->n_drops++)
        p->first_drop_ns = now_ns;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = 0;
    const int64_t wait_ns = FIRST_MS * ms << ZT_MIN(p->n_drops - 1, MOST_DOUBLINGS);
    p->retry_ns = now_ns + wait_ns / 2 + wait_ns * (random % 1024) / 1024;
    pthread_mutex_lock(&p->turns->lock);
    leave(p);
    p->server->most = ZT_MAX(p->server->most / 2, 1);
    pthread_mutex_unlock(&p->turns->lock);
    return now_ns - p->first_drop_ns <= ZT_TURNS_RETRY_MS * ms;
}

bool zt_turn_is_wanted(const struct zt_turn *p)
{
    pthread_mutex_lock(&p->turns->lock);
    const bool wanted = p->state == ZT_TURN_WANTED;
    pthread_mutex_unlock(&p->turns->lock);
    return wanted;
}
