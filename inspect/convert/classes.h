#pragma once
#include <optional>
#include <string>
#include <vector>

#include "inspect/convert/hf_config.h"
#include "layers/model_config.h"

namespace hebb {

inline constexpr const char* kGatedDeltaNet = "gated_deltanet";
inline constexpr int64_t kGatedDeltaNetPositions = 2048;  // max_position_embeddings where it is absent

/// A class of transformers, with what its configuration class (5.24) fills in for absent keys.
struct TransformersClass {
  const char *type, *architecture;
  int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads;
  int64_t num_kv_heads;  // 0: num_heads
  int64_t head_dim;      // 0: hidden_size / num_heads
  int64_t positions;     // max_position_embeddings
  double theta;
  bool is_tied;
};
const std::vector<TransformersClass>& transformers_classes();
/// Null for a model type that is not among them.
const TransformersClass* find_transformers_class(const std::string& type);

/// A foreign model block by block. `model` lacks the members layers and pattern; every block has the same `ffn`.
struct ForeignModel {
  Json model;
  std::vector<Json> mixers;
  Json ffn;
};
/// The `model` object: definitions with names, and the shortest pattern.
Json assembled(const ForeignModel& foreign);

/// num_hidden_layers.
int64_t num_layers_of(HfConfig& config, int64_t absent);

ForeignModel read_transformers(HfConfig& config, const TransformersClass& c);
/// flash-linear-attention's gated_deltanet: `gdn` in every block but those of `attn`, with the library's defaults.
ForeignModel read_gated_deltanet(HfConfig& config);

/// The `rope` object of the layers of `layer_type` among `layer_types` (empty: the class has none); null where no
/// channel rotates. Read are `rope_parameters` of files since transformers 5 and `rope_theta`, `rope_scaling` of those
/// before; two that contradict each other are an error. partial: the absent partial_rotary_factor; nothing where the
/// class has no such thing.
Json rope_of_hf(HfConfig& config, const TransformersClass& c, int64_t head_dim, std::optional<double> partial,
                const std::vector<std::string>& layer_types, const std::string& layer_type);
/// The keys with rotary parameters, where files before and since transformers 5 have them. rope: of an attention layer,
/// null where nothing rotates. partial: whether the class may rotate a part of a head.
void write_rope(const Json& rope, int64_t head_dim, bool partial, Json& hf);

/// x so that factor * x, cut to an integer, is `product`: their quotient, or where its rounding is too low the next
/// double.
double product_to(int64_t factor, int64_t product);

/// Model objects with every default filled in, one entry a block, without what matters to initial values or speed
/// alone.
Json written_out(const ModelConfig& model);

/// Keys of a foreign configuration. whole: a model written out; what the class cannot say is left out.
void write_transformers(const Json& whole, const TransformersClass& c, int64_t length, Json& hf);
void write_gated_deltanet(const Json& whole, Json& hf);

/// The mixers of a type in a model written out, each different one once.
std::vector<Json> mixers_of_type(const Json& whole, const char* type);

}  // namespace hebb
