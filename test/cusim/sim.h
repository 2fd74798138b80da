/*
 * sim.h: what the parts of the simulator share: exec.cpp (kernels), the runtime (runtime.cpp, stream.cpp,
 * memory.cpp, launch.cpp), blaslt.cpp and nccl.cpp.
 *
 * ThreadSanitizer: none of these files is compiled with -fsanitize=thread. They say what CUDA promises
 * and nothing more: locks of the simulator are hidden (struct quiet), an order between threads is
 * declared with acquire() and release(), and a library function (a copy, a matmul, a collective)
 * announces the memory that it reads and writes. CUSIM_TSAN is defined where the rest of the library is
 * compiled with -fsanitize=thread.
 *
 * Environment (read once, at the first call)
 *   CUSIM_SCHED=eager | rand:SEED:US | slow:SEED:US | lazy
 *       When a stream carries out an operation: at once; after up to US microseconds; half the streams
 *       after US each time; only once somebody waits for it.
 *   CUSIM_SHUFFLE=SEED    warps and lanes of a kernel in random order, blocks from a random one on
 *   CUSIM_DEVICES=N       GPUs of this machine; default 1; 0: none; or a path: of a file with the number
 *   CUSIM_GONE=FILE       those of them whose numbers stand in it, a line each, are not found any more, and the
 *                         others are counted without them; their UUIDs stay (GPU-03... is number 3 of
 *                         CUSIM_DEVICES); no file: all are there
 *   CUSIM_BROKEN=FILE     cudaSetDevice() fails for these of them; no file: for none
 *   CUSIM_MIG=1           they are MIG instances (MIG-03...), of which a process sees one at most
 *   CUDA_VISIBLE_DEVICES  as the driver reads it
 *   CUSIM_MEMORY=BYTES    of each device, with suffix K, M, G; default 2G
 *   CUSIM_MAJOR=N         compute capability N.0; default 9
 *   CUSIM_SHARED=BYTES    of shared memory a block may ask for, with suffix K; default 227K, as sm_90 has; 99K: sm_86
 *   CUSIM_DRIVER=VERSION  of cudaDriverGetVersion(); below 13000: too old; 0: no driver
 *   CUSIM_FAIL=CALL:N[:CODE][,...]
 *       The Nth call of CALL in this process fails (with the error CODE, a number). CALL is the name of
 *       a function, or "op": the Nth operation of a stream fails while it runs, as a bad address would.
 *   CUSIM_GUARD=1         while no operation runs nobody can touch device memory: a host that does is
 *                         stopped with a line
 *   CUSIM_LEAKS=1         what is still allocated at exit is reported, and the exit status is 24
 */
#ifndef CUSIM_SIM_H
#define CUSIM_SIM_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include <functional>
#include <set>
#include <vector>

#if defined(CUSIM_TSAN)
extern "C" {
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
void __tsan_read_range(void *addr, unsigned long bytes);
void __tsan_write_range(void *addr, unsigned long bytes);
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
}
#endif

namespace cusim
{

/* ---- ThreadSanitizer ---- */

inline void acquire(const void *tag)
{
#if defined(CUSIM_TSAN)
    __tsan_acquire(const_cast<void *>(tag));
#else
    (void)tag;
#endif
}

inline void release(const void *tag)
{
#if defined(CUSIM_TSAN)
    __tsan_release(const_cast<void *>(tag));
#else
    (void)tag;
#endif
}

inline void tsan_reads(const void *p, size_t bytes)
{
#if defined(CUSIM_TSAN)
    if (bytes > 0)
        __tsan_read_range(const_cast<void *>(p), bytes);
#else
    (void)p, (void)bytes;
#endif
}

inline void tsan_writes(void *p, size_t bytes)
{
#if defined(CUSIM_TSAN)
    if (bytes > 0)
        __tsan_write_range(p, bytes);
#else
    (void)p, (void)bytes;
#endif
}

/*
 * While one exists, this thread's locks order nothing and its accesses are not looked at. Nor do
 * acquire() and release() order anything: they go outside.
 */
struct quiet {
    quiet()
    {
#if defined(CUSIM_TSAN)
        AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
    }
    ~quiet()
    {
#if defined(CUSIM_TSAN)
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
        AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
#endif
    }
    quiet(const quiet &) = delete;
};

/* The simulator's one lock, quiet while it is held. Short sections only. */
struct locked : quiet {
    locked();
    ~locked();
    /* Releases the lock until the state has changed somewhere. */
    void wait();
    /* The same; false after `us` microseconds. */
    bool wait_us(long us);
};

/* The state has changed. With the lock held. */
void wake_all();

/* ---- What is refused, and what is to fail ---- */

/* "cusim: WHAT is not modelled" on stderr; gives and records cudaErrorNotSupported. */
cudaError_t refuse(const char *what_format, ...) __attribute__((format(printf, 1, 2)));

/* A misuse that CUDA reports or leaves undefined: a line on stderr with `why`; gives and records `e`. */
cudaError_t misuse(cudaError_t e, const char *call, const char *why);

/* The thread's last error becomes e, unless that is a success. Gives e, or the sticky error. */
cudaError_t result(cudaError_t e);

/*
 * Is this the call of `name` that CUSIM_FAIL wants to fail? Gives the code that it named, or
 * `otherwise`; 0: no. Counts the call. Prints "cusim: NAME fails as CUSIM_FAIL asks".
 */
int planned_failure(const char *name, int otherwise);

/*
 * First in each function of the runtime: an error that the call gives at once (no driver, no device, a
 * failure that CUSIM_FAIL wants, a sticky error, a call from a host function), or cudaSuccess.
 */
cudaError_t enter(const char *call, cudaError_t if_planned);
#define CUSIM_ENTER(call, if_planned)                                                              \
    do {                                                                                           \
        if (cudaError_t e_ = cusim::enter(#call, if_planned))                                      \
            return e_;                                                                             \
    } while (0)

/* An asynchronous failure: from now on every call of the runtime gives e. */
void set_sticky(cudaError_t e);
cudaError_t sticky();

/* The calling thread runs, or no longer runs, a host function of a stream: it may make no call. */
void set_in_host_function(bool in);

/* ---- The environment ---- */

enum schedule { EAGER, RAND, SLOW, LAZY };

struct config {
    schedule sched;
    unsigned seed;
    long max_us;
    int n_devices, driver, major;
    size_t memory_bytes;
    size_t shared_bytes; /* a block may have, static and dynamic together */
    bool guard, leaks;
    std::vector<int> visible; /* (n_devices) which GPU of the machine each device is */
    std::set<int> broken;
};

const config &settings();

/* ---- Streams ---- */

/*
 * Puts a host function into the stream, to be run by the stream's thread. `what` is a string constant.
 * Blocks only in ways that CUDA does. cudaErrorInvalidResourceHandle: no such stream.
 */
cudaError_t enqueue(cudaStream_t stream, const char *what, std::function<void()> fn);

/* The device of a stream, -1 if there is no such stream. NULL: the calling thread's device. */
int stream_device(cudaStream_t stream);
int current_device();

/* Waits until all that the stream got before is done. */
cudaError_t synchronize(cudaStream_t stream);

/* Waits for all work of the device that was enqueued before. */
void synchronize_device(int device);

/* ---- Memory ---- */

enum place { OUTSIDE, DEVICE, PINNED };

/* Where p lies; in *left the bytes from there to the end of its allocation, in *device whose. */
place find_memory(const void *p, size_t *left, int *device);

/* Prints a line for each allocation that is left; gives their number. */
int report_memory_leaks();

/* Around each operation of a stream, for CUSIM_GUARD. */
void open_device_memory();
void close_device_memory();

/*
 * True: all `bytes` from p are memory that a kernel or library on `device` may use (its own, or pinned).
 * Otherwise prints a line that names `what`.
 */
bool device_can_use(int device, const void *p, size_t bytes, const char *what);

/* ---- Kernels (exec.cpp) ---- */

void run_kernel(const char *name, dim3 grid, dim3 block, size_t smem, void (*run)(void *),
                void *args);

} // namespace cusim

#endif
