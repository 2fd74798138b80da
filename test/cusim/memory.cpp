/*
 * memory.cpp: device and pinned memory, copies. An allocation is filled with NaNs, ends at a page that
 * nobody may touch (and, for ASan, at its last byte), and the ranges are known: a copy whose direction
 * does not fit its pointers is an error. The host could read device memory here, which no GPU allows:
 * CUSIM_GUARD finds that.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "cusim/sim.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

using namespace cusim;

namespace
{

constexpr size_t GRANULE = 512; /* what cudaMalloc charges in */

struct allocation {
    size_t bytes;
    int device;
    place where;
    bool registered; /* by cudaHostRegister(): not ours */
};

struct registry {
    std::map<char *, allocation> ranges;
    std::map<int, size_t> used; /* of each device */
    int n_running = 0;          /* operations */
};

registry &all()
{
    static auto *r = new registry();
    return *r;
}

size_t page_bytes()
{
    static const size_t n = (size_t)sysconf(_SC_PAGESIZE);
    return n;
}

size_t whole_pages(size_t bytes)
{
    return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

size_t charged(size_t bytes)
{
    return (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* CUSIM_GUARD: the memory of all devices, at the first operation that begins or the last that ends. */
void protect_all(int protection)
{
    for (auto &r : all().ranges) {
        if (r.second.where == DEVICE)
            mprotect(r.first, whole_pages(r.second.bytes), protection);
    }
}

void stopped_by_guard(int signal, siginfo_t *info, void *)
{
    char *base = nullptr;
    const allocation *a = nullptr;
    for (auto &r : all().ranges) { /* without the lock: nothing goes on from here */
        if ((char *)info->si_addr >= r.first && (char *)info->si_addr < r.first + r.second.bytes) {
            base = r.first;
            a = &r.second;
        }
    }
    if (a && a->where == DEVICE)
        fprintf(stderr, "cusim: the host touches device memory: byte %zu of %zu, device %d\n",
                (size_t)((char *)info->si_addr - base), a->bytes, a->device);
    ::signal(signal, SIG_DFL); /* and it happens again */
}

void guard_begins()
{
    static bool begun;
    if (begun)
        return;
    begun = true;
    struct sigaction act = {};
    act.sa_sigaction = stopped_by_guard;
    act.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &act, nullptr);
}

/* With a guard page on both sides. */
char *map_memory(size_t bytes)
{
    const size_t inner = whole_pages(bytes), page = page_bytes();
    void *m = mmap(nullptr, inner + 2 * page, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED)
        return nullptr;
    char *p = (char *)m + page;
    if (mprotect(p, inner, PROT_READ | PROT_WRITE) != 0) {
        munmap(m, inner + 2 * page);
        return nullptr;
    }
    memset(p, 0xff, bytes);
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(p + bytes, inner - bytes);
#endif
    return p;
}

/*
 * The addresses of the last few stay without access: a stack or heap that were mapped there next would hide who still
 * uses them. Callers hold the lock.
 */
void unmap_memory(char *p, size_t bytes)
{
    static struct range {
        void *at;
        size_t bytes;
    } freed[256];
    static unsigned n_freed;
    const size_t inner = whole_pages(bytes), page = page_bytes();
    struct range now = {p - page, inner + 2 * page}, &slot = freed[n_freed++ % 256];
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(p, inner);
#endif
    if (mmap(now.at, now.bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
             -1, 0) == MAP_FAILED)
        abort();
    if (slot.at)
        munmap(slot.at, slot.bytes);
    slot = now;
}

cudaError_t allocate(void **out, size_t bytes, place where)
{
    *out = nullptr;
    if (bytes == 0)
        return result(cudaSuccess);
    locked lock;
    size_t &used = all().used[current_device()];
    if (where == DEVICE && used + charged(bytes) > settings().memory_bytes)
        return result(cudaErrorMemoryAllocation);
    char *p = map_memory(bytes);
    if (!p)
        return result(cudaErrorMemoryAllocation);
    if (where == DEVICE)
        used += charged(bytes);
    all().ranges[p] = {bytes, current_device(), where, false};
    if (settings().guard && where == DEVICE) {
        guard_begins();
        if (all().n_running == 0)
            mprotect(p, whole_pages(bytes), PROT_NONE);
    }
    *out = p;
    return cudaSuccess;
}

/* Work that is under way may still use the memory: like CUDA, waits for it. */
cudaError_t deallocate(void *p, place where, const char *call)
{
    if (!p)
        return result(cudaSuccess);
    int device;
    {
        locked lock;
        auto it = all().ranges.find((char *)p);
        if (it == all().ranges.end() || it->second.where != where || it->second.registered)
            return misuse(cudaErrorInvalidValue, call, "not the address of such an allocation");
        device = it->second.device;
    }
    synchronize_device(device);
    locked lock;
    auto it = all().ranges.find((char *)p);
    unmap_memory((char *)p, it->second.bytes);
    if (where == DEVICE)
        all().used[device] -= charged(it->second.bytes);
    all().ranges.erase(it);
    return result(cudaSuccess);
}

/* The allocation that holds p. With the lock held. */
const allocation *find_range(const void *p, char **base)
{
    auto it = all().ranges.upper_bound((char *)p);
    if (it == all().ranges.begin())
        return nullptr;
    --it;
    if ((char *)p >= it->first + it->second.bytes)
        return nullptr;
    *base = it->first;
    return &it->second;
}

/* Where a whole range lies. `ok` is false if it sticks out of its allocation. */
place whole_range(const void *p, size_t bytes, bool *ok)
{
    size_t left;
    int device;
    place where = find_memory(p, &left, &device);
    *ok = where == OUTSIDE || bytes <= left;
    return where;
}

struct copy {
    char *dst;
    const char *src;
    size_t dst_pitch, src_pitch, width, height;
};

size_t extent(size_t pitch, const copy &c)
{
    return c.height ? (c.height - 1) * pitch + c.width : 0;
}

void carry_out(const copy &c)
{
    for (size_t i = 0; i < c.height; i++)
        memmove(c.dst + i * c.dst_pitch, c.src + i * c.src_pitch, c.width);
}

/* Do the pointers fit the kind? *pageable: the side on the host is not pinned. */
bool fits(const copy &c, cudaMemcpyKind kind, bool *pageable_src, bool *pageable_dst)
{
    bool src_ok, dst_ok;
    place src = whole_range(c.src, extent(c.src_pitch, c), &src_ok);
    place dst = whole_range(c.dst, extent(c.dst_pitch, c), &dst_ok);
    *pageable_src = src == OUTSIDE;
    *pageable_dst = dst == OUTSIDE;
    if (!src_ok || !dst_ok)
        return false;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return src != DEVICE && dst == DEVICE;
    case cudaMemcpyDeviceToHost:
        return src == DEVICE && dst != DEVICE;
    case cudaMemcpyDeviceToDevice:
        return src == DEVICE && dst == DEVICE;
    default:
        return true; /* cudaMemcpyDefault: the pointers say it */
    }
}

/* Pageable memory is staged by the driver: a source is read before the call returns, a destination is
 * written before. */
cudaError_t copy_async(const char *call, const copy &c, cudaMemcpyKind kind, cudaStream_t stream)
{
    if (kind == cudaMemcpyHostToHost)
        return refuse("%s(cudaMemcpyHostToHost)", call);
    if (c.width == 0 || c.height == 0)
        return result(cudaSuccess);
    bool pageable_src, pageable_dst;
    if (!fits(c, kind, &pageable_src, &pageable_dst))
        return misuse(cudaErrorInvalidValue, call,
                      "a pointer is not where the kind says, or the range sticks out");
    if (pageable_src && pageable_dst)
        return refuse("%s() from host to host", call);
    if (pageable_src) {
        copy staged = c;
        auto *tmp = (char *)malloc(c.width * c.height);
        staged.dst = tmp;
        staged.dst_pitch = c.width;
        carry_out(staged);
        staged = c;
        staged.src = tmp;
        staged.src_pitch = c.width;
        return enqueue(stream, call, [staged, tmp] {
            carry_out(staged);
            quiet q;
            free(tmp);
        });
    }
    if (cudaError_t e = enqueue(stream, call, [c] { carry_out(c); }))
        return e;
    return pageable_dst ? synchronize(stream) : result(cudaSuccess);
}

} // namespace

namespace cusim
{

place find_memory(const void *p, size_t *left, int *device)
{
    locked lock;
    char *base;
    const allocation *a = find_range(p, &base);
    *left = a ? (size_t)(base + a->bytes - (char *)p) : 0;
    *device = a ? a->device : -1;
    return a ? a->where : OUTSIDE;
}

bool device_can_use(int device, const void *p, size_t bytes, const char *what)
{
    size_t left;
    int owner;
    if (bytes == 0)
        return true;
    place where = find_memory(p, &left, &owner);
    if (where == PINNED || (where == DEVICE && owner == device)) {
        if (bytes <= left)
            return true;
        fprintf(stderr, "cusim: %s: %zu bytes, but the allocation ends after %zu\n", what, bytes,
                left);
        return false;
    }
    fprintf(stderr, "cusim: %s: %p is %s\n", what, p,
            where == DEVICE ? "memory of another device" : "not memory of the device");
    return false;
}

void open_device_memory()
{
    if (!settings().guard)
        return;
    locked lock;
    if (all().n_running++ == 0)
        protect_all(PROT_READ | PROT_WRITE);
}

void close_device_memory()
{
    if (!settings().guard)
        return;
    locked lock;
    if (--all().n_running == 0)
        protect_all(PROT_NONE);
}

int report_memory_leaks()
{
    locked lock;
    int n = 0;
    for (auto &r : all().ranges) {
        const char *kind = r.second.registered        ? "registered"
                           : r.second.where == DEVICE ? "device"
                                                      : "pinned";
        fprintf(stderr, "cusim: leak: %zu bytes of %s memory, device %d\n", r.second.bytes, kind,
                r.second.device);
        n++;
    }
    return n;
}

} // namespace cusim

extern "C" {

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    CUSIM_ENTER(cudaMalloc, cudaErrorMemoryAllocation);
    return allocate(p, bytes, DEVICE);
}

cudaError_t cudaFree(void *p)
{
    return deallocate(p, DEVICE, "cudaFree");
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    CUSIM_ENTER(cudaHostAlloc, cudaErrorMemoryAllocation);
    if (flags &
        ~(unsigned)(cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined))
        return refuse("cudaHostAlloc(flags %#x)", flags);
    return allocate(p, bytes, PINNED);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return cudaHostAlloc(p, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *p)
{
    return deallocate(p, PINNED, "cudaFreeHost");
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    CUSIM_ENTER(cudaHostRegister, cudaErrorMemoryAllocation);
    if (flags & ~(unsigned)(cudaHostRegisterPortable | cudaHostRegisterMapped))
        return refuse("cudaHostRegister(flags %#x)", flags);
    if (!p || bytes == 0)
        return result(cudaErrorInvalidValue);
    locked lock;
    char *base;
    auto next = all().ranges.lower_bound((char *)p);
    if (find_range(p, &base) || (next != all().ranges.end() && next->first < (char *)p + bytes))
        return result(cudaErrorHostMemoryAlreadyRegistered);
    all().ranges[(char *)p] = {bytes, current_device(), PINNED, true};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    CUSIM_ENTER(cudaHostUnregister, cudaErrorInvalidValue);
    synchronize_device(current_device());
    locked lock;
    auto it = all().ranges.find((char *)p);
    if (it == all().ranges.end() || !it->second.registered)
        return result(cudaErrorHostMemoryNotRegistered);
    all().ranges.erase(it);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *p, unsigned flags)
{
    CUSIM_ENTER(cudaHostGetDevicePointer, cudaErrorInvalidValue);
    size_t left;
    int device;
    if (flags != 0 || find_memory(p, &left, &device) != PINNED)
        return misuse(cudaErrorInvalidValue, "cudaHostGetDevicePointer", "not pinned memory");
    *device_pointer = p;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    CUSIM_ENTER(cudaPointerGetAttributes, cudaErrorInvalidValue);
    size_t left;
    memset(a, 0, sizeof *a);
    place where = find_memory(p, &left, &a->device);
    a->type = where == DEVICE   ? cudaMemoryTypeDevice
              : where == PINNED ? cudaMemoryTypeHost
                                : cudaMemoryTypeUnregistered;
    a->devicePointer = where == OUTSIDE ? nullptr : (void *)p;
    a->hostPointer = where == DEVICE ? nullptr : (void *)p;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    CUSIM_ENTER(cudaMemGetInfo, cudaErrorInvalidValue);
    locked lock;
    *total = settings().memory_bytes;
    *free_bytes = *total - all().used[current_device()];
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    CUSIM_ENTER(cudaMemcpyAsync, cudaErrorInvalidValue);
    return copy_async("cudaMemcpyAsync", {(char *)dst, (const char *)src, bytes, bytes, bytes, 1},
                      kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    CUSIM_ENTER(cudaMemcpy2DAsync, cudaErrorInvalidValue);
    if (width > dst_pitch || width > src_pitch)
        return result(cudaErrorInvalidValue);
    return copy_async("cudaMemcpy2DAsync",
                      {(char *)dst, (const char *)src, dst_pitch, src_pitch, width, height}, kind,
                      stream);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    CUSIM_ENTER(cudaMemcpy, cudaErrorInvalidValue);
    cudaError_t e = copy_async(
        "cudaMemcpy", {(char *)dst, (const char *)src, bytes, bytes, bytes, 1}, kind, nullptr);
    return e ? e : synchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    CUSIM_ENTER(cudaMemsetAsync, cudaErrorInvalidValue);
    if (bytes == 0)
        return result(cudaSuccess);
    if (!device_can_use(stream_device(stream), dst, bytes, "cudaMemsetAsync"))
        return result(cudaErrorInvalidValue);
    return enqueue(stream, "cudaMemsetAsync", [=] { memset(dst, value, bytes); });
}

/* Unlike the copies, returns before it is done. */
cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    return cudaMemsetAsync(dst, value, bytes, nullptr);
}

} // extern "C"
