#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hebb::fuzz::json({reinterpret_cast<const char*>(data), size});
  return 0;
}
