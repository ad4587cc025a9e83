#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/norm/norm.h"
#include "layers/layer.h"

namespace hebb {

/// One entry of `pattern`, or of `at` (there every member is optional).
struct BlockSpec {
  std::optional<std::string> mixer, ffn, memory;
};
void fields(Fields& f, BlockSpec& b);

struct LayerDefinition {
  std::string name, type;
  Role role = Role::mixer;
  std::unique_ptr<LayerConfig> config;
};

/// The `model` object (docs/model.md).
struct ModelConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_layers = 0;
  double norm_eps = 1e-5;
  std::string norm = "rms";
  bool tie_embeddings = false, embed_norm = false;
  double residual_scale = 1.0, init_std = 0.02;
  std::string init = "normal";          // gptalpha2: docs/model.md, Initial values
  std::vector<LayerDefinition> layers;  // in file order
  std::vector<BlockSpec> pattern;
  std::map<int64_t, BlockSpec> at;

  NormKind norm_kind() const;
  /// Initial values of projections, and of a mixer's last one, where the layer's page leaves them to the model:
  /// normal(init_std); "gptalpha2": uniform in +-hidden_size^(-1/2), and 0.
  Init projection_init() const;
  Init output_init() const;
  const LayerDefinition* find(const std::string& name) const;
  /// Block i: the pattern entry, with `at` merged over it.
  BlockSpec block(int64_t i) const;
  /// Names of definitions that no block uses.
  std::vector<std::string> unused() const;
  /// A line for each definition, and one for the end of the pattern, that no block uses; else "".
  std::string unused_text() const;
};
void fields(Fields& f, ModelConfig& m);

}  // namespace hebb
