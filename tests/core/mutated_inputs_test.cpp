// Deterministic, fast relatives of the libFuzzer programs: damaged inputs must be refused with the
// parser's own error class, whatever the damage.

#include "core/random.h"
#include "tests/fuzz/targets.h"
#include "tests/test.h"

using namespace hebb;

namespace {

using Target = void (*)(std::string_view);

/// Pieces that matter to the formats; random bytes alone rarely form them.
const std::vector<std::string> kPieces = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          "\"",
                                          ",",
                                          ":",
                                          "null",
                                          "true",
                                          "-1",
                                          "0",
                                          "1e999",
                                          "1e-400",
                                          "18446744073709551615",
                                          "9223372036854775808",
                                          "\\u0000",
                                          "\\ud800",
                                          "\xC3",
                                          "\xFF",
                                          std::string(1, '\0'),
                                          "\xEF\xBB\xBF",
                                          "[0,8]",
                                          "\"w\"",
                                          ".",
                                          "e",
                                          "a.0.b=3"};

std::string mutate(std::string bytes, Rng& rng) {
  const uint32_t changes = 1 + rng.below(3);
  for (uint32_t i = 0; i < changes; ++i) {
    const size_t at = rng.below(static_cast<uint32_t>(bytes.size() + 1));
    switch (rng.below(5)) {
      case 0: bytes.resize(at); break;
      case 1: bytes.insert(at, rng.choice(kPieces)); break;
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

/// Runs the target on every prefix of every seed and on mutations of them; returns the first failure.
std::string first_failure(Target target, const std::vector<std::string>& seeds, int mutations) {
  const auto failure = [&](const std::string& input) -> std::string {
    try {
      target(input);
      return "";
    } catch (const std::exception& error) { return std::string(error.what()) + " for the input " + Json(input).dump(); }
  };
  for (size_t s = 0; s < seeds.size(); ++s) {
    for (size_t length = 0; length <= seeds[s].size(); ++length) {
      if (const std::string text = failure(seeds[s].substr(0, length)); !text.empty()) { return text; }
    }
    Rng rng(7, "mutated inputs", s);
    std::string bytes = seeds[s];
    for (int i = 0; i < mutations; ++i) {
      bytes = i % 8 == 0 ? seeds[s] : mutate(std::move(bytes), rng);
      if (const std::string text = failure(bytes); !text.empty()) { return text; }
    }
  }
  return "";
}

const std::string kFullConfig = R"({"seed": 12, "rate": 0.25, "limit": -1e0, "sizes": [1, 2.0], "paths": ["a/b", ""],
 "part": {"count": 3}, "maybe": {"count": 4, "name": "zzz"}, "parts": [{"count": 1}], "named": {"p": {"count": 7}}, "rest": [null, {}]})";

}  // namespace

TEST_CASE("damaged JSON is refused and accepted JSON survives a round trip", "[fast]") {
  const std::vector<std::string> seeds = {
      R"({"a": [1, -2.5e-3, true, false, null], "b": {"c": "x\"\\\n\u00e9\ud83d\ude00"}, "d": 18446744073709551615})",
      "[[[[]]], {\"\": {}}, \"\xC3\xA9\", 0.1, 1E400]", "  -0.0  "};
  CHECK(first_failure(fuzz::json, seeds, 4000) == "");
}

TEST_CASE("damaged configurations are refused and accepted ones survive a round trip", "[fast]") {
  const std::string nul(1, '\0');
  const std::string over = R"({"seed": null, "part": {"count": 9}, "rest": {"x": null}})";
  CHECK(first_failure(
            fuzz::config,
            {kFullConfig, kFullConfig + nul + over + nul + "part.count=8", "{}" + nul + "{}" + nul + "named.q.count=2"},
            3000) == "");
}

TEST_CASE("damaged safetensors files are refused", "[fast]") {
  const std::string header =
      R"({"__metadata__":{"k":"v"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})";
  const std::string data = "abcdefghij";
  const uint64_t length = header.size();
  const std::string raw = std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
  CHECK(first_failure(fuzz::safetensors, {header + "\n" + data, raw}, 3000) == "");
}

TEST_CASE("the targets of damaged inputs accept what is valid and notice broken properties", "[fast]") {
  fuzz::Config value;
  CHECK_NOTHROW(Fields::read(parse_json(kFullConfig, "c.json"), "", value));
  CHECK(value.named.size() == 1);
  CHECK(first_failure([](std::string_view text) { fuzz::expect(text.size() < 3, "short"); }, {"abcd"}, 0) ==
        "short for the input \"abc\"");
}
