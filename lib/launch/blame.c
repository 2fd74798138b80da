#include "launch/blame.h"

#include <signal.h>

enum zt_death_kind zt_death_kind(const struct zt_death *d)
{
    if (d->signal == 0 && d->code == 0)
        return ZT_DEATH_WELL;
    if (d->stop >= ZT_STOP_TERM) {
        /*
         * After our SIGTERM exit codes mean little; but a crash that was under way (writing its core
         * may take seconds) still is one, and so is a SIGKILL that we did not send.
         */
        bool ours = d->signal == 0 || d->signal == SIGTERM ||
                    (d->signal == SIGKILL && d->stop == ZT_STOP_KILL);
        return ours ? ZT_DEATH_OURS : ZT_DEATH_OWN;
    }
    if (d->signal == 0 && d->code == ZT_EXIT_PEER_LOST)
        return ZT_DEATH_PEER;
    return ZT_DEATH_OWN;
}

bool zt_death_before(const struct zt_death *d, const struct zt_death *first)
{
    return zt_death_kind(d) < zt_death_kind(first);
}

int zt_death_exit_code(const struct zt_death *d)
{
    return d->signal ? 128 + d->signal : d->code;
}

static const char *likely_cause(const struct zt_death *d)
{
    switch (d->signal) {
    case 0:
        if (d->code == ZT_EXIT_PEER_LOST)
            return "it lost a peer, and no rank reported a failure of its own";
        if (d->code == 127)
            return "could the program be run at all?";
        return NULL;
    case SIGKILL:
        return d->oom ? "the kernel's out-of-memory killer has struck while this job ran"
                      : "did the kernel run out of memory (see dmesg), or did someone kill it?";
    case SIGSEGV:
        return "it used memory that is not its own: a bug";
    case SIGBUS:
        return "a mapped file was truncated, or memory behind a mapping ran out";
    case SIGABRT:
        return "it found itself in a state that cannot be: an assertion; see its last lines";
    case SIGILL:
        return "an instruction that this CPU does not have, or a bug";
    case SIGFPE:
        return "an integer division by zero: a bug";
    case SIGXCPU:
        return "its limit of CPU time is used up (ulimit -t)";
    case SIGXFSZ:
        return "a file grew past its limit (ulimit -f)";
    default:
        return "someone sent it that signal";
    }
}

void zt_death_describe(const struct zt_death *d, struct zt_str *out)
{
    if (d->signal)
        zt_str_printf(out, "signal %d (%s)%s", d->signal, strsignal(d->signal),
                      d->dumped_core ? ", core dumped" : "");
    else
        zt_str_printf(out, "exit code %d", d->code);
    const char *cause = likely_cause(d);
    if (cause)
        zt_str_printf(out, ": %s", cause);
}

void zt_death_put(const struct zt_death *d, struct zt_str *out)
{
    zt_put_u32(out, (uint32_t)d->rank);
    zt_put_u32(out, (uint32_t)d->code);
    zt_put_u32(out, (uint32_t)d->signal);
    zt_put_u32(out, d->stop);
    zt_put_u32(out, d->dumped_core);
    zt_put_u32(out, d->oom);
}

bool zt_death_get(struct zt_death *d, const struct zt_frame *f)
{
    struct zt_cursor c = zt_cursor_of(f);
    d->rank = (int)zt_get_u32(&c);
    d->code = (int)zt_get_u32(&c);
    d->signal = (int)zt_get_u32(&c);
    uint32_t stop = zt_get_u32(&c);
    d->stop = ZT_MIN(stop, (uint32_t)ZT_STOP_KILL);
    d->dumped_core = zt_get_u32(&c) != 0;
    d->oom = zt_get_u32(&c) != 0;
    return zt_cursor_done(&c) && d->rank >= 0 && d->code >= 0 && d->code <= 255 && d->signal >= 0 &&
           d->signal <= 127 && stop <= ZT_STOP_KILL;
}
