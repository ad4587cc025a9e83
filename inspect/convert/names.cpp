#include "inspect/convert/names.h"

#include <map>
#include <optional>
#include <utility>

#include "inspect/convert/classes.h"

namespace hebb {
namespace {

/// Beginnings of names in hebb, and what stands there in a foreign checkpoint.
struct Naming {
  std::string_view embed, mixer_norm, mixer, ffn_norm, conv;
};
/// Of transformers.
constexpr Naming kTransformers{"embed_tokens.", "input_layernorm.", "self_attn.", "post_attention_layernorm.",
                               "_conv."};
/// Of flash-linear-attention (gated_deltanet).
constexpr Naming kFla{"embeddings.", "attn_norm.", "attn.", "mlp_norm.", "_conv1d."};

/// "blocks.3." and what follows it in the name of a block's tensor.
std::optional<std::pair<std::string, std::string>> block_parts(const std::string& name) {
  constexpr std::string_view kBlocks = "blocks.";
  if (!name.starts_with(kBlocks)) { return std::nullopt; }
  const size_t rest = name.find('.', kBlocks.size()) + 1;
  return std::pair{name.substr(kBlocks.size(), rest - kBlocks.size()), name.substr(rest)};
}

/// The foreign name of a tensor of hebb that is there as it is.
std::string foreign_name(const std::string& name, const Naming& naming) {
  const auto renamed = [](std::string_view whole, std::string_view from, std::string_view to) {
    return whole.starts_with(from) ? std::optional(std::string(to) + std::string(whole.substr(from.size())))
                                   : std::nullopt;
  };
  if (name == "lm_head.weight") { return name; }
  if (const auto embed = renamed(name, "embed.", naming.embed)) { return "model." + *embed; }
  if (const auto norm = renamed(name, "final_norm.", "norm.")) { return "model." + *norm; }
  const auto parts = block_parts(name);
  HEBB_ASSERT(parts.has_value());
  std::string tail = parts->second;
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
  return "model.layers." + parts->first + tail;
}

/// Taps of convolutions are [channels, taps] in hebb and [channels, 1, taps] elsewhere.
Shape foreign_shape(const std::string& name, const Shape& shape) {
  return name.ends_with("_conv.weight") ? Shape{shape[0], 1, shape[1]} : shape;
}

/// Appends all rows of a tensor of hebb.
void append(Recipe& recipe, const ExpectedTensor& e) {
  const int64_t at = recipe.pieces.empty() ? 0 : recipe.shape[0];
  if (recipe.pieces.empty()) {
    recipe.shape = foreign_shape(e.name, e.shape);
  } else {
    recipe.shape.dims[0] += e.shape[0];
  }
  recipe.pieces.push_back({e.name, 0, e.shape[0], at});
}

/// Appends `rows` rows from `first`.
void append_rows(Recipe& recipe, const ExpectedTensor& e, int64_t first, int64_t rows) {
  append(recipe, e);
  recipe.shape.dims[0] += rows - e.shape[0];
  recipe.pieces.back().first = first;
  recipe.pieces.back().rows = rows;
}

/// The tensors of one block of qwen3_5_text and qwen3_next. Their norms are zero-centred, as those of hebb's
/// "rms_unit_offset"; so are the norms of queries and keys, which are plain in hebb.
class QwenBlock {
 public:
  QwenBlock(std::string type, const Json& mixer, std::string number)
      : type_(std::move(type)), mixer_(mixer), number_(std::move(number)) {}

  void add(const ExpectedTensor& e) { tensors_[block_parts(e.name)->second] = e; }

  void finish(std::vector<Recipe>& out) const {
    for (const auto& [tail, e] : tensors_) {
      if (tail.starts_with("mixer.")) { continue; }
      Recipe whole{foreign_name(e.name, kTransformers), {}, {}};
      append(whole, e);
      out.push_back(whole);
    }
    mixer_.at("type") == Json("gdn") ? gdn(out) : attention(out);
  }

 private:
  const ExpectedTensor& at(const std::string& name) const { return tensors_.at("mixer." + name); }
  int64_t size(const char* key) const { return mixer_.at(key).as_int(); }

  void emit(std::vector<Recipe>& out, const std::string& name, const std::vector<std::string>& parts,
            double add = 0) const {
    Recipe recipe{"model.layers." + number_ + name, {}, {}};
    for (const std::string& part : parts) { append(recipe, at(part)); }
    for (Piece& piece : recipe.pieces) { piece.add = add; }
    out.push_back(recipe);
  }

  /// q_proj holds a head's queries, then its gates.
  void attention(std::vector<Recipe>& out) const {
    Recipe q{"model.layers." + number_ + "self_attn.q_proj.weight", {}, {}};
    const int64_t dim = size("head_dim");
    for (int64_t h = 0; h < size("num_heads"); ++h) {
      append_rows(q, at("q_proj.weight"), h * dim, dim);
      append_rows(q, at("gate_proj.weight"), h * dim, dim);
    }
    out.push_back(q);
    for (const char* name : {"k_proj.weight", "v_proj.weight", "o_proj.weight"}) {
      emit(out, std::string("self_attn.") + name, {name});
    }
    for (const char* name : {"q_norm.weight", "k_norm.weight"}) {
      emit(out, std::string("self_attn.") + name, {name}, -1);
    }
  }

  void gdn(std::vector<Recipe>& out) const {
    if (type_ == "qwen3_next") {
      const int64_t heads = size("num_heads"), share = size("num_value_heads") / heads, key = size("key_head_dim"),
                    value = share * size("value_head_dim");
      Recipe qkvz{"model.layers." + number_ + "linear_attn.in_proj_qkvz.weight", {}, {}},
          ba{"model.layers." + number_ + "linear_attn.in_proj_ba.weight", {}, {}};
      for (int64_t h = 0; h < heads; ++h) {
        append_rows(qkvz, at("q_proj.weight"), h * key, key);
        append_rows(qkvz, at("k_proj.weight"), h * key, key);
        append_rows(qkvz, at("v_proj.weight"), h * value, value);
        append_rows(qkvz, at("g_proj.weight"), h * value, value);
        append_rows(ba, at("b_proj.weight"), h * share, share);
        append_rows(ba, at("a_proj.weight"), h * share, share);
      }
      out.push_back(qkvz);
      out.push_back(ba);
    } else {
      emit(out, "linear_attn.in_proj_qkv.weight", {"q_proj.weight", "k_proj.weight", "v_proj.weight"});
      emit(out, "linear_attn.in_proj_z.weight", {"g_proj.weight"});
      emit(out, "linear_attn.in_proj_b.weight", {"b_proj.weight"});
      emit(out, "linear_attn.in_proj_a.weight", {"a_proj.weight"});
    }
    emit(out, "linear_attn.conv1d.weight", {"q_conv.weight", "k_conv.weight", "v_conv.weight"});
    emit(out, "linear_attn.A_log", {"A_log"});
    emit(out, "linear_attn.dt_bias", {"dt_bias"});
    emit(out, "linear_attn.norm.weight", {"o_norm.weight"});
    emit(out, "linear_attn.out_proj.weight", {"o_proj.weight"});
  }

  std::string type_;
  const Json& mixer_;
  std::string number_;
  std::map<std::string, ExpectedTensor> tensors_;
};

}  // namespace

std::vector<Recipe> foreign_tensors(const std::string& type, const ModelConfig& model,
                                    const std::vector<ExpectedTensor>& expected) {
  const Naming& naming = type == kGatedDeltaNet ? kFla : kTransformers;
  const bool is_qwen = type == "qwen3_5_text" || type == "qwen3_next";
  const Json whole = written_out(model);
  const std::vector<Json>& blocks = whole.at("blocks").items();
  std::vector<Recipe> found;
  std::map<std::string, QwenBlock> qwen;
  for (const ExpectedTensor& e : expected) {
    const auto parts = block_parts(e.name);
    if (is_qwen && parts) {
      const Json& mixer = blocks[std::stoul(parts->first)].at("mixer");
      qwen.try_emplace(parts->first, type, mixer, parts->first).first->second.add(e);
      continue;
    }
    Recipe recipe{foreign_name(e.name, naming), {}, {}};
    append(recipe, e);
    found.push_back(recipe);
    // Biases that hebb has not.
    const bool is_projection = e.name.ends_with(".mixer.q_proj.weight") || e.name.ends_with(".mixer.k_proj.weight") ||
                               e.name.ends_with(".mixer.v_proj.weight");
    if (type == "qwen2" && is_projection) {
      found.push_back({recipe.name.substr(0, recipe.name.size() - 6) + "bias", {e.shape[0]}, {}});
    }
  }
  for (const auto& [number, block] : qwen) { block.finish(found); }
  return found;
}

std::vector<Recipe> inverted(const std::vector<Recipe>& foreign, const std::vector<ExpectedTensor>& expected) {
  std::map<std::string, std::vector<Piece>> pieces;
  for (const Recipe& recipe : foreign) {
    for (const Piece& p : recipe.pieces) { pieces[p.name].push_back({recipe.name, p.at, p.rows, p.first, -p.add}); }
  }
  std::vector<Recipe> found;
  for (const ExpectedTensor& e : expected) { found.push_back({e.name, e.shape, pieces.at(e.name)}); }
  return found;
}

bool is_ignored(const std::string& type, std::string_view name) {
  if (name.ends_with("rotary_emb.inv_freq")) { return true; }
  if (type == kGatedDeltaNet) { return name.ends_with(".attn.D"); }
  const bool is_qwen = type == "qwen3_5_text" || type == "qwen3_next";
  return is_qwen && (name.starts_with("mtp.") || name.starts_with("model.visual."));
}

}  // namespace hebb
