#pragma once
// Small models over bytes for tests of evaluations that read text.
#include <cmath>
#include <functional>
#include <map>

#include "tests/eval/model_file.h"
#include "tests/test.h"

namespace hebb::testing {

constexpr int32_t kByteVocab = 259, kBos = 256, kEos = 257;

/// A model over bytes with the layers that carry every kind of state; `memory`: with fast weights, too.
inline std::string byte_model(bool memory) {
  return std::string(R"({"vocab_size": 259, "hidden_size": 12, "num_layers": 2, "init_std": 0.4,
    "layers": {"g": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4, "chunk_size": 16},
               "a": {"type": "attention", "num_heads": 2, "head_dim": 6, "window": 9, "rope": {"theta": 100.0}},
               "f": {"type": "fwpkm", "num_subkeys": 3, "key_dim": 4, "value_dim": 6, "top_k": 2, "chunk_size": 5},
               "m": {"type": "swiglu", "intermediate_size": 16}},
    "pattern": [{"mixer": "g", "ffn": "m"}, {"mixer": "a", "ffn": "m")") +
         (memory ? R"(, "memory": "f")" : "") + "}]}";
}

/// What an evaluation leaves.
struct Outcome {
  EvalResult result;
  std::vector<Json> samples;

  double metric(const std::string& name) const { return result.metrics.at(name).at("value").as_double(); }
  int64_t count(const std::string& name) const { return result.metrics.at(name).at("n").as_int(); }
};

/// A model in a file, and evaluations on it.
class TextModel {
 public:
  using Change = std::function<void(Param& p, double* values)>;

  /// Random weights, which `change` may replace.
  explicit TextModel(const std::string& json, const Change& change = {}) {
    write_random_model(folder, json, DType::f64, [&](Param& p) {
      if (change) { change(p, p.value.as<double>()); }
    });
  }

  ScoringModel load() const { return load_model(folder); }
  /// Runs one evaluation; `keys` are those beside its name.
  Outcome run(const std::string& keys, int64_t training_length = 64) const {
    ScoringModel s = load();
    Outcome outcome;
    outcome.result = evaluate(s, keys, tokenizer, training_length, &outcome.samples);
    return outcome;
  }
  /// The same on a file of records, which is written first.
  Outcome run_on(const std::string& records, const std::string& keys, int64_t training_length = 64) const {
    return run("\"file\": \"" + folder.write("records.jsonl", records).string() + "\", " + keys, training_length);
  }

  TempFolder folder;
  std::shared_ptr<const Tokenizer> tokenizer = Tokenizer::load({"bytes", "", false, true});
};

/// A model whose logits depend on the last token alone: a table. Blocks add nothing, the embedding is one-hot.
class BigramModel : public TextModel {
 public:
  using Table =
      std::map<std::pair<int32_t, int32_t>, double>;  // (last token, next token) -> logit; 0 where nothing is written

  explicit BigramModel(Table table)
      : TextModel(kModel, [&](Param& p, double* values) { fill(table, p, values); }), table_(std::move(table)) {}

  /// Log-probability of `next` after `last` [nats].
  double log_p(int32_t last, int32_t next) const {
    double sum = 0;
    for (int32_t v = 0; v < kByteVocab; ++v) { sum += std::exp(logit(table_, last, v)); }
    return logit(table_, last, next) - std::log(sum);
  }
  double log_p(int32_t last, const std::string& text) const {
    double sum = 0;
    for (const char c : text) {
      sum += log_p(last, static_cast<unsigned char>(c));
      last = static_cast<unsigned char>(c);
    }
    return sum;
  }

 private:
  static constexpr const char* kModel = R"({"vocab_size": 259, "hidden_size": 259, "num_layers": 1, "norm_eps": 1e-5,
    "layers": {"a": {"type": "attention", "num_heads": 1, "head_dim": 4, "window": 1}, "m": {"type": "swiglu", "intermediate_size": 4}},
    "pattern": [{"mixer": "a", "ffn": "m"}]})";

  static double logit(const Table& table, int32_t last, int32_t next) {
    const auto at = table.find({last, next});
    return at == table.end() ? 0.0 : at->second;
  }
  static void fill(const Table& table, Param& p, double* values) {
    if (!p.is_matrix()) {
      return;  // weights of norms stay 1
    }
    std::fill(values, values + p.value.numel(), 0.0);
    const double normed = 1 / std::sqrt(1.0 / kByteVocab + 1e-5);  // the 1 of a one-hot row behind the last norm
    for (int32_t v = 0; v < kByteVocab && p.name() == "embed.weight"; ++v) { values[v * kByteVocab + v] = 1; }
    for (const auto& [pair, logit] : table) {
      if (p.name() == "lm_head.weight") { values[pair.second * kByteVocab + pair.first] = logit / normed; }
    }
  }

  Table table_;
};

/// A table of random logits for all printable characters, BOS and EOS.
inline BigramModel::Table random_table(uint64_t seed) {
  BigramModel::Table table;
  Rng rng(seed, "table");
  std::vector<int32_t> ids = {kBos, kEos, '\n'};
  for (int32_t c = ' '; c <= '~'; ++c) { ids.push_back(c); }
  for (const int32_t last : ids) {
    for (const int32_t next : ids) { table[{last, next}] = 3 * rng.normal(); }
  }
  return table;
}

}  // namespace hebb::testing
