#pragma once
// The base of every CUDA source. nvcc compiles kernels for the device; any C++ compiler compiles the same text for the
// SIMT emulator (HEBB_SIMT, docs/emulator.md). The rules that keep kernels emulatable are on that page.
#include <cstdint>
#include <type_traits>

#include "core/cuda_device.h"

#ifdef HEBB_SIMT
#include "simt.h"
#define HEBB_UNROLL
#define HEBB_UNROLL_BY(turns)
#define HEBB_NOINLINE inline
#else
#define HEBB_PRAGMA(text) _Pragma(#text)
#define HEBB_UNROLL HEBB_PRAGMA(unroll)  // wholly
#define HEBB_UNROLL_BY(turns) HEBB_PRAGMA(unroll(turns))
#define HEBB_NOINLINE __noinline__ inline
#define HEBB_SHARED(T, name) __shared__ __align__(16)::std::type_identity_t<T> name
#define HEBB_DYN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

/// HEBB_LAUNCH(kernel, blocks, threads, shared bytes, Stream&, arguments...); a kernel with commas goes in parentheses.
#define HEBB_LAUNCH(kernel, blocks, threads, shared_bytes, stream, ...) \
  ::hebb::HEBB_DEVICE::launch(#kernel, kernel, blocks, threads, shared_bytes, stream, __VA_ARGS__)

#include "kernels/common/cuda/for_each_index.cuh"
#include "kernels/common/cuda/launch.cuh"
#include "kernels/common/cuda/math.cuh"
#include "kernels/common/cuda/reduce.cuh"
#include "kernels/common/cuda/vectors.cuh"
