#include <cmath>

#include "tests/layers/harness.h"

TEST_CASE("fwpkm reports how evenly sub-keys are used, whatever moves them", "[fast]") {
  constexpr int64_t kSubkeys = 5, kHeads = 2, kChunk = 4, kLength = 10, kRows = 2;
  for (const char* update : {"entropy", "memory", "none"}) {
    INFO(update);
    TestModel m(std::string(R"({"vocab_size": 19, "hidden_size": 10, "num_layers": 1, "layers": {
      "a": {"type": "attention", "num_heads": 1, "head_dim": 4}, "f": {"type": "swiglu", "intermediate_size": 7},
      "m": {"type": "fwpkm", "num_subkeys": 5, "key_dim": 6, "value_dim": 7, "num_heads": 2, "top_k": 1,
            "chunk_size": 4, "key_update": ")") +
                    update + R"("}}, "pattern": [{"memory": "m", "mixer": "a", "ffn": "f"}]})",
                DType::f64, 3, 0.5);
    const TraceInput input = random_input(kRows, kLength, 19);
    TraceOptions options;
    options.training = false;
    options.inside = true;
    const std::vector<int64_t> entries = m.run(input, options).inside.at("blocks.0.memory.entries").integers;
    // Of one sub-key per token and head, each has the whole weight: m is the share of the choices.
    double expected = 0;
    for (int64_t first = 0; first < kLength; first += kChunk) {
      const int64_t count = std::min(kChunk, kLength - first);
      std::vector<double> usage(2 * kSubkeys);
      for (int64_t r = 0; r < kRows * count * kHeads * 2; ++r) {
        const int64_t codebook = r % 2, head = r / 2 % kHeads, t = first + r / 2 / kHeads % count,
                      b = r / 2 / kHeads / count;
        const int64_t entry = entries[static_cast<size_t>(((b * kLength + t) * kHeads + head) * 2 + codebook)];
        usage[static_cast<size_t>(codebook * kSubkeys + entry)] += 1.0 / static_cast<double>(kRows * count * kHeads);
      }
      for (const double u : usage) { expected += u * std::log(u + 1e-8) / 3; }
    }
    CHECK(expected < -0.1);
    CHECK(m.statistics(input).at("blocks.0.memory").at("negative_entropy") == Approx(expected).epsilon(1e-12));
  }
}
