#pragma once
// Part of prelude.cuh: global memory in 16-byte accesses (8 for four bf16), with scalars where rows or ends do not
// allow them.
#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "core/tensor.h"

namespace hebb::HEBB_DEVICE {

/// What one access moves: 4 words, 2 or 1.
template <int kWords> struct alignas(4 * kWords) Words { uint32_t word[kWords]; };

using Word4 = Words<4>;

/// Elements of T in one 16-byte access.
template <class T> constexpr int kPack = static_cast<int>(16 / sizeof(T));

/// Words of one access to a part of N elements of T.
template <int N, class T> constexpr int kWords = N * sizeof(T) == 8 ? 2 : 4;

template <int kWords> __device__ __forceinline__ Words<kWords> load_words(const void* from) {
#ifdef HEBB_SIMT
  if (reinterpret_cast<uintptr_t>(from) % sizeof(Words<kWords>) != 0) {
    const std::string bytes = std::to_string(sizeof(Words<kWords>));
    ::simt::fault(bytes + "-byte load from an address that is not a multiple of " + bytes);
  }
  Words<kWords> value;
  std::memcpy(&value, from, sizeof value);
  return value;
#else
  return *static_cast<const Words<kWords>*>(from);
#endif
}

template <int kWords> __device__ __forceinline__ void store_words(void* to, const Words<kWords>& value) {
#ifdef HEBB_SIMT
  if (reinterpret_cast<uintptr_t>(to) % sizeof value != 0) {
    const std::string bytes = std::to_string(sizeof value);
    ::simt::fault(bytes + "-byte store to an address that is not a multiple of " + bytes);
  }
  std::memcpy(to, &value, sizeof value);
#else
  *static_cast<Words<kWords>*>(to) = value;
#endif
}

__device__ __forceinline__ Word4 load_16_bytes(const void* from) { return load_words<4>(from); }
__device__ __forceinline__ void store_16_bytes(void* to, const Word4& value) { store_words(to, value); }

/// The same to global memory. The compiler splits a copy of the struct into four 4-byte stores where its parts come
/// from separate registers; this is one store in any case.
__device__ __forceinline__ void store_16_bytes_global(void* to, const Word4& value) {
#ifdef HEBB_SIMT
  store_words(to, value);
#else
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(value.word[0]),
               "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
               : "memory");
#endif
}

/// Asks for the 128-byte line of an address in L2. A hint: what is read there later does not depend on it.
__device__ __forceinline__ void prefetch_line([[maybe_unused]] const void* global) {
#ifndef HEBB_SIMT
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
#endif
}

/// A pack lies before the end of its row or behind it: what `vector` says to the functions below.
template <int N>
__device__ __forceinline__ void check_whole([[maybe_unused]] int64_t at, [[maybe_unused]] int64_t end) {
#ifdef HEBB_SIMT
  if (at < end && at + N > end) { ::simt::fault("a pack reaches over the end of its row"); }
#endif
}

/// out[j] = row[at + j] for at + j < end, else 0. `vector`: at and end are multiples of N, N of kPack<T> (or four
/// bf16), and row is 16-byte aligned. A constant `vector` lets the loads of several packs be under way together: the
/// load alone is predicated, and what reads it stands behind. Parts of less than 8 bytes are always read one by one.
template <int N, class T>
__device__ __forceinline__ void load_pack(float (&out)[N], const T* row, int64_t at, int64_t end, bool vector) {
  constexpr int kPart = kWords<N, T> * 4 / static_cast<int>(sizeof(T));
  if (N >= kPart && vector) {
    check_whole<N>(at, end);
    Words<kWords<N, T>> bits[(N + kPart - 1) / kPart] = {};
    if (at < end) {
      HEBB_UNROLL
      for (int i = 0; i < N / kPart; ++i) { bits[i] = load_words<kWords<N, T>>(row + at + i * kPart); }
    }
    HEBB_UNROLL
    for (int i = 0; i < N / kPart; ++i) {
      HEBB_UNROLL
      for (int j = 0; j < kWords<N, T>; ++j) {
        if constexpr (sizeof(T) == 2) {
          out[i * kPart + 2 * j] = __uint_as_float(bits[i].word[j] << 16);
          out[i * kPart + 2 * j + 1] = __uint_as_float(bits[i].word[j] & 0xFFFF0000u);
        } else {
          out[i * kPart + j] = __uint_as_float(bits[i].word[j]);
        }
      }
    }
  } else {
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { out[j] = at + j < end ? to_float(row[at + j]) : 0.0f; }
  }
}

/// row[at + j] = value[j] for at + j < end; conditions as for load_pack.
template <int N, class T>
__device__ __forceinline__ void store_pack(T* row, int64_t at, int64_t end, bool vector, const float (&value)[N]) {
  constexpr int kPart = kWords<N, T> * 4 / static_cast<int>(sizeof(T));
  if (N >= kPart && vector) {
    check_whole<N>(at, end);
    if (at >= end) { return; }
    HEBB_UNROLL
    for (int i = 0; i < N; i += kPart) {
      Words<kWords<N, T>> bits;
      HEBB_UNROLL
      for (int j = 0; j < kWords<N, T>; ++j) {
        if constexpr (sizeof(T) == 2) {
          bits.word[j] = pack_bf16(value[i + 2 * j], value[i + 2 * j + 1]);
        } else {
          bits.word[j] = __float_as_uint(value[i + j]);
        }
      }
      store_words(row + at + i, bits);
    }
  } else {
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      if (at + j < end) { row[at + j] = from_float<T>(value[j]); }
    }
  }
}

/// store_pack, or with `accumulate` row[at + j] += value[j].
template <int N, class T>
__device__ __forceinline__ void write_pack(T* row, int64_t at, int64_t end, bool vector, float (&value)[N],
                                           bool accumulate) {
  if (accumulate) {
    float old[N];
    load_pack(old, row, at, end, vector);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { value[j] += old[j]; }
  }
  store_pack(row, at, end, vector, value);
}

/// f(first element) for the packs of N elements that a lane has of a row of `size` elements, which `lanes` lanes share.
template <int N, class F> __device__ __forceinline__ void each_pack(int64_t size, int lanes, int lane, F&& f) {
  for (int64_t at = lane * N; at < size; at += lanes * N) { f(at); }
}

/// Whether 16-byte accesses are possible: rows of `width` elements in packs of N, all at aligned addresses (null is
/// fine).
template <int N, class... Pointers> bool can_vectorise(int64_t width, Pointers... pointers) {
  return width % N == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Calls f(flag as a constant).
template <class F> void dispatch_flag(bool flag, F&& f) {
  if (flag) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

/// Calls f(the first of the numbers that is not less than `least`, or the last, as a constant).
template <int kNumber, int... kMore, class F> void dispatch_number(int64_t least, F&& f) {
  if constexpr (sizeof...(kMore) > 0) {
    if (least > kNumber) { return dispatch_number<kMore...>(least, f); }
  }
  f(std::integral_constant<int, kNumber>{});
}

/// Calls f(N as a constant), N the elements of a pack where rows of `width` elements of T at these addresses can be
/// accessed in packs, else 1. A kernel of either kind takes `N > 1` for the `vector` of load_pack.
template <class T, class F> void dispatch_pack(int64_t width, std::initializer_list<const void*> pointers, F&& f) {
  if (std::ranges::all_of(pointers, [&](const void* p) { return can_vectorise<kPack<T>>(width, p); })) {
    f(std::integral_constant<int, kPack<T>>{});
  } else {
    f(std::integral_constant<int, 1>{});
  }
}

}  // namespace hebb::HEBB_DEVICE
