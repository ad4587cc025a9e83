#pragma once
// What the fuzzers found worth keeping: inputs that reach different lines, as one file per target (a size in 4 bytes,
// then the input).
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.h"
#include "tests/mutate.h"
#include "tests/paths.h"
#include "tests/test.h"

namespace hebb::fuzz {

/// The inputs of tests/fuzz/corpus/NAME.bin.
inline std::vector<std::string> corpus(const std::string& name) {
  const std::string bytes = read_file(HEBB_TEST_DATA + "/fuzz/corpus/" + name + ".bin");
  std::vector<std::string> inputs;
  for (std::string_view rest = bytes; !rest.empty();) {
    uint32_t size = 0;
    REQUIRE(rest.size() >= sizeof size);
    std::memcpy(&size, rest.data(), sizeof size);
    REQUIRE(rest.size() - sizeof size >= size);
    inputs.emplace_back(rest.substr(sizeof size, size));
    rest.remove_prefix(sizeof size + size);
  }
  return inputs;
}

/// Runs `target` on every kept input. Returns their number.
template <class Target> int run_corpus(const std::string& name, Target target) {
  int count = 0;
  for (const std::string& input : corpus(name)) {
    INFO(name << ", input " << count++);
    CHECK_NOTHROW(target(input));
  }
  return count;
}

/// Runs `target`, which returns whether it has read an input, on every kept input and on so many mutations of them;
/// returns the first failure, or "".
template <class Target> std::string mutated_corpus(const std::string& name, Target target, int mutations) {
  static const std::vector<std::string> pieces = pieces_of(
      "{ } [ ] \" , : null true -1 0 1e999 18446744073709551615 4294967296 \\u0000 .. / * ( ) ? [] {} \xFF "
      "\xEF\xBB\xBF");
  std::vector<std::string> inputs = corpus(name);
  Rng rng(11, name);
  const size_t kept = inputs.size();
  for (int i = 0; i < mutations; ++i) {
    inputs.push_back(mutate(inputs[rng.below(static_cast<uint32_t>(kept))], pieces, rng));
  }
  int read = 0;
  for (const std::string& input : inputs) {
    try {
      read += target(input) ? 1 : 0;
    } catch (const std::exception& error) {
      return name + ": " + error.what() + " for the input " + Json(input).dump();
    }
  }
  return read > 0 ? "" : name + ": no input is read";
}

}  // namespace hebb::fuzz
