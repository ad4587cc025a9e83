#pragma once
#include <string>

#include "inspect/convert/hf_config.h"
#include "layers/model_config.h"

namespace hebb {

inline constexpr const char* kGatedDeltaNet = "gated_deltanet";

/// The `rope` object of a foreign configuration: `rope_parameters` of files since transformers 5, `rope_theta` and
/// `rope_scaling` of those before.
Json rope_of_hf(HfConfig& config);
/// `rope` of an attention layer. Errors: ConfigError where it has none.
const Json& rope_in(const Json& attention);

/// Members of `model` from a configuration of llama, mistral or qwen3: `attention` and its place in every block.
void add_transformer(HfConfig& config, const std::string& type, Json& model);
/// The reverse: keys of such a configuration.
void add_transformer_keys(const ModelConfig& model, const Json& attention, const std::string& type, Json& hf);

/// Members of `model` from a configuration of flash-linear-attention's gated_deltanet: `gdn` in every block but those
/// of `attn`, with the library's defaults.
void add_gated_deltanet(HfConfig& config, Json& model);
/// The reverse. blocks: of the model, written out; attention: that of its blocks, or null.
void add_gated_deltanet_keys(const ModelConfig& model, const Json& gdn, const Json* attention, const Json& blocks,
                             Json& hf);

}  // namespace hebb
