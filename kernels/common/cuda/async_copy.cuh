#pragma once
// Copies from global to shared memory that go on while the thread computes (cp.async). A thread sees its own copies
// after a wait, those of other threads after a barrier behind that wait.
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// 16 bytes; both addresses multiples of 16. The last 16 - from_bytes bytes are zeros and are not read.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, int from_bytes) {
#ifdef HEBB_SIMT
  ::simt::copy_to_shared(shared, global, 16, from_bytes);
#else
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(from_bytes)
      : "memory");
#endif
}

/// 4 bytes, for rows that are not 16-byte aligned; both addresses multiples of 4. from_bytes is 4, or 0 for zeros.
__device__ __forceinline__ void copy_async_4(void* shared, const void* global, int from_bytes) {
#ifdef HEBB_SIMT
  ::simt::copy_to_shared(shared, global, 4, from_bytes);
#else
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(from_bytes)
      : "memory");
#endif
}

/// Ends a group: the calling thread's copies since the last commit.
__device__ __forceinline__ void commit_async_copies() {
#ifdef HEBB_SIMT
  ::simt::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits until at most kGroupsLeft of the newest groups are unfinished.
template <int kGroupsLeft> __device__ __forceinline__ void wait_async_copies() {
#ifdef HEBB_SIMT
  ::simt::wait_copies(kGroupsLeft);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
#endif
}

}  // namespace hebb::HEBB_DEVICE
