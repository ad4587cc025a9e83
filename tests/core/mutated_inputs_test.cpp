// Damaged inputs must be refused with the parser's own error class, whatever the damage.
#include "tests/fuzz/targets.h"
#include "tests/mutate.h"
#include "tests/test.h"

namespace {

const std::vector<std::string> kPieces = pieces_of(
    "{ } [ ] \" , : null true -1 0 1e999 1e-400 18446744073709551615 9223372036854775808 \\u0000 \\ud800 \xC3 \xFF " +
    std::string(1, '\0') + " \xEF\xBB\xBF [0,8] \"w\" . e a.0.b=3");

const std::string kFullConfig = R"({"seed": 12, "rate": 0.25, "limit": -1e0, "sizes": [1, 2.0], "paths": ["a/b", ""],
 "part": {"count": 3}, "maybe": {"count": 4, "name": "zzz"}, "parts": [{"count": 1}], "named": {"p": {"count": 7}}, "rest": [null, {}]})";

}  // namespace

TEST_CASE("damaged JSON is refused and accepted JSON survives a round trip", "[fast]") {
  const std::vector<std::string> seeds = {
      R"({"a": [1, -2.5e-3, true, false, null], "b": {"c": "x\"\\\n\u00e9\ud83d\ude00"}, "d": 18446744073709551615})",
      "[[[[]]], {\"\": {}}, \"\xC3\xA9\", 0.1, 1E400]", "  -0.0  "};
  CHECK(first_failure(fuzz::json, seeds, kPieces, 4000) == "");
}

TEST_CASE("damaged configurations are refused and accepted ones survive a round trip", "[fast]") {
  const std::string nul(1, '\0');
  const std::string over = R"({"seed": null, "part": {"count": 9}, "rest": {"x": null}})";
  CHECK(first_failure(
            fuzz::config,
            {kFullConfig, kFullConfig + nul + over + nul + "part.count=8", "{}" + nul + "{}" + nul + "named.q.count=2"},
            kPieces, 3000) == "");
}

TEST_CASE("damaged safetensors files are refused", "[fast]") {
  const std::string header =
      R"({"__metadata__":{"k":"v"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})";
  const std::string data = "abcdefghij";
  const uint64_t length = header.size();
  const std::string raw = std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
  CHECK(first_failure(fuzz::safetensors, {header + "\n" + data, raw}, kPieces, 3000) == "");
}

TEST_CASE("the targets of damaged inputs accept what is valid and notice broken properties", "[fast]") {
  fuzz::Config value;
  CHECK_NOTHROW(Fields::read(parse_json(kFullConfig, "c.json"), "", value));
  CHECK(value.named.size() == 1);
  CHECK(first_failure([](std::string_view text) { fuzz::expect(text.size() < 3, "short"); }, {"abcd"}, kPieces, 0) ==
        "short for the input \"abc\"");
}
