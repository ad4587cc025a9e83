#include "inspect/convert/names.h"

#include <optional>
#include <string_view>
#include <utility>

#include "inspect/convert/classes.h"

namespace hebb {
namespace {

/// Beginnings of names in hebb, and what stands there in a foreign checkpoint.
struct Naming {
  std::string_view embed, mixer_norm, mixer, ffn_norm, conv;
};
/// Of transformers (llama, mistral, qwen3).
constexpr Naming kTransformers{"embed_tokens.", "input_layernorm.", "self_attn.", "post_attention_layernorm.",
                               "_conv."};
/// Of flash-linear-attention (gated_deltanet).
constexpr Naming kFla{"embeddings.", "attn_norm.", "attn.", "mlp_norm.", "_conv1d."};

}  // namespace

std::string foreign_name(const std::string& name, const std::string& model_type) {
  const Naming& naming = model_type == kGatedDeltaNet ? kFla : kTransformers;
  const auto renamed = [](std::string_view whole, std::string_view from, std::string_view to) {
    return whole.starts_with(from) ? std::optional(std::string(to) + std::string(whole.substr(from.size())))
                                   : std::nullopt;
  };
  if (name == "lm_head.weight") { return name; }
  if (const auto embed = renamed(name, "embed.", naming.embed)) { return "model." + *embed; }
  if (const auto norm = renamed(name, "final_norm.", "norm.")) { return "model." + *norm; }
  constexpr std::string_view kBlocks = "blocks.";
  const size_t rest = name.find('.', kBlocks.size()) + 1;
  std::string tail = name.substr(rest);
  for (const auto& [from, to] : {std::pair<std::string_view, std::string_view>{"mixer_norm.", naming.mixer_norm},
                                 {"mixer.", naming.mixer},
                                 {"ffn_norm.", naming.ffn_norm},
                                 {"ffn.", "mlp."}}) {
    if (const auto found = renamed(tail, from, to)) {
      tail = *found;
      break;
    }
  }
  if (const size_t at = tail.find("_conv."); at != std::string::npos) { tail.replace(at, 6, naming.conv); }
  return "model.layers." + name.substr(kBlocks.size(), rest - kBlocks.size()) + tail;
}

namespace {

/// Taps of convolutions are [channels, taps] in hebb and [channels, 1, taps] elsewhere.
bool has_middle_one(const std::string& name) { return name.ends_with("_conv.weight"); }

}  // namespace

Shape foreign_shape(const ExpectedTensor& e) {
  return has_middle_one(e.name) ? Shape{e.shape[0], 1, e.shape[1]} : e.shape;
}

bool is_computed(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

}  // namespace hebb
