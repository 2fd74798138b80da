#include "cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "launch/launch.h"
#include "rank_out.h"

static const struct cmd commands[] = {
    {"train", cmd_train, "train a model as a recipe says (the default)"},
    {"plan", cmd_plan, "show what every worker will hold, send and do; starts nothing"},
    {"report", cmd_report, "compare runs: memory, step time, loss; as a table and a chart"},
    {"export", cmd_export, "write a model as a Hugging Face folder"},
    {"inspect", cmd_inspect, "show what a model, weights or token file holds; check it"},
    {"hosts", cmd_hosts, "show which rank would run on which host and device; starts nothing"},
    {"doctor", cmd_doctor, "what works here, on the hosts of a hostfile and between them"},
    {"launch", cmd_launch, "run any program once per rank, as the trainer's workers are run"},
    {"agent", cmd_agent, NULL},
    {"member", cmd_member, NULL},
    {"worker", cmd_worker, NULL},
    {"gpus", cmd_gpus, NULL},
    {"probe", cmd_probe, NULL},
};

static void print_help(FILE *f)
{
    fputs("usage: zerotrain [OPTIONS] RECIPE.yaml\n"
          "       zerotrain COMMAND [OPTIONS] ...\n"
          "\n"
          "Trains transformers with ZeRO 0-3 from a recipe: no Python, one program.\n"
          "\n"
          "Commands:\n",
          f);
    for (size_t i = 0; i < ZT_ARRAY_LEN(commands); i++)
        if (commands[i].help)
            fprintf(f, "  %-8s %s\n", commands[i].name, commands[i].help);
    fputs(
        "\n"
        "`zerotrain COMMAND --help` tells a command's options; `zerotrain train --help` those of\n"
        "training. Try: zerotrain --device=cpu --num_gpus=2 recipes/quickstart.yaml\n",
        f);
}

static struct rank_out *through;

void cmd_say_through(struct rank_out *to)
{
    through = to;
}

struct rank_out *cmd_says_through(void)
{
    return through;
}

static void say(bool is_note, const char *fmt, va_list ap)
{
    struct rank_out own = {.fd = STDERR_FILENO}, *out = through ? through : &own;
    char msg[ZT_ERR_MSG_BYTES];
    vsnprintf(msg, sizeof msg, fmt, ap);
    if (is_note)
        zt_str_printf(&out->buf, "note: %s\n", msg);
    else
        rank_out_say(out, msg);
    if (out == &own)
        (void)rank_out_finish(&own, false);
}

void cmd_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(false, fmt, ap);
    va_end(ap);
}

void cmd_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(true, fmt, ap);
    va_end(ap);
}

int zt_exit_code(int zt_code)
{
    switch (zt_code) {
    case ZT_OK:
        return ZT_EXIT_OK;
    case ZT_EUSAGE:
        return ZT_EXIT_USAGE;
    case ZT_EINPUT:
        return ZT_EXIT_INPUT;
    case ZT_EUNSUPPORTED:
        return ZT_EXIT_UNSUPPORTED;
    case ZT_ENOMEM:
        return ZT_EXIT_MEMORY;
    case ZT_ENUMERIC:
        return ZT_EXIT_NUMERIC;
    case ZT_EPEER:
        return ZT_EXIT_PEER_LOST;
    default:
        return ZT_EXIT_FAILURE;
    }
}

static const struct cmd *find_command(const char *name)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(commands); i++)
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

/* Neither a command, nor what names a recipe. */
static bool is_unknown(const char *word)
{
    return word[0] != '-' && !strpbrk(word, "./") && access(word, F_OK) != 0;
}

static int refuse(const char *word)
{
    const char *names[ZT_ARRAY_LEN(commands)];
    size_t n = 0;
    for (size_t i = 0; i < ZT_ARRAY_LEN(commands); i++)
        if (commands[i].help)
            names[n++] = commands[i].name;
    const char *near = zt_nearest(word, names, n);
    cmd_error("%s: neither a command nor a recipe; %s%s%s", word,
              near ? "did you mean `zerotrain " : "see zerotrain --help", near ? near : "",
              near ? "`?" : "");
    return ZT_EXIT_USAGE;
}

/* `zerotrain help COMMAND` */
static int help(int argc, char **argv)
{
    const struct cmd *c = argc > 2 ? find_command(argv[2]) : NULL;
    char *for_help[] = {argv[argc > 2 ? 2 : 1], (char[]){"--help"}, NULL};
    if (c && c->help)
        return c->run(2, for_help);
    if (argc > 2)
        return refuse(argv[2]);
    print_help(stdout);
    return ZT_EXIT_OK;
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return ZT_EXIT_USAGE;
    }
    if (strcmp(argv[1], "help") == 0)
        return help(argc, argv);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return ZT_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        printf("zerotrain %s\n", ZT_VERSION);
        return ZT_EXIT_OK;
    }
    const struct cmd *c = find_command(argv[1]);
    if (c)
        return c->run(argc - 1, argv + 1);
    return is_unknown(argv[1]) ? refuse(argv[1]) : cmd_train(argc, argv);
}

/*
 * Where one of the three standard descriptors is closed, the next file or socket of ours would get its number, and
 * what is said would be written into it. A closed input is empty, and a closed output still cannot be written.
 */
static bool fill_closed(void)
{
    static const int flags[] = {O_RDONLY, O_RDONLY, O_WRONLY};
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", flags[fd]) != fd)
            return false;
    return true;
}

int main(int argc, char **argv)
{
    /* Who has started us may ignore it: then children would vanish before they are waited for. */
    signal(SIGCHLD, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN); /* what is too large for `ulimit -f` is an error like a full disk */
    if (!fill_closed()) {
        cmd_error("/dev/null: %s", strerror(errno));
        return ZT_EXIT_FAILURE;
    }
    int code = run_command(argc, argv);
    errno = 0;
    if ((fflush(stdout) || ferror(stdout)) && code == ZT_EXIT_OK) {
        cmd_error("standard output: %s", errno ? strerror(errno) : "could not be written");
        return ZT_EXIT_FAILURE;
    }
    return code;
}
