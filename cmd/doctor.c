/*
 * doctor.c: `zerotrain doctor`: what works here, on the hosts of a hostfile and between them.
 */
#include "doctor.h"

#include <limits.h>
#include <stdarg.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "hosts_in.h"
#include "launch/env.h"
#include "slurm.h"
#include "train/train.h"

const char *const doctor_verdict_names[DOCTOR_N_VERDICTS] = {"ok", "warn", "FAIL"};

json_t *doctor_check(const char *name, enum doctor_verdict verdict, const char *todo, json_t *facts,
                     const char *fmt, ...)
{
    char text[ZT_ERR_MSG_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_t *words = json_string(text);
    if (!words)
        words = json_string("(what it says is not UTF-8)");
    return json_pack("{s:s, s:s, s:o, s:o, s:o}", "check", name, "verdict",
                     doctor_verdict_names[verdict], "text", words, "todo",
                     todo ? json_string(todo) : json_null(), "facts",
                     facts ? facts : json_object());
}

enum doctor_verdict doctor_verdict_of(const json_t *check)
{
    const char *name = json_string_value(json_object_get(check, "verdict"));
    for (int v = 0; name && v < DOCTOR_N_VERDICTS; v++)
        if (strcmp(name, doctor_verdict_names[v]) == 0)
            return (enum doctor_verdict)v;
    return DOCTOR_FAIL;
}

/* Takes `check`. */
static void add_host_check(struct doctor *d, struct doctor_host *h, json_t *check, bool first)
{
    const enum doctor_verdict v = doctor_verdict_of(check);
    h->count[v]++;
    d->count[v]++;
    if (first)
        json_array_insert_new(h->checks, 0, check);
    else
        json_array_append_new(h->checks, check);
}

static void add_between(struct doctor *d, json_t *check)
{
    d->count[doctor_verdict_of(check)]++;
    json_array_append_new(d->between, check);
}

/* ---- the hosts of a job ---- */

struct job {
    struct doctor *d;
    int n_nodes; /* 0: this machine alone */
    struct zt_launch_node *nodes;
    int *host_of; /* of each rank, which is also the node's number */
};

static struct doctor_host *host(const struct job *j, int rank)
{
    return &j->d->hosts[j->host_of[rank]];
}

/* A worker on each host that has not failed; `answered`: and has answered. */
static struct job with_hosts(struct doctor *d, bool answered)
{
    const size_t most = (size_t)d->n_hosts;
    struct job j = {.d = d,
                    .nodes = zt_arena_alloc(&d->o.arena, most, sizeof *j.nodes),
                    .host_of = zt_arena_alloc(&d->o.arena, most, sizeof *j.host_of)};
    for (int i = 0; i < d->n_hosts && d->o.nodes.n; i++) {
        const struct doctor_host *h = &d->hosts[i];
        if (h->failed || (answered && !h->answered))
            continue;
        j.host_of[j.n_nodes] = i;
        j.nodes[j.n_nodes] = *h->node;
        j.nodes[j.n_nodes++].n_workers = 1;
    }
    return j;
}

/* ---- what is asked ---- */

static json_t *folder(const char *check, const char *path, bool writes)
{
    return json_pack("{s:s, s:s, s:b}", "check", check, "path", path, "writes", (int)writes);
}

static void add_path(json_t *to, const char *cwd, const char *path)
{
    struct zt_str whole = {0};
    zt_str_printf(&whole, "%s%s%s", *path == '/' ? "" : cwd, *path == '/' ? "" : "/", path);
    json_array_append_new(to, json_string(whole.buf));
    zt_str_release(&whole);
}

/* What of a recipe every host reads. */
static json_t *reads(const struct zt_recipe *r, const char *cwd)
{
    json_t *paths = json_array();
    if (!r)
        return paths;
    const struct zt_str_list *lists[] = {&r->data.train, &r->data.val, &r->data.train_mask,
                                         &r->data.val_mask};
    for (size_t k = 0; k < ZT_ARRAY_LEN(lists); k++)
        for (int i = 0; i < lists[k]->n; i++)
            add_path(paths, cwd, lists[k]->items[i]);
    if (r->model.from)
        add_path(paths, cwd, r->model.from);
    return paths;
}

/* As training sees it: GPUs that are asked for must be there. */
static bool needs_gpus(const struct cmd_options *o)
{
    return strcmp(o->device, "cpu") != 0 &&
           (strcmp(o->device, "auto") != 0 || o->num_gpus || o->hosts.include || o->hosts.exclude);
}

/* For the probe of each host. */
static json_t *make_ask(const struct job *j)
{
    const struct doctor *d = j->d;
    char cwd[PATH_MAX];
    json_t *slots = json_array(), *folders = json_array();
    int n_ranks = 0;
    for (int i = 0; i < ZT_MAX(j->n_nodes, 1); i++) {
        json_array_append_new(slots, json_integer(host(j, i)->n_slots));
        n_ranks += ZT_MAX(host(j, i)->n_slots, 1);
    }
    if (!getcwd(cwd, sizeof cwd))
        cwd[0] = '\0';
    json_array_append_new(folders, folder("work folder", cwd, false));
    if (d->r && d->r->checkpoint.dir)
        json_array_append_new(folders, folder("checkpoints", d->r->checkpoint.dir, true));
    const char *nvme = d->r ? d->r->zero.nvme.given : NULL;
    return json_pack("{s:s, s:b, s:i, s:o, s:o, s:o, s:s?}", "device", d->o.device, "needs_gpus",
                     (int)needs_gpus(&d->o), "ranks", n_ranks, "slots", slots, "folders", folders,
                     "reads", reads(d->o.nodes.n ? d->r : NULL, cwd), "nvme", nvme);
}

/* ---- what is heard ---- */

static void on_line(void *ctx, int rank, enum zt_log_stream s, const char *line, size_t len)
{
    (void)ctx, (void)rank, (void)s, (void)line, (void)len; /* its end shows the last of them */
}

static void on_notice(void *ctx, const char *text)
{
    (void)ctx, (void)text; /* each host's line says it */
}

static void on_report(void *ctx, int rank, const char *json, size_t len)
{
    const struct job *j = ctx;
    json_t *check = json_loadb(json, len, 0, NULL);
    if (check)
        add_host_check(j->d, host(j, rank), check, false);
}

static const char *why_slow(const struct doctor_host *h)
{
    return strcmp(h->way, "ssh") == 0
               ? "sshd may look up names in vain: UseDNS no in its sshd_config"
               : "Slurm may run a slow Prolog, or be busy: see the logs of slurmctld and slurmd";
}

static void on_answer(struct doctor *d, struct doctor_host *h, const char *build)
{
    enum { SLOW_S = 5 };
    const double login_s = (double)(zt_now_ns() - d->begun_ns) * 1e-9;
    const bool slow = login_s > SLOW_S;
    h->answered = true;
    if (strcmp(build, zt_build_name()) == 0)
        add_host_check(d, h, doctor_check("program", DOCTOR_OK, NULL, NULL, "zerotrain %s", build),
                       true);
    if (h->way)
        add_host_check(d, h,
                       doctor_check("login", slow ? DOCTOR_WARN : DOCTOR_OK,
                                    slow ? why_slow(h) : NULL,
                                    json_pack("{s:f}", "seconds", login_s), "by %s, in %.2f s",
                                    h->way, login_s),
                       true);
}

static const char *what_to_do(const struct doctor_host *h, bool began)
{
    if (began)
        return "what comes after the last line above hangs or crashes";
    if (!h->answered && h->way && strcmp(h->way, "srun") == 0)
        return "srun --overlap -w HOST hostname must work there, and zerotrain be there by the "
               "same path (--remote_path)";
    return NULL;
}

/* Before it has answered it is the login that fails, then the program, then what it was at. */
static void on_failure(struct doctor *d, struct doctor_host *h, const char *why)
{
    const bool began = json_array_size(h->checks) > 1;
    h->failed = true;
    add_host_check(d, h,
                   doctor_check(!h->answered ? "login"
                                : began      ? "probe"
                                             : "program",
                                DOCTOR_FAIL, what_to_do(h, began), NULL, "%s", why),
                   false);
}

static void on_node(void *ctx, int node, const struct zt_node_news *news)
{
    const struct job *j = ctx;
    struct doctor_host *h = host(j, node);
    switch (news->event) {
    case ZT_NODE_ANSWERED:
        on_answer(j->d, h, news->text);
        break;
    case ZT_NODE_CLOCK:
        h->ahead_ns = news->ahead_ns;
        h->round_trip_ns = news->round_trip_ns;
        break;
    case ZT_NODE_FAILED:
        on_failure(j->d, h, news->text);
        break;
    }
}

/* ---- the first job: each host for itself ---- */

static void set_environment(struct doctor *d, struct zt_env *env)
{
    extern char **environ;
    struct zt_env ours = {0};
    if (d->o.nodes.n == 0)
        return;
    zt_env_add_all(&ours, environ);
    zt_env_add_for_remote(env, &ours);
    zt_env_release(&ours);
}

static int launch(const struct job *j, json_t *ask, const struct zt_launch_sink *sink,
                  struct zt_launch_result *result, struct zt_err *err)
{
    struct zt_env env = {0};
    char *question = json_dumps(ask, JSON_COMPACT);
    if (!question)
        return zt_err_set(err, ZT_EINPUT, "a path is not UTF-8");
    set_environment(j->d, &env);
    const struct zt_launch_opts opts = {.n_workers = ZT_MAX(j->n_nodes, 1),
                                        .n_nodes = j->n_nodes,
                                        .nodes = j->nodes,
                                        .joined = j->d->o.joined,
                                        .srun = j->d->o.srun,
                                        .own_command = "probe",
                                        .env = (const char *const *)env.v,
                                        .n_env = (int)env.n,
                                        .recipe = question,
                                        .recipe_len = strlen(question),
                                        .sink = *sink};
    int rc = zt_launch_run(&opts, result, err);
    zt_env_release(&env);
    free(question);
    return rc;
}

/* 0, or after a message an exit code. */
static int examine_hosts(struct doctor *d)
{
    struct job j = with_hosts(d, false);
    const struct zt_launch_sink sink = {
        .ctx = &j, .line = on_line, .report = on_report, .notice = on_notice, .node = on_node};
    struct zt_launch_result result = {0};
    struct zt_err err = {0};
    if (d->o.nodes.n && !j.n_nodes)
        return 0;
    json_t *ask = make_ask(&j);
    int rc = launch(&j, ask, &sink, &result, &err);
    json_decref(ask);
    if (rc || result.exit_code)
        cmd_error("%s", rc ? err.msg : result.summary);
    return rc ? zt_exit_code(rc) : result.exit_code;
}

/* ---- the second: between those that answered ---- */

static void on_pair(void *ctx, int rank, const char *json, size_t len)
{
    const struct job *j = ctx;
    json_t *said = json_loadb(json, len, 0, NULL);
    if (json_object_get(said, "check")) {
        add_host_check(j->d, host(j, rank), said, false);
        return;
    }
    const char *ends[] = {"from", "to"};
    for (int i = 0; i < 2; i++) {
        const int64_t r = json_integer_value(json_object_get(said, ends[i]));
        if (r < 0 || r >= j->n_nodes) { /* another host says so */
            json_decref(said);
            return;
        }
        json_object_set_new(said, ends[i], json_string(host(j, (int)r)->name));
    }
    json_array_append_new(j->d->pairs, said);
}

/* The slowest and the fastest way, and the longest round trip. */
static void sum_up_pairs(struct doctor *d)
{
    const json_t *slowest = NULL, *pair;
    double least = 0, most = 0, longest_us = 0;
    size_t i;
    json_array_foreach(d->pairs, i, pair)
    {
        const double rate = json_real_value(json_object_get(pair, "bytes_per_s"));
        longest_us = ZT_MAX(longest_us, json_real_value(json_object_get(pair, "round_trip_us")));
        most = ZT_MAX(most, rate);
        if (slowest && rate >= least)
            continue;
        slowest = pair;
        least = rate;
    }
    const bool uneven = least < most / 3;
    add_between(d, doctor_check("network", uneven ? DOCTOR_WARN : DOCTOR_OK,
                                uneven ? "the slowest link sets the pace of all; ZT_TCP_INTERFACE "
                                         "names another network"
                                       : NULL,
                                NULL,
                                "%.0f to %.0f MB/s each way, slowest from %s to %s; round trips up "
                                "to %.0f us",
                                least * 1e-6, most * 1e-6,
                                json_string_value(json_object_get(slowest, "from")),
                                json_string_value(json_object_get(slowest, "to")), longest_us));
}

static int examine_network(struct doctor *d)
{
    struct job j = with_hosts(d, true);
    if (j.n_nodes < 2)
        return 0;
    const struct zt_launch_sink sink = {
        .ctx = &j, .line = on_line, .report = on_pair, .notice = on_notice};
    const char *shared = d->r ? d->r->checkpoint.dir : NULL;
    struct zt_launch_result result = {0};
    struct zt_err err = {0};
    json_t *ask = json_pack("{s:b, s:s?}", "pairs", 1, "shared", shared);
    int rc = launch(&j, ask, &sink, &result, &err);
    json_decref(ask);
    if (!rc && result.exit_code > 128 && result.first_rank < 0) { /* Ctrl-C */
        cmd_error("%s", result.summary);
        return result.exit_code;
    }
    if (rc || result.exit_code)
        add_between(d, doctor_check("network", DOCTOR_FAIL,
                                    "hosts must reach each other by TCP, at any port above 1023: "
                                    "see their firewalls, and ZT_TCP_INTERFACE",
                                    NULL, "%s", rc ? err.msg : result.summary));
    else
        sum_up_pairs(d);
    return 0;
}

/* ---- what follows from all hosts together ---- */

static void judge_clocks(struct doctor *d)
{
    enum { FAR_MS = 1000 };
    const struct doctor_host *worst = NULL;
    for (int i = 0; i < d->n_hosts; i++) {
        const struct doctor_host *h = &d->hosts[i];
        if (h->way && h->round_trip_ns && (!worst || llabs(h->ahead_ns) > llabs(worst->ahead_ns)))
            worst = h;
    }
    if (!worst)
        return;
    const double ms = (double)worst->ahead_ns * 1e-6;
    const double within_ms = (double)worst->round_trip_ns * 0.5e-6;
    const bool far = llabs(worst->ahead_ns) - worst->round_trip_ns / 2 > FAR_MS * INT64_C(1000000);
    add_between(
        d, doctor_check("clocks", far ? DOCTOR_WARN : DOCTOR_OK,
                        far ? "set them by NTP (chrony): times in logs and of files mislead" : NULL,
                        NULL, "at most %.1f ms from ours (%s: %+.1f, give or take %.1f)",
                        ms < 0 ? -ms : ms, worst->name, ms, within_ms));
}

static const json_t *facts_of(const struct doctor_host *h, const char *check)
{
    const json_t *c;
    size_t i;
    json_array_foreach(h->checks, i, c) if (strcmp(json_string_value(json_object_get(c, "check")),
                                                   check) == 0) return json_object_get(c, "facts");
    return NULL;
}

/* Is a fact the same on all hosts? If not, two of them. */
static void judge_alike(struct doctor *d, const char *check, const char *fact, const char *todo)
{
    const struct doctor_host *first = NULL;
    const char *of_first = NULL;
    for (int i = 0; i < d->n_hosts; i++) {
        const char *v = json_string_value(json_object_get(facts_of(&d->hosts[i], check), fact));
        if (!v)
            continue;
        if (!first) {
            first = &d->hosts[i];
            of_first = v;
        } else if (strcmp(v, of_first)) {
            add_between(d, doctor_check(check, DOCTOR_WARN, todo, NULL, "%s: %s; %s: %s",
                                        first->name, of_first, d->hosts[i].name, v));
            return;
        }
    }
}

/* Data and weights, opened as training opens them before it starts anything: on this machine. */
static void check_data(struct doctor *d)
{
    struct zt_arena arena = {0};
    struct zt_str notes = {0};
    struct zt_model *model;
    struct zt_err err;
    int rc = zt_train_model(d->r, &arena, &model, &err);
    if (!rc)
        rc = zt_train_check(d->r, model, &notes, &err);
    json_t *check = doctor_check(
        "data", rc ? DOCTOR_FAIL : DOCTOR_OK,
        rc ? "a training would be refused; zerotrain inspect tells what a file holds" : NULL, NULL,
        "%s", rc ? err.msg : "what the recipe reads can be opened here");
    if (d->o.nodes.n)
        add_between(d, check);
    else
        add_host_check(d, &d->hosts[0], check, false);
    zt_str_release(&notes);
    zt_arena_release(&arena);
}

static void judge_hosts(struct doctor *d)
{
    if (d->r)
        check_data(d);
    judge_clocks(d);
    judge_alike(d, "processor", "kernels",
                "last digits differ between such hosts, and the slowest sets the pace; "
                "ZT_CPU_ISA=v3 (or v2) asks all for the same");
    judge_alike(d, "NCCL", "version", "install the same NCCL on all hosts");
}

/* ---- which hosts ---- */

static void add_host(struct doctor *d, const char *name, int n_slots, const char *way)
{
    struct doctor_host *h = &d->hosts[d->n_hosts++];
    *h = (struct doctor_host){.name = name, .n_slots = n_slots, .way = way};
    h->checks = json_array();
}

static void find_hosts(struct doctor *d)
{
    const struct cmd_nodes *all = &d->o.nodes;
    const char *way = cmd_by_slurm(&d->o) ? "srun" : NULL;
    char here[256] = "this machine";
    d->hosts = zt_arena_alloc(&d->o.arena, (size_t)ZT_MAX(all->n, 1), sizeof *d->hosts);
    if (all->n == 0) {
        gethostname(here, sizeof here - 1);
        add_host(d, zt_arena_strdup(&d->o.arena, here), d->o.num_gpus, NULL);
    }
    for (int i = 0; i < all->n; i++)
        add_host(d, cmd_hosts_name(all, i), all->v[i].n_workers, all->v[i].ssh ? "ssh" : way);
}

static struct doctor_host *find_host(struct doctor *d, const char *name)
{
    struct doctor_host *h = d->hosts;
    while (strcmp(h->name, name) != 0)
        h++;
    return h;
}

/* ---- by srun ---- */

static void on_srun(void *ctx, const char *text)
{
    (void)ctx;
    cmd_error("%s", text);
}

/* Those that did not come have failed, and are left out. How many remain. */
static int leave_out(struct doctor *d, const struct zt_launch_result *result, const char *why)
{
    int n_left = 0;
    for (int i = 0; i < d->o.nodes.n; i++) {
        struct doctor_host *h = find_host(d, cmd_hosts_name(&d->o.nodes, i));
        if (result->node_end[i] == ZT_NODE_NO_START) {
            on_failure(d, h, why);
            cmd_list_add(&d->o.arena, &d->o.lost.hosts, h->name);
        } else {
            n_left++;
        }
    }
    return n_left;
}

/* Until it works for all that are left. 0, or after a message an exit code. */
static int start_srun(struct doctor *d)
{
    struct zt_launch_result result;
    struct zt_err err = {0};
    int code = 0;
    for (int left = d->n_hosts, n; left > 0 && !code; left = n) {
        d->begun_ns = zt_now_ns();
        const int rc = cmd_slurm_start(&d->o, on_srun, d, &result, &err);
        if (!rc)
            break;
        n = leave_out(d, &result, err.msg);
        if (n == left) {
            cmd_error("%s", err.msg);
            code = cmd_slurm_exit_code(rc, &result);
        } else if (n) {
            code = cmd_hosts_train(&d->o);
        }
    }
    return code;
}

/* ---- all of it ---- */

static int examine(struct doctor *d)
{
    struct zt_str out = {0};
    if (d->o.set.n && !d->o.recipe_path) {
        cmd_error("--set %s: of which recipe? Give one YAML file", d->o.set.items[0]);
        return ZT_EXIT_USAGE;
    }
    int code = cmd_hosts_train(&d->o);
    if (!code && d->o.recipe_path)
        code = cmd_load_recipe(&d->o, ZT_MAX(d->o.num_gpus, 1), true, 0, &d->r);
    if (code)
        return code;
    find_hosts(d);
    d->begun_ns = zt_now_ns();
    if (cmd_by_slurm(&d->o))
        code = start_srun(d);
    for (int i = 0; i < d->o.nodes.n; i++)
        find_host(d, cmd_hosts_name(&d->o.nodes, i))->node = &d->o.nodes.v[i];
    if (!code)
        code = examine_hosts(d);
    if (!code)
        code = examine_network(d);
    if (code)
        return code;
    judge_hosts(d);
    if (d->o.json)
        doctor_print_json(d, &out);
    else
        doctor_print_text(d, &out);
    fwrite(zt_str_get(&out), 1, out.len, stdout);
    zt_str_release(&out);
    return d->count[DOCTOR_FAIL] ? ZT_EXIT_FAILURE : ZT_EXIT_OK;
}

int cmd_doctor(int argc, char **argv)
{
    struct doctor d = {.between = json_array(), .pairs = json_array()};
    int code = cmd_parse(argc, argv, CMD_DOCTOR, &d.o);
    if (code < 0)
        code = examine(&d);
    cmd_slurm_end(&d.o, code);
    for (int i = 0; i < d.n_hosts; i++)
        json_decref(d.hosts[i].checks);
    json_decref(d.between);
    json_decref(d.pairs);
    zt_recipe_free(d.r);
    cmd_options_release(&d.o);
    return code;
}
