#include "doctor.h"

#include <dlfcn.h>

#include "base/str.h"
#include "coll/backend.h"

/* "2.21.5", of the library that the CUDA part brought along. */
static bool nccl_version(char *buf, size_t bytes)
{
    int (*get_version)(int *version);
    int v;
    void *lib = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = lib ? dlsym(lib, "ncclGetVersion") : NULL;
    bool found = false;
    if (symbol) {
        memcpy(&get_version, &symbol, sizeof symbol);
        found = get_version(&v) == 0;
    }
    if (lib)
        dlclose(lib);
    if (found) /* X.Y.Z; 1000 X + 100 Y + Z up to 2.8, 10000 X + 100 Y + Z since */
        snprintf(buf, bytes, "%d.%d.%d", v < 10000 ? v / 1000 : v / 10000,
                 v < 10000 ? v % 1000 / 100 : v % 10000 / 100, v % 100);
    return found;
}

static void check_nccl(struct doctor_probe *p, const struct zt_backend *b)
{
    char version[32];
    if (!b->nccl_id)
        doctor_say(p, "NCCL", DOCTOR_WARN,
                   "build with nccl.h where several GPUs train together; without it data goes by "
                   "way of the host",
                   NULL, "this CUDA part was built without it");
    else if (nccl_version(version, sizeof version))
        doctor_say(p, "NCCL", DOCTOR_OK, NULL, json_pack("{s:s}", "version", version), "%s",
                   version);
    else
        doctor_say(p, "NCCL", DOCTOR_OK, NULL, NULL, "there, its version is not known");
}

static void check_free(struct doctor_probe *p, int i, const struct zt_gpu_info *info)
{
    char free_text[DOCTOR_SIZE_BYTES];
    if (info->free_bytes >= info->total_bytes / 10 * 9)
        return;
    zt_fmt_gib(free_text, sizeof free_text, (double)info->free_bytes);
    doctor_say(p, "GPU memory", DOCTOR_WARN, "nvidia-smi shows what else runs there", NULL,
               "only %s of GPU %d are free", free_text, i);
}

static int describe_gpus(struct doctor_probe *p, const struct zt_backend *b, struct zt_str *text,
                         json_t *list, struct zt_err *err)
{
    char bytes[DOCTOR_SIZE_BYTES];
    struct zt_gpu_info info = {0};
    zt_str_printf(text, "%d:", p->n_gpus);
    for (int i = 0; i < p->n_gpus; i++) {
        int rc = b->device_info(i, &info, err);
        if (rc)
            return info.id[0] ? zt_err_wrap(err, "GPU %d (%s)", i, info.id)
                              : zt_err_wrap(err, "GPU %d", i);
        zt_str_printf(text, "%s %s, %s", i ? ";" : "", info.name,
                      zt_fmt_gib(bytes, sizeof bytes, (double)info.total_bytes));
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:I, s:I, s:i, s:i}", "name", info.name, "uuid", info.id,
                            "total_bytes", (json_int_t)info.total_bytes, "free_bytes",
                            (json_int_t)info.free_bytes, "major", info.major, "minor", info.minor));
        check_free(p, i, &info);
    }
    return 0;
}

/* The first GPU as a worker opens it, with the versions of driver and libraries. */
static void check_driver(struct doctor_probe *p, const struct zt_backend *b)
{
    struct zt_dev *dev;
    struct zt_err err;
    char log[512];
    if (b->dev_create(0, &dev, log, sizeof log, &err)) {
        doctor_say(p, "CUDA", DOCTOR_FAIL, "nvidia-smi shows the state of driver and GPUs", NULL,
                   "%s", err.msg);
        return;
    }
    b->dev_free(dev);
    const char *versions = strchr(log, ';');
    doctor_say(p, "CUDA", DOCTOR_OK, NULL, NULL, "%s", versions ? versions + 2 : log);
}

static int check_gpus(struct doctor_probe *p, const struct zt_backend *b, int n_slots,
                      struct zt_err *err)
{
    struct zt_str text = {0};
    json_t *list = json_array();
    int rc = describe_gpus(p, b, &text, list, err);
    bool enough = n_slots <= p->n_gpus;
    if (!rc)
        doctor_say(p, "GPUs", enough ? DOCTOR_OK : DOCTOR_FAIL,
                   enough ? NULL
                          : "ask for fewer (slots of the hostfile, --num_gpus), or see "
                            "CUDA_VISIBLE_DEVICES there",
                   json_pack("{s:O}", "gpus", list), "%s%s", zt_str_get(&text),
                   enough ? "" : "; more of them are asked for");
    json_decref(list);
    zt_str_release(&text);
    if (rc)
        return rc;
    check_driver(p, b);
    check_nccl(p, b);
    return 0;
}

static void say_none(struct doctor_probe *p, bool must)
{
    doctor_say(p, "GPUs", must ? DOCTOR_FAIL : DOCTOR_OK,
               must ? "--device=cpu trains on the CPU" : NULL, json_pack("{s:[]}", "gpus"),
               "none%s", must ? ", and they are asked for" : "; it trains on the CPU");
}

void doctor_check_device(struct doctor_probe *p)
{
    const char *device = json_string_value(json_object_get(p->ask, "device"));
    const json_t *slots = json_array_get(json_object_get(p->ask, "slots"), (size_t)p->w.node);
    const struct zt_backend *b;
    struct zt_err err;
    const bool must = json_is_true(json_object_get(p->ask, "needs_gpus"));
    if (strcmp(device, "cpu") == 0)
        return;
    if (zt_count_devices() == 0 && !getenv("ZT_CUDA_LIB")) {
        say_none(p, must);
        return;
    }
    int rc = zt_backend_load(&b, &err);
    if (!rc)
        rc = b->device_count(&p->n_gpus, &err);
    if (!rc)
        rc = check_gpus(p, b, (int)json_integer_value(slots), &err);
    if (rc) {
        /* A build without CUDA trains on the CPU where nobody asks for GPUs; GPUs that fail end a training. */
        const bool fails = must || rc != ZT_EUNSUPPORTED;
        p->n_gpus = 0;
        doctor_say(p, "GPUs", fails ? DOCTOR_FAIL : DOCTOR_WARN,
                   fails ? "--device=cpu trains on the CPU"
                         : "until then it trains on the CPU; --device=cpu asks for that",
                   NULL, "%s", err.msg);
    }
}
