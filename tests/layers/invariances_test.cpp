// What the parameters of several mixers may be changed by without effect.
#include "tests/layers/harness.h"

namespace {

/// A mixer whose key heads (groups) serve several heads each, and the same with a head of their own for each.
struct Grouping {
  const char *grouped, *repeated;
  size_t groups;
};

/// `groups` blocks of rows, each as often as `size` wants.
std::vector<double> repeat_blocks(const std::vector<double>& from, size_t groups, size_t size) {
  const size_t block = from.size() / groups, copies = size / from.size();
  std::vector<double> out;
  for (size_t i = 0; i < size; ++i) { out.push_back(from[i / block / copies * block + i % block]); }
  return out;
}

/// The sums over the copies that repeat_blocks makes.
std::vector<double> sum_blocks(const std::vector<double>& from, size_t groups, size_t size) {
  const size_t block = size / groups, copies = from.size() / size;
  std::vector<double> out(size);
  for (size_t i = 0; i < from.size(); ++i) { out[i / block / copies * block + i % block] += from[i]; }
  return out;
}

}  // namespace

TEST_CASE("grouped heads equal heads with repeated keys and values, and their gradients add up", "[fast]") {
  const Grouping g = GENERATE(
      Grouping{R"("type": "attention", "head_dim": 5, "value_head_dim": 4, "qk_norm": "layer", "window": 6,
                  "rope": {"theta": 20.0, "dims": 2}, "num_heads": 6, "num_kv_heads": 2)",
               R"("type": "attention", "head_dim": 5, "value_head_dim": 4, "qk_norm": "layer", "window": 6,
                  "rope": {"theta": 20.0, "dims": 2}, "num_heads": 6)",
               2},
      Grouping{R"("type": "gdn", "key_head_dim": 5, "value_head_dim": 7, "conv_bias": true, "initial_state": "learned",
                  "num_heads": 2, "num_value_heads": 4)",
               R"("type": "gdn", "key_head_dim": 5, "value_head_dim": 7, "conv_bias": true, "initial_state": "learned",
                  "num_heads": 4)",
               2},
      Grouping{R"("type": "mamba2", "num_heads": 4, "head_dim": 3, "state_dim": 5, "norm_groups": 2, "num_groups": 2)",
               R"("type": "mamba2", "num_heads": 4, "head_dim": 3, "state_dim": 5, "norm_groups": 2, "num_groups": 4)",
               2},
      Grouping{R"("type": "ovq", "head_dim": 5, "chunk_size": 4, "max_centroids": 6, "v_shift": true, "num_heads": 2,
                  "num_kv_heads": 1)",
               R"("type": "ovq", "head_dim": 5, "chunk_size": 4, "max_centroids": 6, "v_shift": true, "num_heads": 2)",
               1},
      Grouping{R"("type": "vq", "head_dim": 5, "codebook_size": 4, "quantizer": "diveq", "num_heads": 2,
                  "num_kv_heads": 1)",
               R"("type": "vq", "head_dim": 5, "codebook_size": 4, "quantizer": "diveq", "num_heads": 2)", 1},
      Grouping{
          R"("type": "kvm", "head_dim": 6, "chunk_size": 3, "state": {"mode": "fixed", "rows": 4}, "num_heads": 2,
                  "num_kv_heads": 1)",
          R"("type": "kvm", "head_dim": 6, "chunk_size": 3, "state": {"mode": "fixed", "rows": 4}, "num_heads": 2)",
          1});
  INFO(g.grouped);
  TestModel grouped(small_model_json(g.grouped), 3, 0.4), repeated(small_model_json(g.repeated), 4, 0.4);
  for (const auto& p : repeated.model->params().all()) {
    if (p->spec.kind == ParamKind::buffer) { continue; }
    const std::vector<double> values = grouped.get(grouped.param(p->name()));
    repeated.set(*p, repeat_blocks(values, g.groups, static_cast<size_t>(p->value.numel())));
  }
  const TraceInput input = random_input(2, 31, 29);
  for (const bool training : {true, false}) {
    const TraceOptions options = training ? with_grads() : reading();
    const TraceOutput a = grouped.run(input, options), b = repeated.run(input, options);
    check_close("logits", b.logits.values, a.logits.values, 1e-12);
    for (const auto& [name, gradient] : a.grads) {
      check_close(name, sum_blocks(b.grads.at(name).values, g.groups, gradient.values.size()), gradient.values, 1e-11);
    }
  }
}

TEST_CASE("with unit norms the scale of queries and keys does not matter", "[fast]") {
  const std::string mixer = GENERATE(
      as<std::string>(),
      R"("type": "attention", "num_heads": 2, "head_dim": 6, "qk_norm": "l2", "rope": {"theta": 30.0})",
      R"("type": "gdn", "num_heads": 2, "key_head_dim": 5, "value_head_dim": 7, "conv_size": 0, "activation": "none")",
      R"("type": "mesanet", "num_heads": 2, "key_head_dim": 5, "conv_size": 0, "activation": "none")");
  TestModel m(small_model_json(mixer), 8, 5.0);
  const TraceInput input = random_input(1, 20, 29);
  const std::vector<double> before = m.run(input).logits.values;
  for (const char* name : {"blocks.0.mixer.q_proj.weight", "blocks.1.mixer.k_proj.weight"}) {
    m.change(m.param(name), [](std::vector<double>& values) {
      for (size_t i = 0; i < values.size() / 2; ++i) { values[i] *= 3; }  // the first head
    });
  }
  // The 1e-6 inside the norm is all that scaling changes: vectors have lengths of order 10.
  check_close("logits", m.run(input).logits.values, before, 1e-6);
}
