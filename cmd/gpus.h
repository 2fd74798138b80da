/* gpus.h: the GPUs of the hosts of a job: each host is asked once, before anything is started. */
#ifndef ZT_CMD_GPUS_H
#define ZT_CMD_GPUS_H

#include "cmd.h"
#include "launch/env.h"

/*
 * What is remembered of a GPU, and given to workers, is its UUID: CUDA counts the others anew when one of them
 * is gone. A person knows it by the host's CUDA_VISIBLE_DEVICES, or as it was counted when the run began.
 */
struct cmd_gpu {
    const char *id;    /* the UUID; where CUDA did not tell, the entry */
    const char *entry; /* what CUDA_VISIBLE_DEVICES calls it there: the index */
    const char *name;
    const char *broken; /* NULL, or why it cannot be used; then without name and memory */
    size_t free_bytes;
};

/* What a host says. Its GPUs are those that its own CUDA_VISIBLE_DEVICES shows, in that order. */
struct cmd_host_gpus {
    const char *host;  /* NULL: this machine */
    int n;             /* how many there are */
    int n_asked;       /* of the first of them all is known */
    struct cmd_gpu *v; /* (n_asked) */
    const char *none;  /* n 0: why there is none */
    const char *wrong; /* n 0: or what is wrong there, so that it cannot tell */
    enum zt_exit code; /* of either */
    const char *mask;  /* its CUDA_VISIBLE_DEVICES; NULL: not set */
    bool nccl;         /* its CUDA part was built with it */
    size_t host_bytes; /* free */
    int cores;         /* that we may use */
};

/*
 * Ask the hosts of o->nodes, or this machine where there are none: of each the first n_asked GPUs. `env`, as
 * workers will get it, is theirs too. *out is (o->nodes.n, or 1), in the arena. 0, or an exit code after
 * a message: a host that cannot be reached. One without GPUs is an answer.
 */
int cmd_gpus_ask(const struct cmd_options *o, const struct zt_env *env, int n_asked,
                 struct zt_arena *arena, struct cmd_host_gpus **out);

/*
 * Ask for o->gpus of this machine once more, each by a process that sees it alone, as its worker will: *out is
 * one, whose v[i] (o->n_gpus) says of o->gpus[i] what is free, or why it is broken or gone; its n counts the others. 0, or an
 * exit code after a message.
 */
int cmd_gpus_ask_again(const struct cmd_options *o, const struct zt_env *env,
                       struct zt_arena *arena, struct cmd_host_gpus **out);

/* "GPU 2 (GPU-1a2b...)", for messages; returns buf. */
enum { CMD_GPU_LABEL_BYTES = 160 };
const char *cmd_gpu_label(const struct cmd_gpu *gpu, char buf[CMD_GPU_LABEL_BYTES]);

/* May there be a GPU here: a device node, or a ZT_CUDA_LIB that tells us to look. Touches no driver. */
bool cmd_may_have_gpus(void);

int cmd_cores(void); /* of this machine that we may use */

/* Free bytes of this machine. */
int cmd_host_memory(size_t *free_bytes, struct zt_err *err) ZT_MUST_CHECK;

#endif
