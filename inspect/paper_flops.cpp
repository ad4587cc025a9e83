#include "inspect/paper_flops.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace hebb {
namespace {

/// A layer in its block, with its resolved configuration.
struct Placed {
  const Layer* layer;
  std::string type, prefix;  // "gdn", "blocks.3.mixer."
  Json config;
  std::vector<const Param*> params;

  double number(const char* key) const { return config.at(key).as_double(); }
};

/// Of each layer: "blocks.3.mixer.q.weight" is one of "blocks.3.mixer.".
std::map<std::string_view, std::vector<const Param*>> params_of_layers(const Model& model) {
  std::map<std::string_view, std::vector<const Param*>> found;
  for (const auto& p : model.params().all()) {
    const std::string_view name = p->name();
    const size_t block = name.find('.'), role = name.find('.', block + 1), own = name.find('.', role + 1);
    if (name.starts_with("blocks.")) { found[name.substr(0, own + 1)].push_back(p.get()); }
  }
  return found;
}

std::vector<Placed> layers_of(const Model& model) {
  const auto params = params_of_layers(model);
  const Json definitions = Fields::write(model.config()).at("layers");
  std::vector<Placed> placed;
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    const BlockSpec spec = model.config().block(static_cast<int64_t>(i));
    const Model::Block& block = model.blocks()[i];
    const auto add = [&](const std::optional<std::string>& name, const Layer* layer, const char* role) {
      if (name) {
        const Json& definition = definitions.at(*name);
        const std::string prefix = fmt::format("blocks.{:d}.{}.", i, role);
        const auto own = params.find(prefix);
        placed.push_back({.layer = layer,
                          .type = definition.at("type").as_string(),
                          .prefix = prefix,
                          .config = definition,
                          .params = own == params.end() ? std::vector<const Param*>() : own->second});
      }
    };
    add(spec.memory, block.memory.get(), "memory");
    add(spec.mixer, block.mixer.get(), "mixer");
    add(spec.ffn, block.ffn.get(), "ffn");
  }
  return placed;
}

bool only(const std::vector<Placed>& layers, const std::set<std::string>& types) {
  return std::all_of(layers.begin(), layers.end(), [&](const Placed& l) { return types.count(l.type) > 0; });
}

double sum_numbers(const auto& params, const std::function<bool(const Param&)>& counts) {
  double n = 0;
  for (const auto& p : params) { n += counts(*p) ? static_cast<double>(p->spec.shape.numel()) : 0; }
  return n;
}

bool is_matrix(const Param& p) {
  return p.trained() && p.spec.shape.rank == 2 && !p.spec.memory_table && !p.spec.initial_state;
}
bool is_convolution(const Param& p) { return p.name().ends_with("_conv.weight"); }

/// Weights of the matrix that makes logits; the embedding is a look-up.
double head_weights(const Model& model) {
  return static_cast<double>(model.config().vocab_size) * static_cast<double>(model.config().hidden_size);
}

double fwpkm_accounting(const Model& model, const std::vector<Placed>& layers) {
  double weights = head_weights(model) + sum_numbers(model.params().all(), [](const Param& p) {
                     return p.name().starts_with("blocks.") && is_matrix(p);
                   });
  double extra = 0;
  for (const Placed& l : layers) {
    if (l.type == "pkm") {
      weights += sum_numbers(l.params, [&](const Param& p) { return p.name().starts_with(l.prefix + "keys"); });
    } else if (l.type == "fwmlp") {
      weights += sum_numbers(l.params,
                             [](const Param& p) { return p.spec.kind == ParamKind::fast && p.spec.shape.rank == 2; });
    } else if (l.type == "lact") {
      const double heads = l.number("num_fast_heads"), width = static_cast<double>(model.config().hidden_size) / heads;
      extra += 3 * 16.5 * width * width * heads;
    }
  }
  return 6 * weights + extra;
}

double sdm_accounting(const Model& model, const std::vector<Placed>& layers) {
  double forward = 2 * head_weights(model);
  for (const Placed& l : layers) {
    const double weights = sum_numbers(l.params, [](const Param& p) { return is_matrix(p) && !is_convolution(p); });
    forward += 2 * weights;
    if (l.type == "gdn") {
      const double heads = l.config.number_at("num_value_heads", l.number("num_heads"));
      forward += 6 * l.number("key_head_dim") * heads * l.number("value_head_dim");
    } else if (l.type == "mamba2") {
      forward += 4 * l.number("num_heads") * l.number("head_dim") * l.number("state_dim");
    }
  }
  return 3 * forward;
}

/// Attention and SDM cost what our own formulas say beyond their matrices.
double sdm_cores(const Model& model, const std::vector<Placed>& layers, int64_t length) {
  double forward = 0;
  for (const Placed& l : layers) {
    if (l.type == "attention" || l.type == "sdm") {
      forward += l.layer->flops_per_token(length) - 2 * sum_numbers(l.params, is_matrix);
    }
  }
  return 3 * forward;
}

double lingua_accounting(const Model& model, int64_t length) {
  const double parameters =
      sum_numbers(model.params().all(), [](const Param& p) { return p.trained() && !p.spec.initial_state; });
  const double width = static_cast<double>(model.config().hidden_size) * static_cast<double>(model.config().num_layers);
  return 6 * (parameters - head_weights(model)) + 7 * static_cast<double>(length) * width;
}

/// Share of the tokens that a HAM layer keeps.
double kept_share(const Json& threshold) {
  const std::string mode = threshold.at("mode").as_string();
  return mode == "all" ? 1 : mode == "none" ? 0 : threshold.at("target").as_double();
}

double ham_layer(const Placed& l, double d, double length) {
  const Json &rnn = l.config.at("rnn"), &kv = l.config.at("kv");
  const double hr = rnn.at("num_heads").as_double(), kr = rnn.at("key_head_dim").as_double(),
               vr = rnn.at("value_head_dim").as_double();
  const double hk = kv.at("num_heads").as_double(), vk = kv.at("value_head_dim").as_double();
  const double qk = hr * kr, v = hr * vr, c = l.number("chunk_size"), taps = l.number("conv_size"), wide = 2 * qk + v;
  const double kept = kept_share(l.config.at("threshold")) * length;
  const double selection = l.config.at("router").at("type").as_string() == "prediction_error" ? 12 * d : 2 * d;
  return 4 * d + 2 * d * wide + 8 * wide + 2 * (2 * taps + 3) * wide + selection +
         hr * (8 * d + 1 + 3.5 * c + c * c / 2) + 6 * c * qk + 4 * c * v + 6 * qk * vr + 4 * qk +
         kept * (qk + v + 2 * hk) + 4 * (vr + vk) + 2 * d * v + v + 2 * d * (hr + hk) + 2 * v + 2 * v * d;
}

double ham_accounting(const Model& model, const std::vector<Placed>& layers, int64_t length) {
  const double d = static_cast<double>(model.config().hidden_size), t = static_cast<double>(length);
  double forward = 4 * head_weights(model) + 4 * d;
  for (const Placed& l : layers) {
    if (l.type == "ham") {
      forward += ham_layer(l, d, t);
    } else if (l.type == "swiglu") {
      forward += l.number("intermediate_size") * (6 * d + 4);
    } else {  // full attention: norm, projections, rotation of queries and keys, scores and reading, output
      const double heads = l.number("num_heads"), width = heads * l.number("head_dim");
      forward += 4 * d + 2 * d * 3 * width + 12 * width + t * (2 * width + 2 * heads) + 2 * d * width;
    }
  }
  return 3 * forward;
}

bool is_full_attention(const Placed& l) {
  const int64_t heads = l.config.at("num_heads").as_int();
  return l.config.integer_at("window", 0) == 0 && l.config.integer_at("num_kv_heads", heads) == heads;
}

}  // namespace

std::vector<PaperFlops> paper_flops(const Model& model, int64_t length) {
  const std::vector<Placed> layers = layers_of(model);
  std::vector<PaperFlops> found;
  if (only(layers, {"gdn", "attention", "swiglu", "pkm", "fwpkm", "fwmlp", "lact"})) {
    found.push_back({"fwpkm", fwpkm_accounting(model, layers)});
  }
  if (only(layers, {"attention", "gdn", "mamba2", "sdm", "swiglu"})) {
    found.push_back({"sdm", sdm_accounting(model, layers) + sdm_cores(model, layers, length)});
    found.push_back({"lingua", lingua_accounting(model, length)});
  }
  const bool is_full = std::all_of(layers.begin(), layers.end(),
                                   [](const Placed& l) { return l.type != "attention" || is_full_attention(l); });
  if (only(layers, {"ham", "attention", "swiglu"}) && is_full) {
    found.push_back({"ham", ham_accounting(model, layers, length)});
  }
  return found;
}

}  // namespace hebb
