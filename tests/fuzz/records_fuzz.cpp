#include "tests/fuzz/records_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hebb::fuzz::records({reinterpret_cast<const char*>(data), size});
  return 0;
}
