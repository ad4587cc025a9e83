#pragma once
// Part of prelude.h: global memory in 16-byte accesses, with scalars where rows or ends do not allow them.
#include "core/tensor.h"

namespace hebb::HEBB_DEVICE {

struct alignas(16) Word4 {
  uint32_t word[4];
};

/// Elements of T in one 16-byte access.
template <class T>
constexpr int kPack = static_cast<int>(16 / sizeof(T));

__device__ __forceinline__ Word4 load_16_bytes(const void* from HEBB_WHERE_PARAMETER) {
#ifdef HEBB_SIMT
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    ::simt::fault("16-byte load from an address that is not a multiple of 16", where);
  }
  Word4 value;
  std::memcpy(&value, from, 16);
  return value;
#else
  return *static_cast<const Word4*>(from);
#endif
}

__device__ __forceinline__ void store_16_bytes(void* to, const Word4& value HEBB_WHERE_PARAMETER) {
#ifdef HEBB_SIMT
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0) {
    ::simt::fault("16-byte store to an address that is not a multiple of 16", where);
  }
  std::memcpy(to, &value, 16);
#else
  *static_cast<Word4*>(to) = value;
#endif
}

/// out[j] = row[at + j] for at + j < end, else 0. `vector`: at is a multiple of N, N of kPack<T>, and row is 16-byte aligned.
template <int N, class T>
__device__ __forceinline__ void load_pack(float (&out)[N], const T* row, int64_t at, int64_t end, bool vector HEBB_WHERE_PARAMETER) {
  if (vector && at + N <= end) {
    HEBB_UNROLL
    for (int i = 0; i < N; i += kPack<T>) {
      const Word4 bits = load_16_bytes(row + at + i HEBB_WHERE_ARGUMENT);
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        if constexpr (sizeof(T) == 2) {
          out[i + 2 * j] = __uint_as_float(bits.word[j] << 16);
          out[i + 2 * j + 1] = __uint_as_float(bits.word[j] & 0xFFFF0000u);
        } else {
          out[i + j] = __uint_as_float(bits.word[j]);
        }
      }
    }
  } else {
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      out[j] = at + j < end ? to_float(row[at + j]) : 0.0f;
    }
  }
}

/// row[at + j] = value[j] for at + j < end; conditions as for load_pack.
template <int N, class T>
__device__ __forceinline__ void store_pack(T* row, int64_t at, int64_t end, bool vector, const float (&value)[N] HEBB_WHERE_PARAMETER) {
  if (vector && at + N <= end) {
    HEBB_UNROLL
    for (int i = 0; i < N; i += kPack<T>) {
      Word4 bits;
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        if constexpr (sizeof(T) == 2) {
          bits.word[j] = pack_bf16(value[i + 2 * j], value[i + 2 * j + 1]);
        } else {
          bits.word[j] = __float_as_uint(value[i + j]);
        }
      }
      store_16_bytes(row + at + i, bits HEBB_WHERE_ARGUMENT);
    }
  } else {
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      if (at + j < end) {
        row[at + j] = from_float<T>(value[j]);
      }
    }
  }
}

/// Whether 16-byte accesses are possible: rows of `width` elements in packs of N, all at aligned addresses (null is fine).
template <int N, class... Pointers>
bool can_vectorise(int64_t width, Pointers... pointers) {
  return width % N == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace hebb::HEBB_DEVICE
