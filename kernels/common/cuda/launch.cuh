#pragma once
// Part of prelude.cuh: the one place where kernels are launched, and the choice of a kernel's element types.
#include <tuple>

#include "core/error.h"
#include "core/stream.h"

namespace hebb::HEBB_DEVICE {

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 blocks, dim3 threads, int64_t shared_bytes,
            Stream& stream, Arguments&&... arguments) {
#ifdef HEBB_SIMT
  ::simt::launch(name, kernel, blocks, threads, shared_bytes, static_cast<::simt::Stream*>(native_stream(stream)),
                 arguments...);
#else
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "kernel parameters are copied as bytes");

  const void* function = reinterpret_cast<const void*>(kernel);
  if (shared_bytes >
      0) {  // what a block may have without asking includes its static shared memory, whose size is not known here
    allow_shared_bytes(function, shared_bytes);
  }
  std::tuple<Parameters...> parameters(static_cast<Parameters>(arguments)...);
  const cudaError_t error = std::apply(
      [&](Parameters&... parameter) {
        void* addresses[] = {&parameter...};
        return cudaLaunchKernel(function, blocks, threads, addresses, static_cast<size_t>(shared_bytes),
                                static_cast<cudaStream_t>(native_stream(stream)));
      },
      parameters);
  check_launch(static_cast<int>(error), name);
#endif
}

/// Blocks of `threads` that cover `items`; a grid's first dimension holds 2^31 - 1.
inline unsigned blocks_for(int64_t items, int64_t threads) {
  const int64_t blocks = (items + threads - 1) / threads;
  HEBB_ASSERT(blocks > 0 && blocks < (int64_t{1} << 31));
  return static_cast<unsigned>(blocks);
}

/// Calls f with a value of the dtype's type: float or bf16. Double exists on the CPU only.
template <class F> void dispatch_float(DType dtype, F&& f) {
  if (dtype == DType::f32) {
    f(float{});
  } else {
    HEBB_ASSERT(dtype == DType::bf16);
    f(bf16{});
  }
}

}  // namespace hebb::HEBB_DEVICE
