/* How hard the job is told to end: by signals, to us or to a process of it, and by whoever finds that it must. */
#include <signal.h>

#include "launch/front.h"
#include "launch/rendezvous.h"

void zt_front_stop(struct front *f, enum zt_stop level)
{
    if (level <= f->stop)
        return;
    f->stop = level;
    f->unread_bytes = 0; /* last words are heard, also where nobody reads them */
    for (int i = 0; i < f->n_nodes; i++) {
        struct zt_str *out = &f->nodes[i].link.out;
        size_t at = zt_frame_begin(out, ZT_FRAME_STOP);
        zt_put_u32(out, level);
        zt_frame_end(out, at);
        if (level >= ZT_STOP_TERM)
            zt_node_give_up(&f->nodes[i]);
    }
}

/* Its host has not answered yet. */
static bool is_starting(const struct front_node *n)
{
    return n->ssh && !n->greeted;
}

/* No rank has begun: there is no step to finish. */
static bool nothing_begun(const struct front *f)
{
    return zt_front_find(f, is_starting) != NULL;
}

static void on_interrupt(struct front *f)
{
    f->user_signal = SIGINT;
    if (f->stop >= ZT_STOP_TERM) {
        zt_front_notice(f, "ending all ranks at once");
        zt_front_stop(f, ZT_STOP_KILL);
    } else if (f->stop == ZT_STOP_SOFT || f->opts->program || nothing_begun(f)) {
        zt_front_notice(f, "ending all ranks");
        zt_front_stop(f, ZT_STOP_TERM);
    } else {
        zt_front_notice(f, "finishing this step; Ctrl-C again to end now");
        zt_front_stop(f, ZT_STOP_SOFT);
    }
}

/* As batch systems send it to make room, and as a connection's end to what runs in its terminal. */
static bool asks_for_room(int sig)
{
    return sig == SIGTERM || sig == SIGUSR1 || sig == SIGHUP;
}

/* Told to make room: the workers save what they have and end. Once more ends them at once. */
static bool is_preemption(const struct front *f, int sig)
{
    return asks_for_room(sig) && f->opts->preempted_code && f->stop == ZT_STOP_NONE &&
           !nothing_begun(f);
}

static void on_preemption(struct front *f, int sig)
{
    zt_front_notice(f, "got signal %d (%s): ending after this step; once more ends now", sig,
                    strsignal(sig));
    f->user_signal = sig;
    f->preempted = true;
    zt_front_stop(f, ZT_STOP_SOFT);
}

void zt_front_agent_signalled(struct front_node *n, int sig)
{
    struct front *f = n->f;
    if (f->stop != ZT_STOP_NONE)
        return; /* ending already: a batch system tells us too */
    zt_front_notice(f, "the agent on %s got signal %d (%s)", n->host, sig, strsignal(sig));
    if (is_preemption(f, sig)) {
        f->told_by_agent = true;
        on_preemption(f, sig);
        return;
    }
    n->end_signal = sig;
    zt_front_stop(f, ZT_STOP_TERM);
}

void zt_front_agent_ended(struct front_node *n, int sig)
{
    char why[100];
    snprintf(why, sizeof why, "it was ended by signal %d (%s)", sig, strsignal(sig));
    if (n->f->stop >= ZT_STOP_TERM || zt_node_fail_alone(n, why))
        return;
    if (n->f->n_nodes > 1)
        zt_front_notice(n->f, "the agent on %s was ended by signal %d (%s); stopping the others",
                        n->host, sig, strsignal(sig));
    zt_front_stop(n->f, ZT_STOP_TERM);
}

void zt_front_heed(struct front *f, int sig, int count)
{
    if (count <= f->n_heeded)
        return;
    f->n_heeded = count;
    if (sig == SIGINT) {
        on_interrupt(f);
    } else if (f->told_by_agent && asks_for_room(sig) && f->stop == ZT_STOP_SOFT) {
        f->told_by_agent = false; /* a batch system tells all processes */
    } else if (sig == SIGHUP && f->opts->preempted_code && f->stop == ZT_STOP_SOFT) {
        return; /* a terminal that goes away tells more than once: by the kernel, and by the shell */
    } else if (is_preemption(f, sig)) {
        on_preemption(f, sig);
    } else { /* SIGTERM, SIGUSR1, SIGHUP, SIGPIPE: there may be nobody left to wait */
        if (f->stop < ZT_STOP_TERM)
            zt_front_notice(f, "ending all ranks: got signal %d (%s)", sig, strsignal(sig));
        f->user_signal = sig;
        zt_front_stop(f, ZT_STOP_TERM);
    }
}

void zt_front_read_party(struct front *f, struct zt_party *p)
{
    int sig;
    while ((sig = zt_party_read(p)) > 0)
        zt_front_heed(f, sig, p->n_signals);
    if (sig == 0 || f->stop >= ZT_STOP_TERM || f->opts->sink.node) /* its agent tells for itself */
        return;
    char name[ZT_HOST_TEXT + 64];
    f->parted = p;
    zt_front_notice(f, "%s has ended; stopping the others",
                    zt_party_name(f->opts->joined, p, name, sizeof name));
    zt_front_stop(f, ZT_STOP_TERM);
}
