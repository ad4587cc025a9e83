// The golden cases of an independent float64 reference: in fp64, in fp32, decoded, and counted.
#include "tests/layers/conditioning.h"
#include "tests/layers/properties.h"

namespace {

/// Compares a golden case in fp64: logits, loss and fast weights to 1e-9, gradients to 1e-8.
void check_golden(const std::string& name) {
  const std::string folder = std::string(HEBB_TEST_DATA) + "/golden/" + name;
  TestModel m(read_file(folder + "/model.json"));
  m.load(folder + "/weights.safetensors");
  const SafetensorsFile expected(folder + "/expected.safetensors");
  const TraceOutput out = m.run_first(read_trace_input(folder + "/rows.safetensors"), golden_options(folder));
  check_close("logits", out.logits.values, expected.doubles("logits"), 1e-9);
  check_close("loss", {out.loss}, expected.doubles("loss"), 1e-9);
  size_t found = 0;
  for (const auto& [key, entry] : expected.entries()) {
    if (key.rfind("grad.", 0) == 0) {
      INFO(key);
      REQUIRE(out.grads.count(key.substr(5)) == 1);
      check_close(key, out.grads.at(key.substr(5)).values, expected.doubles(key), 1e-8);
      ++found;
    } else if (key.rfind("after.", 0) == 0) {
      INFO(key);
      REQUIRE(out.after.count(key.substr(6)) == 1);
      check_close(key, out.after.at(key.substr(6)).values, expected.doubles(key), 1e-9);
    }
  }
  for (const auto& [key, tensor] : out.grads) {
    INFO("reached although the reference has no gradient: " << key);
    CHECK(expected.find("grad." + key) != nullptr);
  }
  CHECK(found == out.grads.size());
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

TEST_CASE("layers agree with the golden cases", "[golden][fast]") {
  const std::string name = GENERATE(from_range(golden_cases()));
  CAPTURE(name);
  check_golden(name);
}

TEST_CASE("a model of several memories gives the same bits on threads and under recomputation", "[golden][fast]") {
  TestModel m(read_file(std::string(HEBB_TEST_DATA) + "/golden/mixed-2/model.json"), DType::f32, 3, 0.3);
  check_threads_and_recompute(m, random_input(2, 23, 61));
}

TEST_CASE("golden cases decoded token by token and in segments give the reference's logits", "[golden][fast]") {
  // Layers whose decoding is exact: the options' states against the reference.
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
      check_close(name + " in steps", m.steps(one), row, 1e-9);
      check_close(name + " in segments", m.segments(one, split(input.length)), row, 1e-9);
    }
  }
}

TEST_CASE("fp32 is as near to fp64 in all golden cases as it can be", "[golden][fast]") {
  // Beside what rounding the weights alone makes of them in fp64.
  for (const std::string& name : golden_cases()) {
    INFO(name);
    const std::string folder = std::string(HEBB_TEST_DATA) + "/golden/" + name;
    const Conditioning condition(folder);
    TestModel m(read_file(folder + "/model.json"), DType::f32);
    m.load(folder + "/weights.safetensors");
    TraceOptions options = golden_options(folder);
    options.forced = condition.exact.inside;
    for (const auto& [tensor, error] :
         errors(m.run_first(read_trace_input(folder + "/rows.safetensors"), options), condition.exact)) {
      INFO(tensor << ": " << error << " in fp32, " << condition.moved.at(tensor) << " by rounding the weights");
      CHECK(error <= condition.limit(tensor, 1e-5));
    }
  }
}

TEST_CASE("a dry run of any layer counts memory and leaves none behind", "[golden][fast]") {
  for (const std::string& name : golden_cases()) {
    INFO(name);
    const std::string path = std::string(HEBB_TEST_DATA) + "/golden/" + name + "/model.json";
    const ModelConfig config = read_model(read_file(path));
    Arena arena(DeviceKind::count);
    Stream stream{DeviceKind::count};
    Model model(config);
    model.params().allocate(arena, DType::f32, true);
    const Rows rows = Rows::streams(stream, arena, 4, 300);
    const Buffer tokens(arena, {1200}, DType::i32, "tokens"), row_loss(arena, {1200}, DType::f64, "loss");
    const int64_t before = arena.in_use_bytes();
    {
      Tape tape(stream, arena, true);
      Pass pass{tape, rows};
      model.loss(pass, model.hidden(pass, tokens), tokens, row_loss, 1.0);
      tape.backward();
    }
    CHECK(arena.in_use_bytes() == before);
    CHECK(arena.peak_bytes() > before);
  }
}
