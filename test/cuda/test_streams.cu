/*
 * test_streams.cu: what the simulator assumes of streams, events, memory and copies; holds on hardware too.
 */
#include "box.h"

/* Takes a while: so that what does not wait for it comes first. */
__global__ void slowly_add(int *p, int n, int v)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += ((volatile int *)p)[0] + 1;
    p[0] += v + (sum == -1);
}
ZT_SIM_REGISTER(slowly_add)

__global__ void add(int *p, int v)
{
    p[0] += v;
}
ZT_SIM_REGISTER(add)

__global__ void multiply(int *p, int v)
{
    p[0] *= v;
}
ZT_SIM_REGISTER(multiply)

TEST(a_stream_keeps_its_order)
{
    box<int> x(1);
    CU(x.upload());
    for (int i = 0; i < 20; i++) {
        ZT_LAUNCH(add, 1, 1, 0, x.stream, x.dev, 1);
        ZT_LAUNCH(multiply, 1, 1, 0, x.stream, x.dev, i % 4 == 3 ? 0 : 2);
    }
    ZT_LAUNCH(add, 1, 1, 0, x.stream, x.dev, 7);
    CU(x.download());
    CHECK_INT(x.host[0], 7);
}

TEST(an_event_orders_two_streams)
{
    box<int> x(1), y(1);
    cudaEvent_t done;
    CU(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    CU(x.upload());
    for (int i = 0; i < 10; i++) {
        ZT_LAUNCH(slowly_add, 1, 1, 0, x.stream, x.dev, 2000, 1);
        CU(cudaEventRecord(done, x.stream));
        CU(cudaStreamWaitEvent(y.stream, done, 0));
        ZT_LAUNCH(multiply, 1, 1, 0, y.stream, x.dev, 2);
        CU(cudaEventRecord(done, y.stream)); /* the wait before keeps to its own record */
        CU(cudaStreamWaitEvent(x.stream, done, 0));
    }
    CU(x.download());
    CHECK_INT(x.host[0], 2046);
    CU(cudaEventDestroy(done));
}

TEST(an_event_that_was_never_recorded_is_complete)
{
    box<int> x(1);
    cudaEvent_t e;
    CU(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    CU(cudaStreamWaitEvent(x.stream, e, 0));
    CU(cudaEventSynchronize(e));
    CU(cudaEventQuery(e));
    CU(cudaStreamSynchronize(x.stream));
    CU(cudaEventDestroy(e));
}

TEST(a_query_says_when_the_work_is_done)
{
    box<int> x(1);
    cudaEvent_t e;
    CU(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    CU(x.upload());
    ZT_LAUNCH(slowly_add, 1, 1, 0, x.stream, x.dev, 10000, 5);
    CU(cudaMemcpyAsync(x.host, x.dev, x.bytes(), cudaMemcpyDeviceToHost, x.stream));
    CU(cudaEventRecord(e, x.stream));
    cudaError_t rc;
    while ((rc = cudaEventQuery(e)) == cudaErrorNotReady)
        cudaGetLastError(); /* it counts as one */
    CU(rc);
    CHECK_INT(x.host[0], 5);
    while ((rc = cudaStreamQuery(x.stream)) == cudaErrorNotReady)
        cudaGetLastError();
    CU(rc);
    CU(cudaEventDestroy(e));
}

TEST(time_between_two_events)
{
    box<int> x(1);
    cudaEvent_t begin, end;
    float ms = -1;
    CU(cudaEventCreate(&begin));
    CU(cudaEventCreate(&end));
    CU(x.upload());
    CU(cudaEventRecord(begin, x.stream));
    ZT_LAUNCH(slowly_add, 1, 1, 0, x.stream, x.dev, 10000, 1);
    CU(cudaEventRecord(end, x.stream));
    CU(cudaEventSynchronize(end));
    CU(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms > 0 && ms < 10000);
    CU(cudaEventDestroy(begin));
    CU(cudaEventDestroy(end));
}

static void append(void *list)
{
    int *l = (int *)list, n = ++l[0];
    l[n] = n;
}

TEST(host_functions_run_in_stream_order)
{
    box<int> x(1);
    static int list[8];
    memset(list, 0, sizeof list);
    for (int i = 0; i < 5; i++) {
        ZT_LAUNCH(slowly_add, 1, 1, 0, x.stream, x.dev, 100, 1);
        CU(cudaLaunchHostFunc(x.stream, append, list));
    }
    CU(cudaStreamSynchronize(x.stream));
    CHECK_INT(list[0], 5);
    for (int i = 1; i <= 5; i++)
        CHECK_INT(list[i], i);
}

/* The source of a copy to the device is free again when the call returns, the destination of one to the
 * host is complete, even on a stream with work before it: the memory is not pinned. */
TEST(copies_of_pageable_memory)
{
    box<int> x(1);
    int a = 3, b = 0;
    ZT_LAUNCH(slowly_add, 1, 1, 0, x.stream, x.dev, 10000, 1);
    CU(cudaMemcpyAsync(x.dev, &a, sizeof a, cudaMemcpyHostToDevice, x.stream));
    a = 99;
    ZT_LAUNCH(slowly_add, 1, 1, 0, x.stream, x.dev, 10000, 4);
    CU(cudaMemcpyAsync(&b, x.dev, sizeof b, cudaMemcpyDeviceToHost, x.stream));
    CHECK_INT(b, 7);
}

TEST(pitched_copies)
{
    box<int> x(6 * 8);
    int rows[6 * 4];
    for (int i = 0; i < x.n; i++)
        x.host[i] = i;
    CU(x.upload());
    CU(cudaMemcpy2DAsync(rows, 16, x.dev + 2, 32, 16, 6, cudaMemcpyDeviceToHost, x.stream));
    CU(cudaStreamSynchronize(x.stream));
    for (int i = 0; i < 24; i++)
        CHECK_INT(rows[i], i / 4 * 8 + 2 + i % 4);
}

/* Kernels read and write pinned memory at its address; registered memory is pinned. */
TEST(pinned_memory_is_mapped)
{
    box<int> x(1);
    static int page[1024] __attribute__((aligned(4096)));
    int *mapped;
    CU(cudaHostGetDevicePointer((void **)&mapped, x.host, 0));
    CHECK(mapped == x.host);
    x.host[0] = 5;
    ZT_LAUNCH(multiply, 1, 1, 0, x.stream, mapped, 3);
    CU(cudaStreamSynchronize(x.stream));
    CHECK_INT(x.host[0], 15);

    CHECK_INT(cudaHostUnregister(page), cudaErrorHostMemoryNotRegistered);
    cudaGetLastError();
    CU(cudaHostRegister(page, sizeof page, cudaHostRegisterDefault));
    CHECK_INT(cudaHostRegister(page, sizeof page, cudaHostRegisterDefault),
              cudaErrorHostMemoryAlreadyRegistered);
    cudaGetLastError();
    page[7] = 6;
    CU(cudaMemcpyAsync(x.dev, page + 7, sizeof(int), cudaMemcpyHostToDevice, x.stream));
    CU(cudaStreamSynchronize(x.stream));
    CU(cudaHostUnregister(page));
    CU(x.download());
    CHECK_INT(x.host[0], 6);
}

TEST(memory_is_counted_and_aligned)
{
    size_t before, total, after;
    void *p;
    CU(cudaFree(NULL)); /* makes the context, which takes memory */
    CU(cudaMemGetInfo(&before, &total));
    CU(cudaMalloc(&p, 64 << 20));
    CU(cudaMemGetInfo(&after, &total));
    CHECK_INT((uintptr_t)p % 256, 0);
    CHECK(after + (64 << 20) <= before);
    CHECK(before <= total);
    CU(cudaFree(p));
    CHECK_INT(cudaMalloc(&p, total + 1), cudaErrorMemoryAllocation);
    CHECK_INT(cudaGetLastError(), cudaErrorMemoryAllocation);
    CHECK_INT(cudaGetLastError(), cudaSuccess);
}

TEST(what_copies_and_handles_refuse)
{
    box<int> x(4);
    int here = 0;
    CHECK_INT(cudaMemcpyAsync(&here, x.dev, 4, cudaMemcpyHostToDevice, x.stream),
              cudaErrorInvalidValue);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK_INT(cudaFree((char *)x.dev + 4), cudaErrorInvalidValue);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidValue);
    int n = 0;
    CU(cudaGetDeviceCount(&n));
    CHECK_INT(cudaSetDevice(n), cudaErrorInvalidDevice);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST_MAIN()
