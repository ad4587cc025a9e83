// Golden cases of layers whose decoding is exact, read token by token and in segments: the options' states against the
// reference.
#include "core/files.h"
#include "inspect/trace_file.h"
#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

TraceInput row_of(const TraceInput& input, int64_t row) {
  const auto part = [&](const std::vector<int64_t>& values) {
    const auto begin = values.begin() + row * input.length;
    return values.empty() ? values : std::vector<int64_t>(begin, begin + input.length);
  };
  TraceInput one;
  one.rows = 1;
  one.length = input.length;
  one.inputs = part(input.inputs);
  one.doc_ids = part(input.doc_ids);
  return one;
}

/// Segments of 5, 1, 2, 5, 1, 2, … tokens.
std::vector<int64_t> split(int64_t length) {
  std::vector<int64_t> lengths;
  for (int64_t at = 0; at < length; at += lengths.back()) {
    const int64_t next = std::vector<int64_t>{5, 1, 2}[lengths.size() % 3];
    lengths.push_back(std::min(next, length - at));
  }
  return lengths;
}

}  // namespace

TEST_CASE("golden cases decoded token by token and in segments give the reference's logits", "[fast]") {
  const std::string type = GENERATE(as<std::string>(), "attention-", "gdn-", "mamba2-", "mesanet-", "mixed-mixers-");
  for (const std::string& name : golden_cases(type)) {
    const std::string folder = std::string(HEBB_TEST_DATA) + "/golden/" + name + "/",
                      json = read_file(folder + "model.json");
    if (json.find("cg_steps_decode") != std::string::npos) { continue; }  // one token is then solved otherwise
    TestModel m(json);
    m.load(folder + "weights.safetensors");
    const TraceInput input = read_trace_input(folder + "rows.safetensors");
    const std::vector<double> expected = SafetensorsFile(folder + "expected.safetensors").doubles("logits");
    const int64_t row_size = input.length * m.config.vocab_size;
    for (int64_t b = 0; b < input.rows; ++b) {
      const std::vector<double> row(expected.begin() + b * row_size, expected.begin() + (b + 1) * row_size);
      const TraceInput one = row_of(input, b);
      check_close(name + " in steps", m.segments(one, std::vector<int64_t>(static_cast<size_t>(input.length), 1)), row,
                  1e-9);
      check_close(name + " in segments", m.segments(one, split(input.length)), row, 1e-9);
    }
  }
}
