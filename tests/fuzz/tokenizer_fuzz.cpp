#include "tests/fuzz/text_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hebb::fuzz::tokenizer({reinterpret_cast<const char*>(data), size});
  return 0;
}
