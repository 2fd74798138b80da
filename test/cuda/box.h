/*
 * box.h: what tests of kernels and of the runtime share: a stream, and memory on both sides.
 */
#ifndef ZT_TEST_CUDA_BOX_H
#define ZT_TEST_CUDA_BOX_H

#include "port.h"

#include "harness.h"

#define CU(call)                                                                                   \
    do {                                                                                           \
        cudaError_t zt_e_ = (call);                                                                \
        if (zt_e_ != cudaSuccess)                                                                  \
            FAIL("%s: %s", #call, cudaGetErrorName(zt_e_));                                        \
    } while (0)

/* A stream, and room for n elements on the device and in pinned memory (zeros). */
template <class T> struct box {
    cudaStream_t stream = NULL;
    T *host = NULL, *dev = NULL;
    int n;

    explicit box(int count) : n(count)
    {
        if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) ||
            cudaMalloc((void **)&dev, bytes()) || cudaMallocHost((void **)&host, bytes())) {
            fprintf(stderr, "box.h: no stream or no memory\n");
            abort();
        }
        memset((void *)host, 0, bytes());
    }
    ~box()
    {
        cudaStreamDestroy(stream);
        cudaFree(dev);
        cudaFreeHost(host);
    }
    box(const box &) = delete;

    size_t bytes() const
    {
        return sizeof(T) * (size_t)n;
    }
    cudaError_t upload()
    {
        return cudaMemcpyAsync(dev, host, bytes(), cudaMemcpyHostToDevice, stream);
    }
    /* Of all that the stream did; an error of a launch before comes out here. */
    cudaError_t download()
    {
        cudaError_t e = cudaGetLastError();
        if (!e)
            e = cudaMemcpyAsync(host, dev, bytes(), cudaMemcpyDeviceToHost, stream);
        return e ? e : cudaStreamSynchronize(stream);
    }
};

#endif
