// The functions of the CUDA runtime that core/cuda_device.cpp and kernels/gemm/cuda_gemm.cpp call, on the host.
#include "tests/cuda_host/fake_runtime.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/cuda_device.h"

FakeRuntime& fake_runtime() {
  static FakeRuntime runtime;
  return runtime;
}

namespace {

thread_local int current = 0;  // device

/// What calls that need a context do first.
void make_context() { fake_runtime().contexts.insert(current); }

template <class T> T handle() { return reinterpret_cast<T>(&fake_runtime()); }

template <class T> cudaError_t give(T* to, T value) {
  *to = value;
  return cudaSuccess;
}

/// Of calls that a recording forbids.
cudaError_t unless_capturing() {
  return fake_runtime().is_capturing ? cudaErrorStreamCaptureUnsupported : fake_runtime().fault;
}

}  // namespace

namespace hebb::fake_cuda {
const void* any_kernel() { return &fake_runtime(); }
}  // namespace hebb::fake_cuda

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    default: return "an error";
  }
}
cudaError_t cudaGetLastError() { return fake_runtime().fault; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake_runtime().devices;
  ++fake_runtime().questions;
  return fake_runtime().count_error;
}
cudaError_t cudaGetDevice(int* index) {
  ++fake_runtime().shared_calls;
  return give(index, current);
}
cudaError_t cudaSetDevice(int index) {
  current = index;
  make_context();  // since CUDA 12
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return give(version, fake_runtime().driver); }
cudaError_t cudaRuntimeGetVersion(int* version) { return give(version, fake_runtime().runtime); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  const FakeRuntime& r = fake_runtime();
  *value = which == cudaDevAttrComputeCapabilityMajor         ? r.major
           : which == cudaDevAttrComputeCapabilityMinor       ? r.minor
           : which == cudaDevAttrMaxSharedMemoryPerBlockOptin ? r.shared_bytes
                                                              : 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strncpy(properties->name, fake_runtime().name, sizeof(properties->name) - 1);
  properties->major = fake_runtime().major;
  properties->minor = fake_runtime().minor;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  make_context();
  *free = *total = size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  make_context();
  attributes->binaryVersion = fake_runtime().binary_version;
  attributes->ptxVersion = fake_runtime().ptx_version;
  attributes->sharedSizeBytes = static_cast<size_t>(fake_runtime().static_shared_bytes);
  return fake_runtime().kernel_error;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  make_context();
  ++fake_runtime().shared_calls;
  fake_runtime().shared_allowed[current] = bytes;
  return bytes + fake_runtime().static_shared_bytes > fake_runtime().shared_bytes ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  make_context();
  return give(stream, handle<cudaStream_t>());
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return unless_capturing(); }
cudaError_t cudaDeviceSynchronize() {
  make_context();
  return unless_capturing();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  make_context();
  return give(event, reinterpret_cast<cudaEvent_t>(new double(0)));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<double*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t, unsigned) {
  if (fake_runtime().clock_ms != nullptr) { *reinterpret_cast<double*>(event) = *fake_runtime().clock_ms; }
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return unless_capturing(); }
cudaError_t cudaEventQuery(cudaEvent_t) { return unless_capturing(); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  const double passed = *reinterpret_cast<double*>(end) - *reinterpret_cast<double*>(begin);
  *ms = fake_runtime().clock_ms != nullptr ? static_cast<float>(passed) : 1.0f;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  fake_runtime().is_capturing = true;
  if (fake_runtime().clock_ms != nullptr) { fake_runtime().captured_ms = *fake_runtime().clock_ms; }
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  fake_runtime().is_capturing = false;
  if (double* const now = fake_runtime().clock_ms; now != nullptr) {
    const double began = std::exchange(fake_runtime().captured_ms, *now - fake_runtime().captured_ms);
    *now = began;
  }
  return give(graph, handle<cudaGraph_t>());
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) {
  return give(graph, handle<cudaGraphExec_t>());
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
  if (fake_runtime().clock_ms != nullptr) { *fake_runtime().clock_ms += fake_runtime().captured_ms; }
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  make_context();
  *memory = nullptr;
  if (bytes > fake_runtime().memory_bytes) { return cudaErrorMemoryAllocation; }
  *memory = std::malloc(bytes);
  return unless_capturing();
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  make_context();
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) { return cudaMemset(to, value, bytes); }
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t) {
  for (size_t row = 0; row < height; ++row) { std::memset(static_cast<char*>(to) + row * pitch, value, width); }
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
