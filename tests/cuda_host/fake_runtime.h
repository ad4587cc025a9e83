#pragma once
#include <cuda_runtime_api.h>

#include <map>
#include <set>

/// What the stand-in for the CUDA runtime answers.
struct FakeRuntime {
  cudaError_t count_error = cudaSuccess;   // of the question how many devices there are
  cudaError_t kernel_error = cudaSuccess;  // of questions about kernels
  cudaError_t fault = cudaSuccess;         // of a kernel: waiting for the device reports it
  int driver = 12040, runtime = 13000;
  int major = 8, minor = 9;                   // compute capability
  int shared_bytes = 99 << 10;                // that a block may have
  int static_shared_bytes = 0;                // of every kernel
  int binary_version = 90, ptx_version = 90;  // of every kernel
  bool is_capturing = false;
  int devices = 1;
  std::set<int> contexts{};             // the devices that a call has made one on
  double captured_ms = 0;               // what a launch of the graph takes; until the capture ends: when it began
  int questions = 0;                    // how many devices there are
  std::map<int, int> shared_allowed{};  // that a kernel may ask for on a device, as set last [bytes]
  int shared_calls = 0;                 // that set it, or asked for the device of the thread
  const char* name = "a GPU";
  size_t memory_bytes = size_t{1} << 40;  // more at once is not there
  double* clock_ms = nullptr;             // of events; null: a millisecond lies between any two
};
FakeRuntime& fake_runtime();
