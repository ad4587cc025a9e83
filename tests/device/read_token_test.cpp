// Decoding by recorded graphs on the device "cuda" (a GPU, or the emulator where the build says so).
#include "inspect/selftest.h"
#include "layers/model.h"
#include "tests/device/device.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

constexpr int64_t kVocab = 61, kRows = 2;

/// A layer of `type` between attention with a cache that grows and one with a window.
ModelConfig model_of(const LayerType& type) {
  const std::string roles = type.role == Role::mixer ? R"("mixer": "x", "ffn": "mlp")"
                            : type.role == Role::ffn ? R"("mixer": "full", "ffn": "x")"
                                                     : R"("mixer": "full", "ffn": "mlp", "memory": "x")";
  ModelConfig config;
  Fields::read(parse_json(R"({"vocab_size": 61, "hidden_size": 48, "num_layers": 3, "init_std": 0.2, "layers": {
        "x": {"type": ")" + type.name +
                              "\", " + type.small + R"(},
        "mlp": {"type": "relu2", "intermediate_size": 40, "token_shift": true},
        "full": {"type": "attention", "num_heads": 3, "head_dim": 16, "rope": {"theta": 100.0}, "token_shift": true},
        "window": {"type": "attention", "num_heads": 3, "head_dim": 16, "window": 9}},
      "pattern": [{"mixer": "full", "ffn": "mlp"}, {)" +
                              roles + R"(}, {"mixer": "window", "ffn": "mlp"}]})",
                          "read_token " + type.name),
               "model", config);
  return config;
}

struct Decoded {
  std::vector<double> logits;
  int64_t graphs = 0;
};

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
    {
      const Rows rows = Rows::streams(stream, arena, kRows, segment, state->tokens);
      const Buffer tokens(arena, {kRows * segment}, DType::i32, "tokens");
      copy_to_device(stream, tokens, draw(kRows * segment).data());
      Tape tape(stream, arena, false);
      Pass pass{tape, rows};
      pass.fast = fast;
      model.hidden(pass, tokens, state.get());
    }
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
    INFO(type.name << ", " << dtype_name(dtype));
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
      CHECK(graphs.graphs >= 6);  // recorded anew where a chunk begins
    } else {
      CHECK(graphs.graphs == 12 + 4 - (grows ? 3 : 1));  // the first of equal passes is launched as it is
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
    CHECK(graphs.graphs == 12 + 4 - 1);
  }
}

TEST_CASE("memory of a token that takes new segments is asked for before a graph is recorded") {
  if (!has_device()) { return; }
  constexpr int64_t kRows = 128, kVocab = 140'000;  // logits of more than a segment of the arena, 64 MiB
  ModelConfig config;
  Fields::read(
      parse_json(R"({"vocab_size": 140000, "hidden_size": 8, "num_layers": 1, "tie_embeddings": true, "layers": {
      "x": {"type": "attention", "num_heads": 1, "head_dim": 8, "window": 4}, "mlp": {"type": "relu2", "intermediate_size": 8}},
      "pattern": [{"mixer": "x", "ffn": "mlp"}]})",
                 "read_token"),
      "model", config);
  Stream stream{DeviceKind::cuda};
  Arena arena(DeviceKind::cuda), work(DeviceKind::cuda);
  Model model(config);
  model.params().allocate(arena, DType::f32, false);
  model.params().initialize(stream, 1);
  const auto state = model.make_state(arena, kRows);
  const int64_t before = cuda::device_counts().graphs;
  for (int i = 0; i < 7; ++i) {
    const std::vector<int32_t> tokens(static_cast<size_t>(kRows), i);
    read_token(model, stream, work, *state, tokens, {});
  }
  CHECK(work.reserved_bytes() > kRows * kVocab * 4);
  CHECK(cuda::device_counts().graphs > before);
}
