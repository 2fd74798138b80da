/*
 * doctor.h: inside of `zerotrain doctor`.
 *
 *   doctor.c          options, the two jobs below, and what is made of them
 *   doctor_print.c    the table and the JSON
 *   doctor_probe.c    the probe: what a host's worker of such a job does
 *   doctor_host.c     checks of a host: processors, memory, limits, kernel; doctor_device.c: GPUs;
 *                     doctor_folder.c: folders and drives; doctor_pairs.c: of the network between hosts
 *
 * The first job has a probe on each host, each for itself (zt_launch_sink.node): so a host that fails is one
 * line, and the others are still seen. The second is of the hosts that answered: their probes join as workers
 * of a training do and measure the network. A check is reported as soon as it is made: when something hangs or
 * crashes, those before it are there.
 */
#ifndef ZT_CMD_DOCTOR_H
#define ZT_CMD_DOCTOR_H

#include <jansson.h>

#include "cmd.h"
#include "launch/launch.h"

enum doctor_verdict { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL, DOCTOR_N_VERDICTS };

/*
 * A check: {"check": name, "verdict": "ok", "text": for a person, "todo": what to do or null, "facts": {...}}.
 * Takes `facts`; NULL: none.
 */
json_t *doctor_check(const char *name, enum doctor_verdict verdict, const char *todo, json_t *facts,
                     const char *fmt, ...) ZT_PRINTF(5, 6);
enum doctor_verdict doctor_verdict_of(const json_t *check);
extern const char *const doctor_verdict_names[DOCTOR_N_VERDICTS];

/* ---- the front end's side ---- */

struct doctor_host {
    const char *name;
    int n_slots;     /* 0: neither a hostfile nor --num_gpus says */
    const char *way; /* by which it is reached: "ssh", "srun"; NULL: it is this machine */
    bool answered, failed;
    int64_t ahead_ns, round_trip_ns; /* of its clock; round trip 0: not measured */
    json_t *checks;
    int count[DOCTOR_N_VERDICTS];
    const struct zt_launch_node *node; /* NULL: this machine alone, or it was left out */
};

struct doctor {
    struct cmd_options o;
    struct zt_recipe *r; /* NULL: none was given */
    struct doctor_host *hosts;
    int n_hosts;
    int64_t begun_ns;
    json_t *between;              /* checks that are of no single host */
    json_t *pairs;                /* {"from", "to", "round_trip_us", "bytes_per_s"} */
    int count[DOCTOR_N_VERDICTS]; /* of all */
};

void doctor_print_text(const struct doctor *d, struct zt_str *out);
void doctor_print_json(const struct doctor *d, struct zt_str *out);

/* ---- the probe's side ---- */

struct doctor_probe {
    struct zt_worker w;
    json_t *ask; /* what the front end wants to know (doctor.c: make_ask()) */
    int n_gpus;  /* that may be used */
};

/* Report a check. */
void doctor_say(struct doctor_probe *p, const char *name, enum doctor_verdict verdict,
                const char *todo, json_t *facts, const char *fmt, ...) ZT_PRINTF(6, 7);

void doctor_check_device(struct doctor_probe *p);
void doctor_check_host(struct doctor_probe *p); /* after the device, which limits matter for */
void doctor_check_folders(struct doctor_probe *p);

/* By the probes of all hosts. */
int doctor_check_pairs(struct doctor_probe *p, struct zt_err *err) ZT_MUST_CHECK;

/* "12.3 GiB"; buf has room for it. */
enum { DOCTOR_SIZE_BYTES = 32 };

#endif
