/*
 * runtime.cpp: the frame of the fake runtime: the environment, the lock, errors, planned failures, and
 * what the devices are.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cusim/sim.h"

namespace
{

constexpr int RUNTIME_VERSION = CUDART_VERSION, N_SMS = 4;
constexpr int LEAK_STATUS = 24;

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

std::atomic<int> sticky_error{0};
thread_local cudaError_t last_error = cudaSuccess;
thread_local int device = 0;
thread_local bool in_host_function = false;

struct failure {
    long at, calls;
    int code;
};

/* Never destroyed: threads of streams outlive main(). */
std::map<std::string, failure> &failures()
{
    static auto *m = new std::map<std::string, failure>();
    return *m;
}

[[noreturn]] void bad_setting(const char *name, const char *value)
{
    fprintf(stderr, "cusim: %s=%s is not understood (test/cusim/sim.h)\n", name, value);
    abort();
}

size_t parse_bytes(const char *name, const char *value)
{
    char *end;
    unsigned long long n = strtoull(value, &end, 10);
    if (end == value)
        bad_setting(name, value);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (end[shift > 0] != '\0')
        bad_setting(name, value);
    return (size_t)n << shift;
}

void parse_schedule(cusim::config *c, const char *value)
{
    int used = 0;
    if (strcmp(value, "eager") == 0)
        c->sched = cusim::EAGER;
    else if (strcmp(value, "lazy") == 0)
        c->sched = cusim::LAZY;
    else if (sscanf(value, "rand:%u:%ld%n", &c->seed, &c->max_us, &used) == 2 && !value[used])
        c->sched = cusim::RAND;
    else if (sscanf(value, "slow:%u:%ld%n", &c->seed, &c->max_us, &used) == 2 && !value[used])
        c->sched = cusim::SLOW;
    else
        bad_setting("CUSIM_SCHED", value);
}

void parse_failures(const char *value)
{
    std::string list = value;
    for (size_t at = 0; at < list.size();) {
        size_t end = std::min(list.find(',', at), list.size());
        std::string one = list.substr(at, end - at);
        char name[64];
        failure f = {0, 0, 0};
        int n = sscanf(one.c_str(), "%63[^:]:%ld:%d", name, &f.at, &f.code);
        if (n < 2 || f.at < 1)
            bad_setting("CUSIM_FAIL", value);
        failures()[name] = f;
        at = end + 1;
    }
}

void at_exit()
{
    int n = cusim::report_memory_leaks();
    if (n > 0) {
        fflush(nullptr);
        _exit(LEAK_STATUS);
    }
}

int read_count(const char *name, const char *value)
{
    if (*value != '/')
        return (int)parse_bytes(name, value);
    int n = 0;
    if (!(std::ifstream(value) >> n))
        bad_setting(name, value);
    return n;
}

/* The numbers in a file; none where there is no such file. */
std::set<int> read_numbers(const char *path)
{
    std::set<int> numbers;
    std::ifstream in(path ? path : "");
    for (int d; in >> d;)
        numbers.insert(d);
    return numbers;
}

bool are_instances()
{
    static const bool mig = getenv("CUSIM_MIG") != nullptr;
    return mig;
}

/* Of a GPU, the same whatever CUDA counts: "GPU-03637573-696d-0000-0000-000000000000" is number 3. */
void make_uuid(int gpu, cudaUUID_t *out)
{
    memset(out, 0, sizeof *out);
    out->bytes[0] = (char)gpu;
    memcpy(out->bytes + 1, "cusim", 5);
}

std::string name_of(int gpu)
{
    cudaUUID_t u;
    char text[48];
    size_t n = 0;
    make_uuid(gpu, &u);
    for (int i = 0; i < 16; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%02x",
                              i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                              (unsigned char)u.bytes[i]);
    return std::string(are_instances() ? "MIG-" : "GPU-") + text;
}

/* Which of the GPUs that are there an entry of CUDA_VISIBLE_DEVICES means, -1: none, or not one alone. */
int find_visible(const std::vector<int> &present, const std::string &entry, bool by_name)
{
    int found = -1;
    if (!by_name) {
        char *end;
        long i = strtol(entry.c_str(), &end, 10);
        return end == entry.c_str() || i < 0 || i >= (long)present.size() ? -1 : present[(size_t)i];
    }
    for (int gpu : present) {
        if (entry.size() < 4 || name_of(gpu).compare(0, entry.size(), entry))
            continue;
        if (found >= 0)
            return -1;
        found = gpu;
    }
    return found;
}

/*
 * As the driver reads CUDA_VISIBLE_DEVICES: indices, or names and beginnings of names, as the first entry is. What
 * is not there, or not of that kind, ends the list; a GPU that stands in it twice leaves none.
 */
std::vector<int> choose_visible(const std::vector<int> &present, const char *mask)
{
    if (!mask)
        return present;
    std::vector<int> visible;
    const std::string list = mask;
    const bool by_name = !isdigit((unsigned char)mask[strspn(mask, " ")]);
    for (size_t at = 0; at < list.size();) {
        const size_t end = std::min(list.find(',', at), list.size());
        std::string entry = list.substr(at, end - at);
        entry.erase(0, entry.find_first_not_of(" "));
        entry.erase(entry.find_last_not_of(" ") + 1);
        const int gpu = find_visible(present, entry, by_name);
        if (gpu < 0)
            break;
        if (std::find(visible.begin(), visible.end(), gpu) != visible.end())
            return {};
        visible.push_back(gpu);
        at = end + 1;
    }
    return visible;
}

void find_devices(cusim::config *c)
{
    const char *v = getenv("CUSIM_DEVICES");
    const int n = v ? read_count("CUSIM_DEVICES", v) : 1;
    const std::set<int> gone = read_numbers(getenv("CUSIM_GONE"));
    std::vector<int> present;
    for (int gpu = 0; gpu < n; gpu++)
        if (!gone.count(gpu))
            present.push_back(gpu);
    c->visible = choose_visible(present, getenv("CUDA_VISIBLE_DEVICES"));
    if (are_instances() && c->visible.size() > 1)
        c->visible.resize(1);
    c->n_devices = (int)c->visible.size();
    c->broken = read_numbers(getenv("CUSIM_BROKEN"));
}

cusim::config read_settings()
{
    cusim::config c = {cusim::EAGER, 1,     0,  1, RUNTIME_VERSION, 9, (size_t)2 << 30, 227 << 10,
                       false,        false, {}, {}};
    if (const char *v = getenv("CUSIM_SCHED"))
        parse_schedule(&c, v);
    find_devices(&c);
    if (const char *v = getenv("CUSIM_DRIVER"))
        c.driver = (int)parse_bytes("CUSIM_DRIVER", v);
    if (const char *v = getenv("CUSIM_MAJOR"))
        c.major = (int)parse_bytes("CUSIM_MAJOR", v);
    if (const char *v = getenv("CUSIM_MEMORY"))
        c.memory_bytes = parse_bytes("CUSIM_MEMORY", v);
    if (const char *v = getenv("CUSIM_SHARED"))
        c.shared_bytes = parse_bytes("CUSIM_SHARED", v);
    if (const char *v = getenv("CUSIM_FAIL"))
        parse_failures(v);
    c.guard = getenv("CUSIM_GUARD") != nullptr;
    c.leaks = getenv("CUSIM_LEAKS") != nullptr;
    if (c.leaks)
        atexit(at_exit);
    return c;
}

} // namespace

namespace cusim
{

const config &settings()
{
    static const config *c = [] {
        quiet q;
        return new config(read_settings());
    }();
    return *c;
}

locked::locked()
{
    pthread_mutex_lock(&mutex);
}

locked::~locked()
{
    pthread_mutex_unlock(&mutex);
}

void locked::wait()
{
    pthread_cond_wait(&changed, &mutex);
}

bool locked::wait_us(long us)
{
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += us * 1000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return pthread_cond_timedwait(&changed, &mutex, &t) == 0;
}

void wake_all()
{
    pthread_cond_broadcast(&changed);
}

cudaError_t result(cudaError_t e)
{
    if (int s = sticky_error.load())
        e = (cudaError_t)s;
    if (e != cudaSuccess)
        last_error = e;
    return e;
}

cudaError_t refuse(const char *what_format, ...)
{
    char what[256];
    va_list args;
    va_start(args, what_format);
    vsnprintf(what, sizeof what, what_format, args);
    va_end(args);
    fprintf(stderr, "cusim: %s is not modelled\n", what);
    return result(cudaErrorNotSupported);
}

cudaError_t misuse(cudaError_t e, const char *call, const char *why)
{
    fprintf(stderr, "cusim: %s: %s\n", call, why);
    return result(e);
}

int planned_failure(const char *name, int otherwise)
{
    settings();
    locked lock;
    auto it = failures().find(name);
    if (it == failures().end() || ++it->second.calls != it->second.at)
        return 0;
    fprintf(stderr, "cusim: %s fails as CUSIM_FAIL asks\n", name);
    return it->second.code ? it->second.code : otherwise;
}

cudaError_t enter(const char *call, cudaError_t if_planned)
{
    const config &c = settings();
    if (c.driver < RUNTIME_VERSION)
        return result(cudaErrorInsufficientDriver);
    if (c.n_devices == 0)
        return result(cudaErrorNoDevice);
    if (in_host_function)
        return misuse(cudaErrorNotPermitted, call, "called from a host function of a stream");
    if (int e = planned_failure(call, if_planned))
        return result((cudaError_t)e);
    return sticky_error ? result(cudaSuccess) : cudaSuccess;
}

void set_sticky(cudaError_t e)
{
    locked lock;
    sticky_error = e;
    wake_all();
}

cudaError_t sticky()
{
    return (cudaError_t)sticky_error.load();
}

void set_in_host_function(bool in)
{
    in_host_function = in;
}

int current_device()
{
    return device;
}

} // namespace cusim

using namespace cusim;

namespace
{

bool is_device(int d)
{
    return d >= 0 && d < settings().n_devices;
}

struct error_text {
    cudaError_t code;
    const char *name, *text;
};

const error_text ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const error_text *find_error(cudaError_t e)
{
    static const error_text other = {cudaErrorUnknown, "unrecognized error code",
                                     "unrecognized error code"};
    for (const error_text &t : ERRORS) {
        if (t.code == e)
            return &t;
    }
    return &other;
}

} // namespace

extern "C" {

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = sticky() ? sticky() : last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return sticky() ? sticky() : last_error;
}

const char *cudaGetErrorName(cudaError_t e)
{
    return find_error(e)->name;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return find_error(e)->text;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = settings().driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 0;
    CUSIM_ENTER(cudaGetDeviceCount, cudaErrorInitializationError);
    *n = settings().n_devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int d)
{
    CUSIM_ENTER(cudaSetDevice, cudaErrorInitializationError);
    if (!is_device(d))
        return result(cudaErrorInvalidDevice);
    if (settings().broken.count(settings().visible[(size_t)d]))
        return result(cudaErrorECCUncorrectable);
    device = d;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *d)
{
    CUSIM_ENTER(cudaGetDevice, cudaErrorInitializationError);
    *d = device;
    return cudaSuccess;
}

cudaError_t cudaInitDevice(int d, unsigned device_flags, unsigned flags)
{
    CUSIM_ENTER(cudaInitDevice, cudaErrorInitializationError);
    if (flags != 0)
        return refuse("cudaInitDevice(flags %#x)", flags);
    (void)device_flags;
    return is_device(d) ? cudaSuccess : result(cudaErrorInvalidDevice);
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    CUSIM_ENTER(cudaSetDeviceFlags, cudaErrorInvalidValue);
    if (flags & ~(unsigned)cudaDeviceScheduleMask)
        return refuse("cudaSetDeviceFlags(%#x)", flags);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    CUSIM_ENTER(cudaDeviceSynchronize, cudaErrorLaunchFailure);
    synchronize_device(device);
    return result(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d)
{
    CUSIM_ENTER(cudaGetDeviceProperties, cudaErrorInvalidValue);
    if (!is_device(d))
        return result(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "cusim GPU%s", are_instances() ? " MIG 1g.2gb" : "");
    make_uuid(settings().visible[(size_t)d], &p->uuid);
    p->totalGlobalMem = settings().memory_bytes;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = settings().shared_bytes;
    p->sharedMemPerMultiprocessor = settings().shared_bytes + (1 << 10);
    p->reservedSharedMemPerBlock = 1 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 64 << 10;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = settings().major;
    p->multiProcessorCount = N_SMS;
    p->asyncEngineCount = 2;
    p->concurrentKernels = p->unifiedAddressing = p->canMapHostMemory = 1;
    p->streamPrioritiesSupported = p->hostRegisterSupported = 1;
    p->pciBusID = 1 + settings().visible[(size_t)d];
    p->memoryBusWidth = 4096;
    p->l2CacheSize = 50 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr attr, int d)
{
    CUSIM_ENTER(cudaDeviceGetAttribute, cudaErrorInvalidValue);
    struct cudaDeviceProp p;
    if (cudaError_t e = cudaGetDeviceProperties(&p, d))
        return e;
    switch (attr) {
    case cudaDevAttrMultiProcessorCount:
        *v = p.multiProcessorCount;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *v = p.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *v = p.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *v = (int)p.sharedMemPerBlock;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *v = (int)p.sharedMemPerBlockOptin;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *v = (int)p.sharedMemPerMultiprocessor;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
        *v = p.maxThreadsPerBlock;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *v = p.maxThreadsPerMultiProcessor;
        return cudaSuccess;
    case cudaDevAttrWarpSize:
        *v = p.warpSize;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *v = p.l2CacheSize;
        return cudaSuccess;
    case cudaDevAttrAsyncEngineCount:
        *v = p.asyncEngineCount;
        return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
        *v = p.memoryBusWidth;
        return cudaSuccess;
    case cudaDevAttrMemoryClockRate:
        *v = 1000000; /* kHz */
        return cudaSuccess;
    case cudaDevAttrClockRate:
        *v = 1000000; /* kHz */
        return cudaSuccess;
    default:
        return refuse("cudaDeviceGetAttribute(%d)", (int)attr);
    }
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int d)
{
    CUSIM_ENTER(cudaDeviceGetPCIBusId, cudaErrorInvalidValue);
    if (!is_device(d))
        return result(cudaErrorInvalidDevice);
    snprintf(id, (size_t)bytes, "0000:%02x:00.0", 1 + settings().visible[(size_t)d]);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    CUSIM_ENTER(cudaDeviceGetStreamPriorityRange, cudaErrorInvalidValue);
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int d, int peer)
{
    CUSIM_ENTER(cudaDeviceCanAccessPeer, cudaErrorInvalidValue);
    if (!is_device(d) || !is_device(peer))
        return result(cudaErrorInvalidDevice);
    *can = 0;
    return cudaSuccess;
}

} // extern "C"
