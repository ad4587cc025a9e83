#pragma once
// What the fuzzers found worth keeping: inputs that reach different lines, as one file per target (a size in 4 bytes,
// then the input).
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "core/files.h"
#include "tests/paths.h"
#include "tests/test.h"

namespace hebb::fuzz {

/// Runs `target` on every input of tests/fuzz/corpus/NAME.bin. Returns the number of inputs.
template <class Target> int run_corpus(const std::string& name, Target target) {
  const std::string bytes = read_file(HEBB_TEST_DATA + "/fuzz/corpus/" + name + ".bin");
  std::string_view rest = bytes;
  int count = 0;
  for (; !rest.empty(); ++count) {
    uint32_t size = 0;
    REQUIRE(rest.size() >= sizeof size);
    std::memcpy(&size, rest.data(), sizeof size);
    REQUIRE(rest.size() - sizeof size >= size);
    INFO(name << ", input " << count);
    CHECK_NOTHROW(target(rest.substr(sizeof size, size)));
    rest.remove_prefix(sizeof size + size);
  }
  return count;
}

}  // namespace hebb::fuzz
