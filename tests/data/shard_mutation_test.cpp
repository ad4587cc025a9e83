#include "core/random.h"
#include "tests/data/shard_builder.h"
#include "tests/fuzz/shard_target.h"
#include "tests/test.h"

namespace {

std::string make_input(uint8_t flags, const std::string& bin, const std::string& index) {
  std::string input(1, static_cast<char>(flags));
  put<uint16_t>(input, static_cast<uint16_t>(bin.size()));
  return input + bin + index;
}

// One to four changes: a flipped bit, an extreme value at any place, bytes removed or doubled.
std::string mutate(std::string input, Rng& rng) {
  for (uint32_t change = 1 + rng.below(4); change > 0 && input.size() > 8; --change) {
    const uint32_t at = rng.below(static_cast<uint32_t>(input.size()) - 8);
    switch (rng.below(4)) {
      case 0: input[at] = static_cast<char>(input[at] ^ (1 << rng.below(8))); break;
      case 1:
        patch<uint64_t>(input, at,
                        rng.choice(std::vector<uint64_t>{0, 1, ~uint64_t{0}, uint64_t{1} << 63, 0x7FFFFFFF}));
        break;
      case 2: input.erase(at, 1 + rng.below(8)); break;
      default: input.insert(at, input.substr(at, 1 + rng.below(16)));
    }
  }
  return input;
}

}  // namespace

TEST_CASE("mutated shards and indexes are refused with a data error or are consistent", "[fast]") {
  const std::vector<int64_t> tokens = {5, 6, 7, 1, 8, 9, 7, 1, 2, 3, 4};
  const std::string megatron = megatron_index_bytes(8, 2, {3, 0, 6, 2}, {0, 1, 3, 4});
  const std::vector<std::string> seeds = {
      make_input(0 | 4 | 8 | 64, hebb_bytes(tokens, 61), index_bytes({0, 4, 7, 11})),
      make_input(0 | 4, llmc_bytes(tokens), index_bytes({0, 4, 4, 11})),
      make_input(0 | 16, hebb_bytes(tokens, 61), ""),
      make_input(1 | 16 | 32, token_bytes<uint16_t>(tokens), ""),
      make_input(2 | 16 | 64, token_bytes<uint32_t>(tokens), ""),
      make_input(3 | 4 | 64, token_bytes<uint16_t>(tokens), megatron),
      make_input(0 | 4, token_bytes<uint16_t>(tokens), megatron),
  };
  for (size_t s = 0; s < seeds.size(); ++s) {
    CHECK(fuzz::shard(seeds[s]));
    int accepted = 0;
    for (uint64_t round = 0; round < 1500; ++round) {
      Rng rng(s, "mutation", round);
      const std::string input = mutate(seeds[s], rng);
      std::string failure;
      try {
        accepted += fuzz::shard(input) ? 1 : 0;
      } catch (const std::exception& error) { failure = error.what(); }
      INFO("seed " << s << " round " << round);
      REQUIRE(failure == "");
    }
    CHECK(accepted > 0);  // else the properties of accepted shards were not looked at
    CHECK(accepted < 1500);
  }
}
