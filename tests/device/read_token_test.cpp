// Decoding by recorded graphs on the device "cuda" (a GPU, or the emulator where the build says so).
#include "inspect/selftest.h"
#include "layers/model.h"
#include "tests/device/device.h"

namespace {

constexpr int64_t kVocab = 61, kRows = 2;

/// A layer of `type` between attention with a cache that grows and one with a window.
ModelConfig model_of(const LayerType& type) {
  const std::string roles = type.role == Role::mixer ? R"("mixer": "x", "ffn": "mlp")"
                            : type.role == Role::ffn ? R"("mixer": "full", "ffn": "x")"
                                                     : R"("mixer": "full", "ffn": "mlp", "memory": "x")";
  return Fields::read<ModelConfig>(
      parse_json(R"({"vocab_size": 61, "hidden_size": 48, "num_layers": 3, "init_std": 0.2, "layers": {
        "x": {"type": ")" +
                     type.name + "\", " + type.small + R"(},
        "mlp": {"type": "relu2", "intermediate_size": 40, "token_shift": true},
        "full": {"type": "attention", "num_heads": 3, "head_dim": 16, "rope": {"theta": 100.0}, "token_shift": true},
        "window": {"type": "attention", "num_heads": 3, "head_dim": 16, "window": 9}},
      "pattern": [{"mixer": "full", "ffn": "mlp"}, {)" +
                     roles + R"(}, {"mixer": "window", "ffn": "mlp"}]})",
                 "read_token " + type.name),
      "model");
}

struct Decoded {
  std::vector<double> logits;
  int64_t graphs = 0;
};

/// Reads tokens [rows, n] on from `state`.
void read_segment(Model& model, Stream& stream, Arena& arena, ModelState& state, const std::vector<int32_t>& ids,
                  FastWeightControl fast) {
  const auto length = static_cast<int64_t>(ids.size()) / state.rows;
  const Rows rows = Rows::streams(stream, arena, state.rows, length, state.tokens);
  const Buffer tokens(arena, {state.rows * length}, DType::i32, "tokens");
  copy_to_device(stream, tokens, ids.data());
  Tape tape(stream, arena, false);
  Pass pass{tape, rows};
  pass.fast = fast;
  model.hidden(pass, tokens, &state);
}

/// Reads a segment of `first` tokens, and a second one, with single tokens behind each, as an evaluation or a generator
/// does.
Decoded decode(const ModelConfig& config, DType dtype, bool as_graph, FastWeightControl fast, int first) {
  Stream stream{DeviceKind::cuda};
  Arena arena(DeviceKind::cuda), work(DeviceKind::cuda);
  Model model(config);
  model.params().allocate(arena, dtype, false);
  model.params().initialize(stream, 1);
  const auto state = model.make_state(arena, kRows);
  Rng rng(1, "tokens");
  const auto draw = [&](int64_t count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) { id = static_cast<int32_t>(rng.below(kVocab)); }
    return ids;
  };
  Decoded out;
  const int64_t before = cuda::device_counts().graphs;
  for (const auto& [segment, singles] : {std::pair{first, 12}, std::pair{5, 4}}) {
    read_segment(model, stream, arena, *state, draw(kRows * segment), fast);
    for (int i = 0; i < singles; ++i) {
      const Tensor logits = read_token(model, stream, work, *state, draw(kRows), {.fast = fast, .as_graph = as_graph});
      const std::vector<double> values = to_host(stream, logits).values;
      out.logits.insert(out.logits.end(), values.begin(), values.end());
    }
  }
  out.graphs = cuda::device_counts().graphs - before;
  CHECK(state->tokens == first + 12 + 5 + 4);
  return out;
}

}  // namespace

TEST_CASE("tokens that recorded graphs read have the bits of those that are launched one by one") {
  if (!has_device()) { return; }
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  for (const LayerType& type : layer_types()) {
    // In bf16 those with tensor cores of their own while they decode, and a recurrence.
    const std::string& name = type.name;
    if (dtype == DType::bf16 && name != "attention" && name != "kvm" && name != "ovq" && name != "gdn") { continue; }
    INFO(name << ", " << dtype_name(dtype));
    const ModelConfig config = model_of(type);
    const FastWeightControl fast{.update = FastUpdate::streaming};
    const bool grows = type.name == "attention";  // the cache of 64 tokens does at the eighth single one
    const int first = grows ? 57 : 11;
    const Decoded single = decode(config, dtype, false, fast, first), graphs = decode(config, dtype, true, fast, first);
    CHECK(single.graphs == 0);
    CHECK(graphs.logits == single.logits);
    if (type.name == "ham") {
      CHECK(graphs.graphs == 0);  // its host code decides
    } else if (type.name == "fwpkm" || type.name == "fwmlp" || type.name == "kvm") {
      CHECK(graphs.graphs >= 5);  // recorded anew where a chunk begins
    } else {
      // The first of equal passes is launched as it is, and the second where the first took memory from the device.
      CHECK(graphs.graphs == 12 + 4 - (grows ? 4 : 2));
    }
  }
}

TEST_CASE("fast weights that are frozen are read by graphs throughout") {
  if (!has_device()) { return; }
  for (const char* type : {"fwpkm", "fwmlp"}) {
    INFO(type);
    const ModelConfig config = model_of(*find_layer_type(type));
    const FastWeightControl fast{.update = FastUpdate::streaming, .freeze = true};
    const Decoded single = decode(config, DType::f32, false, fast, 11),
                  graphs = decode(config, DType::f32, true, fast, 11);
    CHECK(graphs.logits == single.logits);
    CHECK(graphs.graphs == 12 + 4 - 2);
  }
}
