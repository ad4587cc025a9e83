#include <algorithm>
#include <cmath>
#include <set>

#include "layers/sdm/op_statistics.h"
#include "tests/kernels/tensors.h"
#include "tests/layers/every_layer.h"

namespace {

constexpr int64_t kVocab = 19;

/// Two blocks of sdm without feed-forward work to speak of.
std::string model(const std::string& sdm, int64_t hidden = 12) {
  return R"({"vocab_size": 19, "hidden_size": )" + std::to_string(hidden) + R"(, "num_layers": 2, "norm_eps": 1e-5,
    "layers": {"s": {"type": "sdm", )" +
         sdm + R"(}, "m": {"type": "swiglu", "intermediate_size": 5}},
    "pattern": [{"mixer": "s", "ffn": "m"}]})";
}

const std::string kBasic = R"("num_heads": 2, "slots_per_head": 16, "num_writes": 5, "num_reads": 3)";
const std::string kInside = "blocks.0.mixer.";

/// A model whose memories and weights are large enough to matter, with A_log moderate.
struct SdmModel : TestModel {
  explicit SdmModel(const std::string& sdm, DType dtype = DType::f64, int64_t hidden = 12, double std = 0.5)
      : TestModel(::model(sdm, hidden), dtype, 2, std) {
    for (const auto& p : model->params().all()) {
      if (p->name().ends_with("A_log")) { fill(p->name(), -0.5); }
      if (p->name().ends_with("dt_bias")) { fill(p->name(), 0.1); }
    }
  }
};

}  // namespace

TEST_CASE("sdm has the properties of layers for every option", "[fast]") {
  for (
      const std::string& options :
      {kBasic, kBasic + R"(, "out_gate": "silu", "out_norm": "layer", "bias": true)",
       kBasic + R"(, "out_gate": "none", "out_norm": "none", "learned_init": false)",
       kBasic + R"(, "write_activation": "l2", "read_activation": "none", "key_weighted_decay": true)",
       kBasic + R"(, "write_activation": "none", "read_activation": "l2", "write_scale": 2.0)",
       kBasic +
           R"(, "write_scale": 0.7, "read_scale": 1.6, "key_weighted_decay": true, "value_head_dim": 5, "out_norm_eps": 1e-3)",
       std::string(R"("slots_per_head": 9, "num_writes": 9, "num_reads": 9, "value_head_dim": 35)"),
       std::string(
           R"("slots_per_head": 9, "num_writes": 1, "num_reads": 4, "write_activation": "none", "key_weighted_decay": true)"),
       std::string(
           R"("num_heads": 3, "slots_per_head": 25, "num_writes": 1, "num_reads": 1, "A_init_range": [1, 2], "dt_init_range": [0.1, 0.2])")}) {
    check_layer("sdm", options);
  }
}

TEST_CASE("sdm leaves the gradient of slots that no token selects at zero", "[fast]") {
  SdmModel m(R"("num_heads": 2, "slots_per_head": 49, "num_writes": 2, "num_reads": 2)");
  const TraceOutput out = m.run(random_input(2, 4, kVocab), inside());
  const auto& writes = out.inside.at(kInside + "write_slots");
  const auto& reads = out.inside.at(kInside + "read_slots");
  CHECK(writes.shape == std::vector<int64_t>{2, 4, 2, 2});
  const std::vector<double>& d = out.grads.at("blocks.0.mixer.memory").values;
  for (size_t head = 0; head < 2; ++head) {
    std::set<int64_t> read, touched;
    for (size_t i = 0; i < writes.integers.size(); ++i) {
      if (i / 2 % 2 == head) {
        read.insert(reads.integers[i]);
        touched.insert({reads.integers[i], writes.integers[i]});
      }
    }
    for (int64_t slot = 0; slot < 49; ++slot) {
      const auto row = d.begin() + (static_cast<int64_t>(head) * 49 + slot) * 6;
      const bool any = std::any_of(row, row + 6, [](double x) { return x != 0; });
      CHECK((!any || touched.count(slot) == 1));
      CHECK((any || read.count(slot) == 0));
    }
  }
}

TEST_CASE("forced sdm slots are taken as given, and wrong ones are refused", "[fast]") {
  SdmModel m(kBasic);
  const TraceInput input = random_input(1, 5, kVocab);
  TraceOptions options = inside();
  const TraceOutput first = m.run(input, options);
  for (const char* name : {"write_slots", "read_slots"}) {
    const auto& slots = first.inside.at(kInside + name).integers;
    const size_t count = name[0] == 'w' ? 5 : 3;
    for (size_t i = 0; i < slots.size(); ++i) { CHECK((i % count == 0 || slots[i] > slots[i - 1])); }
  }
  options.forced = first.inside;
  CHECK(bits_fault("with given slots", m.run(input, options), first) == "");
  auto& slots = options.forced[kInside + "read_slots"].integers;
  const auto last = slots[2];
  slots[2] = last == 15 ? 14 : 15;
  std::sort(slots.begin(), slots.begin() + 3);
  if (std::adjacent_find(slots.begin(), slots.begin() + 3) == slots.begin() + 3) {
    CHECK(compare(m.run(input, options).logits.values, first.logits.values).worst > 1e-6);
  }
  slots[0] = slots[1] = 4;
  slots[2] = 9;
  CHECK_THROWS_WITH(
      m.run(input, options),
      Contains("blocks.0.mixer.read_slots: forced slot (found 4, expected 5 to 15, ascending in a head)"));
  slots[1] = 16;
  CHECK_THROWS_WITH(m.run(input, options), Contains("found 16, expected 5 to 15"));
  slots.pop_back();
  CHECK_THROWS_WITH(m.run(input, options), Contains("forced decisions (found 29 integers, expected 30)"));
}

TEST_CASE("sdm memory outside the parameters does not grow with the table", "[fast]") {
  const auto peak = [](int64_t slots) {
    const ModelConfig config = read_model(
        model(R"("num_heads": 2, "value_head_dim": 64, "num_writes": 3, "num_reads": 2, "slots_per_head": )" +
              std::to_string(slots)));
    Stream stream{DeviceKind::count};
    Arena params(DeviceKind::count), work(DeviceKind::count);
    Model m(config);
    m.params().allocate(params, DType::f32, true);
    const Rows rows = Rows::streams(stream, work, 4, 10);
    const Buffer tokens(work, {40}, DType::i32, "tokens"), row_loss(work, {40}, DType::f64, "loss");
    Tape tape(stream, work, true);
    Pass pass{tape, rows};
    m.loss(pass, m.hidden(pass, tokens), tokens, row_loss, 1.0);
    tape.backward();
    return work.peak_bytes();
  };
  // Only the scores of the sub-keys (the square root) and one number per slot and thread grow.
  const int64_t table = 2 * 40000 * 64 * 4;
  CHECK(peak(40000) - peak(400) < table / 8);
}

TEST_CASE("sdm parameters have the names, shapes, decay and initial values of the page", "[fast]") {
  TestModel m(
      model(
          R"("num_heads": 2, "slots_per_head": 64, "num_writes": 3, "num_reads": 2, "bias": true, "out_norm": "layer")",
          60),
      DType::f32, 7);
  const std::string name = "blocks.0.mixer.";
  const std::map<std::string, Shape> shapes = {{"q_proj.weight", {32, 60}},
                                               {"k_proj.weight", {32, 60}},
                                               {"v_proj.weight", {60, 60}},
                                               {"a_proj.weight", {2, 60}},
                                               {"b_proj.weight", {2, 60}},
                                               {"g_proj.weight", {60, 60}},
                                               {"o_proj.weight", {60, 60}},
                                               {"memory", {2, 64, 30}},
                                               {"A_log", {2}},
                                               {"dt_bias", {2}},
                                               {"o_norm.weight", {30}},
                                               {"o_norm.bias", {30}},
                                               {"q_proj.bias", {32}},
                                               {"k_proj.bias", {32}},
                                               {"v_proj.bias", {60}},
                                               {"a_proj.bias", {2}},
                                               {"b_proj.bias", {2}},
                                               {"g_proj.bias", {60}},
                                               {"o_proj.bias", {60}}};
  size_t found = 0;
  for (const auto& p : m.model->params().all()) {
    if (p->name().rfind(name, 0) != 0) { continue; }
    const std::string suffix = p->name().substr(name.size());
    INFO(suffix);
    REQUIRE(shapes.count(suffix) == 1);
    CHECK(p->spec.shape == shapes.at(suffix));
    CHECK(p->decays() == (p->spec.shape.rank >= 2));
    CHECK(p->spec.initial_state == (suffix == "memory"));
    ++found;
    const std::vector<double> values = m.get(*p);
    if (p->spec.shape.rank >= 2 && values.size() > 500) {
      double squares = 0, largest = 0;
      for (const double x : values) {
        squares += x * x;
        largest = std::max(largest, std::abs(x));
      }
      const double std = 1 / std::sqrt(60.0);
      CHECK(largest <= 3 * std);
      // 0.9866: standard deviation of a normal cut at 3; 4 standard errors of the estimate of the smallest tensor.
      CHECK(std::sqrt(squares / static_cast<double>(values.size())) ==
            Approx(0.9866 * std).epsilon(4 / std::sqrt(2.0 * static_cast<double>(values.size()))));
    }
  }
  CHECK(found == shapes.size());
  for (const double x : m.get(m.param(name + "A_log"))) {
    CHECK((x >= std::log(1e-4) - 1e-6 && x <= std::log(16.0) + 1e-6));
  }
  for (const double x : m.get(m.param(name + "dt_bias"))) {
    const double dt = std::log1p(std::exp(x));
    CHECK((dt >= 0.001 * 0.999 && dt <= 0.1 * 1.001));
  }
}

TEST_CASE("memory_init_std and learned_init act on the sdm memory", "[fast]") {
  TestModel narrow(model(kBasic + R"(, "memory_init_std": 0.01)"), DType::f32);
  for (const double x : narrow.get(narrow.param("blocks.1.mixer.memory"))) { CHECK(std::abs(x) <= 0.03f); }
  TestModel none(model(kBasic + R"(, "learned_init": false)"), DType::f32);
  CHECK(none.model->params().find("blocks.0.mixer.memory") == nullptr);
}

TEST_CASE("sdm refuses impossible configurations", "[fast]") {
  const auto refused = [](const std::string& sdm, const std::string& message) {
    INFO(sdm);
    CHECK_THROWS_WITH(TestModel(model(sdm)), Contains("model.layers.s." + message));
  };
  refused(R"("num_writes": 2, "num_reads": 2)", "slots_per_head");
  refused(R"("slots_per_head": 15, "num_writes": 2, "num_reads": 2)",
          "slots_per_head: found 15, expected a perfect square");
  refused(R"("slots_per_head": 16, "num_writes": 17, "num_reads": 2)",
          "num_writes: found 17, expected at most slots_per_head (16)");
  refused(R"("slots_per_head": 16, "num_writes": 2, "num_reads": 17)",
          "num_reads: found 17, expected at most slots_per_head (16)");
  refused(R"("num_heads": 5, "slots_per_head": 16, "num_writes": 2, "num_reads": 2)",
          "num_heads: found 5, expected a divisor of hidden_size (12) where value_head_dim is not set");
  refused(kBasic + R"(, "write_scale": 0)", "write_scale: found 0");
  refused(kBasic + R"(, "value_head_dim": 12, "state_dtype": "bf16")",
          "state_dtype: found \"bf16\" and slots of 12 channels, expected \"fp32\", or a value_head_dim that is a "
          "multiple of 8");
  refused(kBasic + R"(, "value_head_dim": 1, "out_norm": "layer")", "out_norm: found \"layer\" and slots of 1 channel");
  refused(kBasic + R"(, "write_activation": "tanh")", "write_activation");
  refused(kBasic + R"(, "A_init_range": [2, 1])", "A_init_range: found [2,1], expected [low, high] with low <= high");
  refused(kBasic + R"(, "dt_init_range": [0.2, 0.1])", "dt_init_range");
}

TEST_CASE("statistics of a sparse delta memory", "[fast]") {
  Tensors t(DType::f64);
  // Two tokens, two heads of four slots.
  const SlotUse write{t.integers<int32_t>({2, 2, 2}, {0, 1, 2, 3, 0, 1, 2, 3}),
                      t.make({2, 2, 2}, {0.5, 0.5, 1, 0, 0.5, 0.5, 0.25, 0.75})},
      read{t.integers<int32_t>({2, 2, 1}, {0, 1, 2, 3}), t.make({2, 2, 1}, {1, 1, 1, 1})};
  const Tensor g = t.make({2, 2}, {0, std::log(0.5), std::log(0.25), 0}), beta = t.make({2, 2}, {0.1, 0.2, 0.3, 0.4});
  std::map<std::string, double> out;
  sparse_delta_statistics(t.stream, out, 4, write, read, g, beta);
  CHECK(out.at("forget_min") == Approx(0.25));
  CHECK(out.at("forget_mean") == Approx(0.6875));
  CHECK(out.at("forget_max") == 1.0);
  CHECK(out.at("input_mean") == Approx(0.25));
  CHECK(out.at("unique_write") == 0.5);  // slots 0 and 1 of head 0, 2 and 3 of head 1
  CHECK(out.at("unique_read") == 0.5);
  const double p1 = 1.25 / 4, p2 = 0.75 / 4;
  CHECK(out.at("entropy_write") ==
        Approx((0.5 * std::log(4.0) - p1 * std::log(p1) - p2 * std::log(p2)) / std::log(8.0)));
  CHECK(out.at("entropy_read") == Approx(std::log(4.0) / std::log(8.0)));
  const double quarter = std::exp(-0.25 * std::log(0.25) - 0.75 * std::log(0.75)) / 2;
  CHECK(out.at("effective_write") == Approx((1 + 0.5 + 1 + quarter) / 4));
  CHECK(out.at("effective_write_median") == Approx((1 + quarter) / 2));
  CHECK(out.at("effective_write_q10") == Approx(0.5 + 0.3 * (quarter - 0.5)));
  CHECK(out.at("effective_read") == 1.0);
  CHECK(out.at("cumulative_write_1") == Approx((0.5 + 1 + 0.5 + 0.75) / 4));
  CHECK(out.count("cumulative_write_4") == 0);
}

TEST_CASE("sdm puts its statistics under its block", "[fast]") {
  SdmModel m(kBasic);
  const Statistics statistics = m.statistics(random_input(1, 6, kVocab));
  REQUIRE(statistics.size() == 2);
  CHECK(statistics.at("blocks.1.mixer").at("unique_write") > 0);
}

TEST_CASE("adding a constant to one half's scores changes nothing under softmax", "[fast]") {
  SdmModel m(kBasic + R"(, "bias": true)");
  const TraceInput input = random_input(2, 9, kVocab);
  const std::vector<double> before = m.run(input).logits.values;
  for (const char* name : {"blocks.0.mixer.k_proj.bias", "blocks.0.mixer.q_proj.bias"}) {
    m.change(m.param(name), [](std::vector<double>& bias) {
      for (size_t i = 0; i < 4; ++i) { bias[i] += 0.75; }  // head 0, first half
    });
  }
  check_close("logits", m.run(input).logits.values, before, 1e-12);
}
