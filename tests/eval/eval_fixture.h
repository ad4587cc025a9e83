#pragma once
#include <algorithm>
#include <string>
#include <vector>

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
  testing::Documents documents;

  explicit EvalFixture(const std::string& text = kModel, const std::vector<int>& lengths = {1, 2, 70, 33, 129}) {
    testing::write_random_model(folder, text, DType::f32, fill_zeros);
    documents = testing::random_documents(Rng(5, "documents"), lengths, 23);
    testing::write_shards(folder / "corpus", 23, documents);
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
  ScoringModel load() const { return testing::load_model(folder); }
  std::string corpus() const {
    return "\"data\": {\"path\": \"" + (folder / "corpus" / "train_*.bin").string() + "\"}";
  }

  EvalResult run(const std::string& keys, int64_t length = 32) const {
    ScoringModel s = load();
    return testing::evaluate(s, corpus() + ", " + keys, nullptr, length);
  }
};

}  // namespace hebb
