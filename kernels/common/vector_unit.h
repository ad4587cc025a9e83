#pragma once

namespace hebb {

/// The vectors that the CPU kernels are compiled for: "AVX-512", "AVX2", "NEON" or "baseline". Where a program holds
/// kernels for several processors (cmake/processors.cmake) it is that of the ones loaded.
const char* vector_unit();

}  // namespace hebb
