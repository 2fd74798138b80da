/*
 * stream.cpp: streams and events. A stream is a thread with a queue; CUSIM_SCHED says when it starts the
 * next operation. All streams are non-blocking ones (cudaStreamNonBlocking): the legacy stream is one
 * more per device, which waits for none of them, and a blocking stream is refused.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "cusim/sim.h"

using cusim::acquire;
using cusim::locked;
using cusim::quiet;
using cusim::release;
using cusim::result;

namespace
{

/* How long a lazy stream stays idle though it has work and nobody waits: host functions that signal
 * somebody must run some day. */
constexpr long LAZY_US = 2000;

struct op {
    const char *what;
    std::function<void()> fn;
    bool on_device; /* may touch device memory */
};

void carry_out(const op *o)
{
    if (o->on_device)
        cusim::open_device_memory();
    o->fn();
    if (o->on_device)
        cusim::close_device_memory();
}

/* One cudaEventRecord(). */
struct record {
    cudaStream_t stream;
    bool done;
    double at; /* seconds */
    char tag;
};

} // namespace

struct CUstream_st {
    int id, device, priority;
    std::deque<op *> queue;
    unsigned long enqueued = 0, done = 0;
    bool forced = false, quit = false;
    pthread_t thread;
    char tag;
};

struct CUevent_st {
    unsigned flags;
    int device;
    std::shared_ptr<record> last;
};

namespace
{

struct registry {
    std::set<cudaStream_t> streams;
    std::set<cudaEvent_t> events;
    std::map<int, cudaStream_t> legacy; /* of each device */
    int next_id = 0;
    unsigned long n_ops = 0;
};

registry &all()
{
    static auto *r = new registry();
    return *r;
}

double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

unsigned mix(unsigned a, unsigned b)
{
    unsigned long long x = a * 0x9E3779B97F4A7C15ull + b * 0xD1B54A32D192ED03ull;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ull;
    return (unsigned)(x >> 32);
}

/* Somebody waits for the stream: a lazy one starts. With the lock held. */
void force(cudaStream_t s)
{
    if (!s->forced) {
        s->forced = true;
        cusim::wake_all();
    }
}

long delay_us(const CUstream_st *s)
{
    const cusim::config &c = cusim::settings();
    if (c.sched == cusim::RAND)
        return (long)(mix(c.seed + (unsigned)s->id * 7919, (unsigned)s->done) %
                      (unsigned long)(c.max_us + 1));
    if (c.sched == cusim::SLOW)
        return mix(c.seed, (unsigned)s->id) & 1 ? c.max_us : 0;
    return 0;
}

/* The next operation, once the schedule lets it start; NULL: the stream ends. */
op *next_op(CUstream_st *s)
{
    op *o;
    long us;
    {
        locked lock;
        while (s->queue.empty() && !s->quit)
            lock.wait();
        if (s->queue.empty())
            return nullptr;
        if (cusim::settings().sched == cusim::LAZY) {
            while (!s->forced && !s->quit && lock.wait_us(LAZY_US))
                ;
        }
        o = s->queue.front();
        s->queue.pop_front();
        us = delay_us(s);
    }
    if (us > 0)
        usleep((useconds_t)us);
    return o;
}

void *stream_main(void *arg)
{
    auto *s = static_cast<CUstream_st *>(arg);
    while (op *o = next_op(s)) {
        acquire(o);
        if (int e = cusim::planned_failure("op", cudaErrorIllegalAddress))
            cusim::set_sticky((cudaError_t)e);
        if (!cusim::sticky()) /* else the context is dead */
            carry_out(o);
        release(&s->tag);
        locked lock;
        delete o;
        s->done++;
        if (s->queue.empty())
            s->forced = false;
        cusim::wake_all();
    }
    return nullptr;
}

cudaStream_t new_stream(int device, int priority)
{
    quiet q;
    auto *s = new CUstream_st();
    s->device = device;
    s->priority = priority;
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
        sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int e = pthread_create(&s->thread, nullptr, stream_main, s);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (e) {
        delete s;
        return nullptr;
    }
    return s;
}

/* The stream behind a handle, NULL if there is none. Makes the legacy stream. With the lock held. */
cudaStream_t resolve(cudaStream_t handle)
{
    if (handle && handle != cudaStreamLegacy)
        return all().streams.count(handle) ? handle : nullptr;
    cudaStream_t &s = all().legacy[cusim::current_device()];
    if (!s) {
        s = new_stream(cusim::current_device(), 0);
        s->id = all().next_id++;
    }
    return s;
}

void wait_for(cudaStream_t s, unsigned long position)
{
    {
        locked lock;
        while (s->done < position && !cusim::sticky()) {
            force(s);
            lock.wait();
        }
    }
    acquire(&s->tag);
}

void wait_for(const std::shared_ptr<record> &r)
{
    {
        locked lock;
        while (!r->done && !cusim::sticky()) {
            force(r->stream);
            lock.wait();
        }
    }
    acquire(&r->tag);
}

cudaError_t push(cudaStream_t stream, const char *what, bool on_device, std::function<void()> fn)
{
    op *o;
    {
        quiet q;
        o = new op{what, std::move(fn), on_device};
    }
    release(o);
    locked lock;
    cudaStream_t s = resolve(stream);
    if (!s) {
        delete o;
        return cusim::misuse(cudaErrorInvalidResourceHandle, what, "not a stream");
    }
    s->queue.push_back(o);
    s->enqueued++;
    cusim::wake_all();
    return cudaSuccess;
}

} // namespace

namespace cusim
{

cudaError_t enqueue(cudaStream_t stream, const char *what, std::function<void()> fn)
{
    return push(stream, what, true, std::move(fn));
}

int stream_device(cudaStream_t stream)
{
    locked lock;
    if (!stream || stream == cudaStreamLegacy)
        return current_device();
    return all().streams.count(stream) ? stream->device : -1;
}

cudaError_t synchronize(cudaStream_t stream)
{
    cudaStream_t s;
    unsigned long position;
    {
        locked lock;
        s = resolve(stream);
        if (!s)
            return misuse(cudaErrorInvalidResourceHandle, "cudaStreamSynchronize", "not a stream");
        position = s->enqueued;
    }
    wait_for(s, position);
    return result(cudaSuccess);
}

void synchronize_device(int device)
{
    std::vector<std::pair<cudaStream_t, unsigned long>> upto;
    {
        locked lock;
        for (cudaStream_t s : all().streams) {
            if (s->device == device)
                upto.push_back({s, s->enqueued});
        }
        if (cudaStream_t s = all().legacy.count(device) ? all().legacy[device] : nullptr)
            upto.push_back({s, s->enqueued});
    }
    for (auto &u : upto)
        wait_for(u.first, u.second);
}

} // namespace cusim

using namespace cusim;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    CUSIM_ENTER(cudaStreamCreate, cudaErrorMemoryAllocation);
    if (flags != cudaStreamNonBlocking)
        return refuse("a stream without cudaStreamNonBlocking (flags %#x)", flags);
    cudaStream_t s = new_stream(current_device(), priority);
    if (!s)
        return result(cudaErrorMemoryAllocation);
    locked lock;
    s->id = all().next_id++;
    all().streams.insert(s);
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority)
{
    CUSIM_ENTER(cudaStreamGetPriority, cudaErrorInvalidValue);
    if (stream_device(s) < 0 || !s)
        return result(cudaErrorInvalidResourceHandle);
    *priority = s->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    {
        locked lock;
        if (!all().streams.erase(s))
            return misuse(cudaErrorInvalidResourceHandle, "cudaStreamDestroy", "not a stream");
        s->quit = true;
        wake_all();
    }
    quiet q; /* CUDA promises no order here */
    pthread_join(s->thread, nullptr);
    delete s;
    return result(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    CUSIM_ENTER(cudaStreamSynchronize, cudaErrorLaunchFailure);
    return synchronize(s);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    CUSIM_ENTER(cudaStreamQuery, cudaErrorLaunchFailure);
    cudaStream_t s;
    {
        locked lock;
        s = resolve(handle);
        if (!s)
            return misuse(cudaErrorInvalidResourceHandle, "cudaStreamQuery", "not a stream");
        if (s->done < s->enqueued) {
            force(s);
            return result(cudaErrorNotReady);
        }
    }
    acquire(&s->tag);
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t s, int *device)
{
    CUSIM_ENTER(cudaStreamGetDevice, cudaErrorInvalidValue);
    *device = stream_device(s);
    return *device < 0 ? result(cudaErrorInvalidResourceHandle) : cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
    CUSIM_ENTER(cudaLaunchHostFunc, cudaErrorInvalidValue);
    return push(s, "cudaLaunchHostFunc", false, [fn, arg] {
        set_in_host_function(true);
        fn(arg);
        set_in_host_function(false);
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    CUSIM_ENTER(cudaEventCreate, cudaErrorMemoryAllocation);
    if (flags & ~(unsigned)(cudaEventDisableTiming | cudaEventBlockingSync))
        return refuse("cudaEventCreateWithFlags(%#x)", flags);
    locked lock;
    *out = new CUevent_st{flags, current_device(), nullptr};
    all().events.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    locked lock;
    if (!all().events.erase(e))
        return misuse(cudaErrorInvalidResourceHandle, "cudaEventDestroy", "not an event");
    delete e; /* what waits for its last record goes on waiting */
    return result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t handle)
{
    CUSIM_ENTER(cudaEventRecord, cudaErrorInvalidResourceHandle);
    std::shared_ptr<record> r;
    {
        locked lock;
        cudaStream_t s = resolve(handle);
        if (!s || !all().events.count(e))
            return misuse(cudaErrorInvalidResourceHandle, "cudaEventRecord",
                          "not an event, or not a stream");
        if (s->device != e->device)
            return misuse(cudaErrorInvalidResourceHandle, "cudaEventRecord",
                          "event and stream are of different devices");
        r = std::make_shared<record>(record{s, false, 0.0, 0});
        e->last = r;
    }
    return push(handle, "cudaEventRecord", false, [r] {
        release(&r->tag);
        locked lock;
        r->at = now();
        r->done = true;
        wake_all();
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    CUSIM_ENTER(cudaStreamWaitEvent, cudaErrorInvalidResourceHandle);
    if (flags != cudaEventWaitDefault)
        return refuse("cudaStreamWaitEvent(flags %#x)", flags);
    std::shared_ptr<record> r;
    {
        locked lock;
        if (!all().events.count(e))
            return misuse(cudaErrorInvalidResourceHandle, "cudaStreamWaitEvent", "not an event");
        r = e->last;
    }
    if (!r)
        return result(cudaSuccess); /* never recorded: nothing to wait for */
    return push(s, "cudaStreamWaitEvent", false, [r] { wait_for(r); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    CUSIM_ENTER(cudaEventSynchronize, cudaErrorLaunchFailure);
    std::shared_ptr<record> r;
    {
        locked lock;
        if (!all().events.count(e))
            return misuse(cudaErrorInvalidResourceHandle, "cudaEventSynchronize", "not an event");
        r = e->last;
    }
    if (r)
        wait_for(r);
    return result(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    CUSIM_ENTER(cudaEventQuery, cudaErrorLaunchFailure);
    std::shared_ptr<record> r;
    {
        locked lock;
        if (!all().events.count(e))
            return misuse(cudaErrorInvalidResourceHandle, "cudaEventQuery", "not an event");
        r = e->last;
        if (r && !r->done) {
            force(r->stream);
            return result(cudaErrorNotReady);
        }
    }
    if (r)
        acquire(&r->tag);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    CUSIM_ENTER(cudaEventElapsedTime, cudaErrorInvalidResourceHandle);
    locked lock;
    if (!all().events.count(start) || !all().events.count(end))
        return misuse(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime", "not an event");
    if (!start->last || !end->last || (start->flags | end->flags) & cudaEventDisableTiming)
        return misuse(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime",
                      "an event that was not recorded, or has no timing");
    if (!start->last->done || !end->last->done)
        return result(cudaErrorNotReady);
    *ms = (float)((end->last->at - start->last->at) * 1e3);
    return cudaSuccess;
}

} // extern "C"
