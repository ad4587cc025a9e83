#pragma once
// Deterministic, fast relatives of the libFuzzer programs (tests/fuzz).
#include <sstream>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/random.h"

namespace hebb {

/// Pieces that matter to a format, written with a space between them; random bytes alone rarely form them.
inline std::vector<std::string> pieces_of(const std::string& text) {
  std::vector<std::string> pieces;
  std::istringstream in(text);
  for (std::string piece; std::getline(in, piece, ' ');) { pieces.push_back(piece); }
  return pieces;
}

inline std::string mutate(std::string bytes, const std::vector<std::string>& pieces, Rng& rng) {
  for (uint32_t changes = 1 + rng.below(3); changes > 0; --changes) {
    const size_t at = rng.below(static_cast<uint32_t>(bytes.size() + 1));
    switch (rng.below(5)) {
      case 0: bytes.resize(at); break;
      case 1: bytes.insert(at, rng.choice(pieces)); break;
      case 2: bytes.erase(at, 1 + rng.below(9)); break;
      case 3:
        bytes.insert(at, bytes.substr(rng.below(static_cast<uint32_t>(bytes.size() + 1)), 1 + rng.below(20)));
        break;
      default:
        if (at < bytes.size()) { bytes[at] = static_cast<char>(bytes[at] ^ (1u << rng.below(8))); }
    }
  }
  return bytes;
}

/// Runs the target on prefixes of every seed (all of a short one) and on mutations; returns the first failure, or "".
template <class Target>
std::string first_failure(Target target, const std::vector<std::string>& seeds, const std::vector<std::string>& pieces,
                          int mutations) {
  const auto failure = [&](const std::string& input) -> std::string {
    try {
      target(input);
      return "";
    } catch (const std::exception& error) { return std::string(error.what()) + " for the input " + Json(input).dump(); }
  };
  for (size_t s = 0; s < seeds.size(); ++s) {
    for (size_t length = 0; length <= seeds[s].size(); length += 1 + seeds[s].size() / 500) {
      if (const std::string text = failure(seeds[s].substr(0, length)); !text.empty()) { return text; }
    }
    Rng rng(7, "mutated inputs", s);
    std::string bytes = seeds[s];
    for (int i = 0; i < mutations; ++i) {
      bytes = mutate(i % 8 == 0 ? seeds[s] : std::move(bytes), pieces, rng);
      if (const std::string text = failure(bytes); !text.empty()) { return text; }
    }
  }
  return "";
}

}  // namespace hebb
