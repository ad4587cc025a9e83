#include "kernels/common/vector_unit.h"

#include "kernels/common/cpu/vec.h"

namespace hebb {

const char* vector_unit() {
#if defined(HEBB_AVX512)
  return "AVX-512";
#elif defined(HEBB_AVX2)
  return "AVX2";
#elif defined(__ARM_NEON)
  return "NEON";
#else
  return "baseline";
#endif
}

}  // namespace hebb
