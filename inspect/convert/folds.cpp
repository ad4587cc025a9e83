#include "inspect/convert/folds.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace hebb {
namespace {

std::string block_name(size_t i) { return "blocks." + std::to_string(i) + "."; }

void scale(Values& values, const std::string& name, double by) {
  values.change(name, [by](std::vector<double>& changed) {
    for (double& x : changed) { x *= by; }
  });
}

bool is_of(const Json& layer, const char* type) { return !layer.is_null() && layer.at("type") == Json(type); }

/// The last matrices of all branches take the factor.
Fold fold_residual_scale(Json& whole) {
  const double factor = whole.at("residual_scale").as_double();
  const size_t blocks = whole.at("blocks").items().size();
  whole.set("residual_scale", 1.0);
  return {fmt::format("residual_scale {}", factor), [=](Values& values) {
            for (size_t i = 0; i < blocks; ++i) {
              scale(values, block_name(i) + "mixer.o_proj.weight", factor);
              scale(values, block_name(i) + "ffn.down_proj.weight", factor);
            }
          }};
}

/// Rows of the table are normed once.
Fold fold_embed_norm(Json& whole) {
  const double eps = whole.at("norm_eps").as_double();
  const double offset = whole.at("norm") == Json("rms_unit_offset") ? 1.0 : 0.0;
  whole.set("embed_norm", false);
  return {"embed_norm", [=](Values& values) {
            values.change("embed.weight", [=, &file = values.file()](std::vector<double>& table) {
              const std::vector<double> weight = file.doubles("embed_norm.weight");
              const size_t d = weight.size();
              for (size_t row = 0; row < table.size(); row += d) {
                double squares = 0;
                for (size_t j = 0; j < d; ++j) { squares += table[row + j] * table[row + j]; }
                const double factor = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
                for (size_t j = 0; j < d; ++j) { table[row + j] *= factor * (offset + weight[j]); }
              }
            });
          }};
}

/// Norms of the blocks and the last one between weights and weights - 1.
Fold fold_norm(Json& whole, const char* to, double add) {
  const std::string from = whole.at("norm").as_string();
  const size_t blocks = whole.at("blocks").items().size();
  whole.set("norm", to);
  return {"norm " + from, [=](Values& values) {
            std::vector<std::string> names{"final_norm.weight"};
            for (size_t i = 0; i < blocks; ++i) {
              names.push_back(block_name(i) + "mixer_norm.weight");
              names.push_back(block_name(i) + "ffn_norm.weight");
            }
            for (const std::string& name : names) {
              values.change(name, [add](std::vector<double>& changed) {
                for (double& x : changed) { x += add; }
              });
            }
          }};
}

/// Every attention layer gets a gate for each channel: sigmoid(0) = 1/2 where it had none, a head's gate repeated.
Fold fold_gate(Json& whole) {
  struct Layer {
    std::string name;
    int64_t heads, head_dim;
    bool has_gate;
  };
  std::vector<Layer> layers;
  std::vector<Json>& blocks = whole.find("blocks")->items();
  for (size_t i = 0; i < blocks.size(); ++i) {
    Json& mixer = *blocks[i].find("mixer");
    if (!is_of(mixer, "attention") || mixer.at("gate") == Json("element")) { continue; }
    const Json& dim = mixer.at("value_head_dim").is_null() ? mixer.at("head_dim") : mixer.at("value_head_dim");
    layers.push_back(
        {block_name(i) + "mixer.", mixer.at("num_heads").as_int(), dim.as_int(), mixer.at("gate") == Json("head")});
    mixer.set("gate", "element");
  }
  const int64_t d = whole.at("hidden_size").as_int();
  return {"gate", [=](Values& values) {
            for (const Layer& layer : layers) {
              if (!layer.has_gate) { scale(values, layer.name + "o_proj.weight", 2); }
              const auto gates = [=, &file = values.file()] {
                std::vector<double> wide(static_cast<size_t>(layer.heads * layer.head_dim * d));
                if (!layer.has_gate) { return wide; }
                const std::vector<double> rows = file.doubles(layer.name + "gate_proj.weight");
                for (int64_t i = 0; i < layer.heads * layer.head_dim; ++i) {
                  std::copy_n(rows.begin() + i / layer.head_dim * d, d, wide.begin() + i * d);
                }
                return wide;
              };
              values.add(layer.name + "gate_proj.weight", gates, layer.name + "q_proj.weight");
            }
          }};
}

/// All convolutions of gdn layers get as many taps, the first of them 0; without a convolution the last is 1.
Fold fold_convolution(Json& whole, int64_t taps) {
  struct Layer {
    std::string name;
    int64_t keys, values, taps;
  };
  std::vector<Layer> layers;
  std::vector<Json>& blocks = whole.find("blocks")->items();
  for (size_t i = 0; i < blocks.size(); ++i) {
    Json& mixer = *blocks[i].find("mixer");
    if (!is_of(mixer, "gdn") || mixer.at("conv_size") == Json(taps)) { continue; }
    layers.push_back({block_name(i) + "mixer.", mixer.at("num_heads").as_int() * mixer.at("key_head_dim").as_int(),
                      mixer.at("num_value_heads").as_int() * mixer.at("value_head_dim").as_int(),
                      mixer.at("conv_size").as_int()});
    mixer.set("conv_size", taps);
  }
  return {
      "conv_size", [=](Values& values) {
        for (const Layer& layer : layers) {
          for (const auto& [path, channels] : {std::pair{"q", layer.keys}, {"k", layer.keys}, {"v", layer.values}}) {
            const std::string name = layer.name + path + "_conv.weight";
            const auto widened = [=, channels = channels, own_taps = layer.taps, &file = values.file()] {
              std::vector<double> wide(static_cast<size_t>(channels * taps));
              const std::vector<double> own =
                  own_taps > 0 ? file.doubles(name) : std::vector<double>(static_cast<size_t>(channels), 1);
              const int64_t width = std::max<int64_t>(own_taps, 1);
              for (int64_t c = 0; c < channels; ++c) {
                std::copy_n(own.begin() + c * width, width, wide.begin() + c * taps + taps - width);
              }
              return wide;
            };
            values.add(name, widened, layer.name + path + "_proj.weight");
          }
        }
      }};
}

}  // namespace

std::vector<Fold> fold_options(Json& whole, const std::string& type) {
  std::vector<Fold> folds;
  const std::vector<Json>& blocks = whole.at("blocks").items();
  const auto any = [&](const char* mixer, const char* key, const Json& but) {
    return std::any_of(blocks.begin(), blocks.end(), [&](const Json& block) {
      return is_of(block.at("mixer"), mixer) && !(block.at("mixer").at(key) == but);
    });
  };
  const bool is_rms = whole.at("norm") == Json("rms") || whole.at("norm") == Json("rms_unit_offset");
  if (!is_rms) { return folds; }
  if (!(whole.at("residual_scale") == Json(1.0))) { folds.push_back(fold_residual_scale(whole)); }
  // A tied head reads the table as it was.
  if (whole.at("embed_norm") == Json(true) && whole.at("tie_embeddings") == Json(false)) {
    folds.push_back(fold_embed_norm(whole));
  }
  if (type == "qwen3_5_text" || type == "qwen3_next") {
    if (whole.at("norm") == Json("rms")) { folds.push_back(fold_norm(whole, "rms_unit_offset", -1)); }
    if (any("attention", "gate", "element")) { folds.push_back(fold_gate(whole)); }
    int64_t taps = 0;
    bool is_uniform = true;
    const Json* first = nullptr;
    for (const Json& block : blocks) {
      if (!is_of(block.at("mixer"), "gdn")) { continue; }
      const Json& size = block.at("mixer").at("conv_size");
      first = first == nullptr ? &size : first;
      is_uniform = is_uniform && size == *first;
      taps = std::max(taps, size.as_int());
    }
    if (first != nullptr && (taps == 0 || !is_uniform)) {
      folds.push_back(fold_convolution(whole, std::max<int64_t>(taps, 2)));
    }
  } else if (whole.at("norm") == Json("rms_unit_offset")) {
    folds.push_back(fold_norm(whole, "rms", 1));
  }
  return folds;
}

}  // namespace hebb
