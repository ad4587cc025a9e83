#pragma once
// What a kernel sees in place of CUDA: thread indices, barriers, warp collectives, shared memory, atomics.
// Included by kernels/common/cuda/prelude.cuh only.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "host.h"
#include "sanitizer.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace simt {

constexpr unsigned kAllLanes = 0xffffffffu;

struct Index {
  unsigned x, y, z;
};

struct Frame;

/// What the running thread knows of itself; set by the scheduler before the thread continues.
struct Self {
  Index thread, block;
  dim3 threads, blocks;
  const Frame* entry = nullptr;  // of the function that called the kernel
};
extern thread_local Self* self __attribute__((tls_model("initial-exec")));

SIMT_NO_TSAN inline Index thread_index() { return self->thread; }
SIMT_NO_TSAN inline Index block_index() { return self->block; }
SIMT_NO_TSAN inline dim3 block_size() { return self->threads; }
SIMT_NO_TSAN inline dim3 grid_size() { return self->blocks; }

/// Stops the kernel with a message that names the running thread.
[[noreturn]] void fault(const std::string& what);

void sync_threads();
void sync_roles();  // a barrier at which threads may stand at different lines
void sync_warp(unsigned mask);

/// The primitive behind every warp operation. Each lane of `mask` brings its own `arguments` and waits; the last one to
/// arrive calls compute with those of all lanes (null for lanes outside the mask).
using Compute = void (*)(void* const* lanes);
void collective(unsigned mask, const char* name, void* arguments, Compute compute);

/// Shared memory: the dynamic part, and one static array per key, filled with 0xFF when the first thread asks for it.
unsigned char* dynamic_shared();
void* static_shared(const void* key, int64_t bytes, const char* name);
bool is_shared(const void* address, int64_t bytes);

/// cp.async: `bytes` to shared memory, of which the last bytes - from_bytes are zeros.
void copy_to_shared(void* to, const void* from, int bytes, int from_bytes);
void commit_copies();
void wait_copies(int groups_left);

template <class T, class Key> T* shared_static(Key, const char* name) {
  static char key;  // one per instantiation, as every call site passes a closure type of its own
  return static_cast<T*>(static_shared(&key, sizeof(T), name));
}

template <class T> struct Shuffle {
  T value;
  int from;  // lane
  T result;
  static void exchange(void* const* lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      if (lanes[lane] != nullptr) {
        auto& mine = *static_cast<Shuffle*>(lanes[lane]);
        // Reading a lane outside the mask is undefined in CUDA; all-ones makes the result useless.
        const void* other = lanes[mine.from];
        if (other != nullptr) {
          mine.result = static_cast<const Shuffle*>(other)->value;
        } else {
          std::memset(static_cast<void*>(&mine.result), 0xFF, sizeof(T));
        }
      }
    }
  }
};

inline int lane_index() {
  const Index t = thread_index();
  const dim3 n = block_size();
  return static_cast<int>((t.x + n.x * (t.y + n.y * t.z)) & 31u);
}

template <class T> T shuffle(unsigned mask, T value, int from, const char* name) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "shuffles move 4 or 8 bytes");
  Shuffle<T> arguments{value, from, value};
  collective(mask, name, &arguments, &Shuffle<T>::exchange);
  return arguments.result;
}

struct Vote {
  bool predicate;
  unsigned result;
  static void count(void* const* lanes) {
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (lanes[lane] != nullptr && static_cast<Vote*>(lanes[lane])->predicate) { ballot |= 1u << lane; }
    }
    for (int lane = 0; lane < 32; ++lane) {
      if (lanes[lane] != nullptr) { static_cast<Vote*>(lanes[lane])->result = ballot; }
    }
  }
};

inline unsigned vote(unsigned mask, bool predicate, const char* name) {
  Vote arguments{predicate, 0};
  collective(mask, name, &arguments, &Vote::count);
  return arguments.result;
}

struct Match {
  uint64_t value;
  unsigned result;
  static void compare(void* const* lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      if (lanes[lane] == nullptr) { continue; }
      auto& mine = *static_cast<Match*>(lanes[lane]);
      mine.result = 0;
      for (unsigned other = 0; other < 32; ++other) {
        if (lanes[other] != nullptr && static_cast<Match*>(lanes[other])->value == mine.value) {
          mine.result |= 1u << other;
        }
      }
    }
  }
};

}  // namespace simt

#define threadIdx (::simt::thread_index())
#define blockIdx (::simt::block_index())
#define blockDim (::simt::block_size())
#define gridDim (::simt::grid_size())

inline void __syncthreads() { simt::sync_threads(); }
inline void __syncwarp(unsigned mask = simt::kAllLanes) { simt::sync_warp(mask); }

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const int own = simt::lane_index();
  return simt::shuffle(mask, value, (own & ~(width - 1)) | (lane & (width - 1)), "__shfl_sync");
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int own = simt::lane_index();
  const int other = own ^ bits;
  return simt::shuffle(mask, value, (other & ~(width - 1)) == (own & ~(width - 1)) ? other : own, "__shfl_xor_sync");
}
template <class T> T __shfl_up_sync(unsigned mask, T value, int delta, int width = 32) {
  const int own = simt::lane_index();
  return simt::shuffle(mask, value, (own & (width - 1)) >= delta ? own - delta : own, "__shfl_up_sync");
}
template <class T> T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32) {
  const int own = simt::lane_index();
  return simt::shuffle(mask, value, (own & (width - 1)) + delta < width ? own + delta : own, "__shfl_down_sync");
}

inline unsigned __ballot_sync(unsigned mask, bool predicate) { return simt::vote(mask, predicate, "__ballot_sync"); }
inline bool __any_sync(unsigned mask, bool predicate) { return simt::vote(mask, predicate, "__any_sync") != 0; }
template <class T> unsigned __match_any_sync(unsigned mask, T value) {
  static_assert(std::is_integral_v<T>);
  simt::Match arguments{static_cast<uint64_t>(value), 0};
  simt::collective(mask, "__match_any_sync", &arguments, &simt::Match::compare);
  return arguments.result;
}

// Atomics on integers. There are none on floating-point numbers: their result would depend on the order of the threads.
template <class T>
concept AtomicInteger = std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;
template <AtomicInteger T> T atomicAdd(T* address, std::type_identity_t<T> value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
template <AtomicInteger T> T atomicOr(T* address, std::type_identity_t<T> value) {
  return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
template <AtomicInteger T> T atomicMax(T* address, std::type_identity_t<T> value) {
  T seen = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (seen < value &&
         !__atomic_compare_exchange_n(address, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return seen;
}

inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

#define HEBB_SHARED(T, name) \
  std::type_identity_t<T>& name = *::simt::shared_static<std::type_identity_t<T>>([] {}, #name)
#define HEBB_DYN_SHARED(name) unsigned char* name = ::simt::dynamic_shared()
