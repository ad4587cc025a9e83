// The libFuzzer program of a target (CMakeLists.txt).
#include FUZZ_HEADER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hebb::fuzz::FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
