#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "data/shards/shard_writer.h"
#include "tests/eval/model_file.h"

namespace hebb {

inline const char* const kModel = R"({"vocab_size": 23, "hidden_size": 12, "num_layers": 2, "init_std": 0.4,
  "layers": {"g": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4, "chunk_size": 16},
             "a": {"type": "attention", "num_heads": 2, "head_dim": 6, "window": 9, "rope": {"theta": 100.0}},
             "m": {"type": "swiglu", "intermediate_size": 16}},
  "pattern": [{"mixer": "g", "ffn": "m"}, {"mixer": "a", "ffn": "m"}]})";

/// A random model with its weights in a file, and documents of several lengths in shards.
struct EvalFixture {
  TempFolder folder;
  std::vector<std::vector<int32_t>> documents;

  explicit EvalFixture(const std::string& text = kModel, const std::vector<int>& lengths = {1, 2, 70, 33, 129}) {
    testing::write_random_model(folder, text, DType::f32, fill_zeros);
    ShardWriterOptions options;
    options.directory = folder / "corpus";
    options.vocab_size = 23;
    ShardWriter writer(options);
    Rng rng(5, "documents");
    for (const int length : lengths) {
      std::vector<int32_t> ids;
      for (int i = 0; i < length; ++i) { ids.push_back(static_cast<int32_t>(rng.below(23))); }
      writer.add_document(ids);
      documents.push_back(ids);
    }
    writer.finish();
  }

  /// Matrices that begin at 0 (kvm's last one) would hide what comes before them.
  static void fill_zeros(Param& p) {
    auto* values = static_cast<float*>(p.value.data);
    if (!p.trained() || p.spec.shape.rank != 2 ||
        std::any_of(values, values + p.value.numel(), [](float v) { return v != 0; })) {
      return;
    }
    Rng rng(7, p.name());
    for (int64_t i = 0; i < p.value.numel(); ++i) { values[i] = static_cast<float>(0.4 * rng.normal()); }
  }
  ScoringModel load() const {
    return ScoringModel(read_model_source(folder / "model.json"), folder / "w.safetensors",
                        {DeviceKind::cpu, DType::f64});
  }
  std::string corpus() const {
    return "\"data\": {\"path\": \"" + (folder / "corpus" / "train_*.bin").string() + "\"}";
  }

  EvalResult run(const std::string& keys, int64_t length = 32) const {
    ScoringModel s = load();
    return testing::evaluate(s, corpus() + ", " + keys, nullptr, length);
  }
};

inline double metric(const EvalResult& r, const char* name) { return r.metrics.at(name).at("value").as_double(); }

}  // namespace hebb
