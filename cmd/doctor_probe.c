/*
 * doctor_probe.c: a worker of `zerotrain doctor`: started by the agent, never by a person.
 */
#include "doctor.h"

#include <stdarg.h>
#include <unistd.h>

enum { HANGS_S = 30 }; /* a driver or file system that answers no sooner is broken */

void doctor_say(struct doctor_probe *p, const char *name, enum doctor_verdict verdict,
                const char *todo, json_t *facts, const char *fmt, ...)
{
    struct zt_err err;
    char buf[ZT_ERR_MSG_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    json_t *check = doctor_check(name, verdict, todo, facts, "%s", buf);
    char *line = json_dumps(check, JSON_COMPACT);
    int rc = line ? zt_worker_report(&p->w, line, strlen(line), &err) : 0;
    free(line);
    json_decref(check);
    if (rc) /* nobody is left to hear more */
        _exit(ZT_EXIT_PEER_LOST);
}

static int probe(struct doctor_probe *p, struct zt_err *err)
{
    p->ask = json_loadb(p->w.recipe, p->w.recipe_len, 0, NULL);
    if (!p->ask)
        return zt_err_set(err, ZT_EPROTO, "the front end's question makes no sense");
    if (json_is_true(json_object_get(p->ask, "pairs")))
        return doctor_check_pairs(p, err);
    doctor_check_folders(p);
    doctor_check_device(p);
    doctor_check_host(p);
    return 0;
}

int cmd_probe(int argc, char **argv)
{
    struct doctor_probe p = {0};
    struct zt_err err = {0};
    (void)argv;
    if (argc != 1) {
        cmd_error("`probe` is started by `zerotrain doctor`, not by hand");
        return ZT_EXIT_USAGE;
    }
    alarm(HANGS_S);
    int rc = zt_worker_join(&p.w, &err);
    if (!rc) {
        rc = probe(&p, &err);
        json_decref(p.ask);
        zt_worker_release(&p.w);
    }
    if (rc)
        fprintf(stderr, "%s\n", err.msg);
    return zt_exit_code(rc);
}
