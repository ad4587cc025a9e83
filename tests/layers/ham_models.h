#pragma once
// Small models with HAM layers, one for each group of options.
#include "core/join.h"
#include "layers/ham/cache.h"
#include "layers/ham/override.h"
#include "tests/layers/properties.h"

namespace hebb::testing {

/// Keeps the norms of readings, small at first, from being so curved that difference quotients and single precision
/// say little.
inline constexpr double kHamNormEps = 0.01;

/// `layers`: definitions "x", or others that `mixers` names (one a block, cycled).
inline std::string ham_model(const std::string& layers, int64_t blocks = 2,
                             const std::vector<std::string>& mixers = {"x"}) {
  const std::string pattern =
      join(mixers, ", ", [](const std::string& m) { return R"({"mixer": ")" + m + R"(", "ffn": "mlp"})"; });
  return R"({"vocab_size": 29, "hidden_size": 14, "num_layers": )" + std::to_string(blocks) +
         R"(, "norm_eps": 0.01, "layers": {)" + layers +
         R"(, "mlp": {"type": "swiglu", "intermediate_size": 11}}, "pattern": [)" + pattern + "]}";
}

/// A definition NAME of dQK 12, dV 10; `rnn` and `kv` add to the paths, `rest` to the layer.
inline std::string ham_layer(const std::string& rest, const std::string& rnn = "", const std::string& kv = "",
                             const std::string& name = "x") {
  const auto more = [](const std::string& text) { return text.empty() ? "" : ", " + text; };
  return "\"" + name + R"(": {"type": "ham", "rnn": {"num_heads": 2, "key_head_dim": 6, "value_head_dim": 5)" +
         more(rnn) + R"(}, "kv": {"num_heads": 2, "key_head_dim": 6, "value_head_dim": 5)" + more(kv) + "}" +
         more(rest) + "}";
}

inline std::string ham_json(const std::string& rest, const std::string& rnn = "", const std::string& kv = "",
                            int64_t blocks = 2) {
  return ham_model(ham_layer(rest, rnn, kv), blocks);
}

inline const std::string kHamRope = R"("rope": {"theta": 100.0})";
inline const std::string kHamPlain = R"("conv_size": 0, "qkv_norm": "none", "gates": "none")";

/// Models of two blocks in which the router selects some tokens.
inline const std::vector<std::string>& ham_variants() {
  static const std::vector<std::string> variants = {
      ham_json(R"("threshold": {"tau": 1.0})", "", kHamRope),
      ham_json(R"("conv_size": 3, "qkv_norm": "post_conv", "gates": "scalar", "aggregate": "max", "chunk_size": 16,
                  "threshold": {"tau": 1.3})",
               R"("output_gate": "sigmoid", "allow_neg_eigval": true)"),
      ham_json(kHamPlain + R"(, "threshold": {"mode": "fixed", "tau": 0.9})",
               R"("output_gate": "none", "activation": "none", "dt_bias_init": "ones")", R"("activation": "none")"),
      ham_json(R"("aggregate": "max", "router": {"type": "input", "depth": 2, "hidden": 5, "heads": 3, "eda": true})"),
      ham_json(R"("conv_size": 2, "qkv_norm": "none", "router": {"type": "input", "eda": true},
                  "threshold": {"mode": "all"})",
               "", kHamRope),
      ham_json(R"("router": {"type": "input", "heads": 2}, "threshold": {"mode": "none"})"),
      ham_json(R"("router": {"type": "vector", "depth": 3, "hidden": 4, "eda": true},
                  "threshold": {"mode": "fixed", "tau": 0.5})"),
  };
  return variants;
}

/// The decisions that a run reported, to be forced upon another.
inline TraceOptions with_masks_of(const TraceOutput& out) {
  TraceOptions options = with_grads();
  for (const auto& [name, record] : out.inside) {
    if (!record.integers.empty()) { options.forced[name] = record; }
  }
  return options;
}

inline int64_t count_selected(const Inspector::Record& mask) {
  return std::accumulate(mask.integers.begin(), mask.integers.end(), int64_t{0});
}

}  // namespace hebb::testing
