#include "study/shrink_sizes.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace hebb {
namespace {

constexpr int64_t kWidthMultiple = 8, kSmallestHead = 16, kSmallestRank = 4;
constexpr int64_t kSmallestSubkeys = 4, kFewestSlots = 2;  // a softmax over one slot learns nothing

void shrink_width(Json& object, const char* key, double factor, int64_t least = kSmallestWidth) {
  const int64_t multiple = least < kWidthMultiple ? 1 : kWidthMultiple;
  set_size(object, key, scaled(size_at(object, key), factor, multiple, least));
}

/// Numbers of heads that keep their ratios (query and key heads, say) and sizes of heads that keep theirs. Sizes shrink
/// first: so the states of recurrences shrink as parameters do. Below 16 channels the heads become fewer.
class Heads {
 public:
  void count(Json& object, const char* key) { add(counts_, object, key); }
  void size(Json& object, const char* key) { add(sizes_, object, key); }

  /// Returns the factor of the sizes.
  double shrink(double factor) {
    const int64_t heads = common(counts_), unit = common(sizes_);
    if (heads == 0 || unit == 0) { return 1; }
    const int64_t smallest = least(sizes_), multiple = kWidthMultiple / std::gcd(kWidthMultiple, smallest / unit);
    const int64_t floor = (kSmallestHead * unit + smallest - 1) / smallest;
    const int64_t new_unit = scaled(unit, factor, multiple, floor);
    const double rest = factor * static_cast<double>(unit) / static_cast<double>(floor);
    const int64_t new_heads = scaled(heads, floor < unit ? std::min(1.0, rest) : factor, 1, 1);
    for (const Place& p : counts_) { set_size(*p.object, p.key, p.value / heads * new_heads); }
    for (const Place& p : sizes_) { set_size(*p.object, p.key, p.value / unit * new_unit); }
    return static_cast<double>(new_unit) / static_cast<double>(unit);
  }

 private:
  struct Place {
    Json* object;
    const char* key;
    int64_t value;
  };
  static void add(std::vector<Place>& places, Json& object, const char* key) {
    if (const int64_t value = size_at(object, key); value > 0) { places.push_back({&object, key, value}); }
  }
  static int64_t common(const std::vector<Place>& places) {
    int64_t g = 0;
    for (const Place& p : places) { g = std::gcd(g, p.value); }
    return g;
  }
  static int64_t least(const std::vector<Place>& places) {
    int64_t value = places.front().value;
    for (const Place& p : places) { value = std::min(value, p.value); }
    return value;
  }

  std::vector<Place> counts_, sizes_;
};

void shrink_rope(Json& object, double factor) {
  Json* rope = object.find("rope");
  if (rope == nullptr || !rope->is_object()) { return; }
  const Json* endpoint = rope->find("endpoint");
  const int64_t least = endpoint != nullptr && endpoint->is_bool() && endpoint->as_bool() ? 4 : 2;
  set_size(*rope, "dims", scaled(size_at(*rope, "dims"), factor, 2, least));
}

void shrink_heads(Json& layer, double width) {
  Heads heads;
  for (const char* key : {"num_heads", "num_kv_heads", "num_value_heads", "num_groups", "norm_groups"}) {
    heads.count(layer, key);
  }
  for (const char* key : {"head_dim", "key_head_dim", "value_head_dim", "state_dim"}) { heads.size(layer, key); }
  shrink_rope(layer, heads.shrink(width));
}

/// Both paths have equally many channels, so their heads shrink together.
void shrink_ham(Json& layer, double width) {
  Heads heads;
  Json &rnn = *layer.find("rnn"), &kv = *layer.find("kv");
  for (Json* path : {&rnn, &kv}) {
    heads.count(*path, "num_heads");
    heads.size(*path, "key_head_dim");
    heads.size(*path, "value_head_dim");
  }
  shrink_rope(kv, heads.shrink(width));
  if (Json* router = layer.find("router"); router != nullptr && router->is_object()) {
    shrink_width(*router, "hidden", width);
  }
}

/// The largest divisor of `size` that is at most `count` and leaves an even quotient of at least `least`.
int64_t divisor(int64_t size, int64_t count, int64_t least) {
  for (int64_t n = count; n > 1; --n) {
    if (size % n == 0 && size / n % 2 == 0 && size / n >= least) { return n; }
  }
  return 1;
}

void shrink_lact(Json& layer, double width, int64_t hidden) {
  set_size(layer, "num_heads", divisor(hidden, size_at(layer, "num_heads"), kSmallestHead));
  set_size(layer, "num_fast_heads", divisor(hidden, size_at(layer, "num_fast_heads"), kWidthMultiple));
  shrink_width(layer, "fast_dim", width, kWidthMultiple);
  shrink_width(layer, "rank", width, kSmallestRank);
  if (Json* rope = layer.find("rope"); rope != nullptr && rope->is_object() && size_at(*rope, "dims") > 0) {
    set_size(*rope, "dims", hidden / size_at(layer, "num_heads"));
  }
}

/// How many slots are read or written per token goes with the sub-keys, of which there are as many as the root of the
/// slots.
void shrink_reads(Json& layer, const char* key, double lengths) {
  const int64_t count = size_at(layer, key);
  set_size(layer, key, scaled(count, std::sqrt(lengths), 1, std::min(count, kFewestSlots)));
}

void shrink_sdm(Json& layer, double width, double lengths, int64_t hidden) {
  const int64_t subkeys = std::llround(std::sqrt(static_cast<double>(size_at(layer, "slots_per_head"))));
  const int64_t fewer = scaled(subkeys, std::sqrt(lengths), 1, kSmallestSubkeys);
  set_size(layer, "slots_per_head", fewer * fewer);
  shrink_reads(layer, "num_writes", lengths);
  shrink_reads(layer, "num_reads", lengths);
  if (size_at(layer, "value_head_dim") > 0) {
    shrink_width(layer, "value_head_dim", width);
  } else {
    set_size(layer, "num_heads", divisor(hidden, size_at(layer, "num_heads"), 2));
  }
}

void shrink_product_keys(Json& layer, double lengths) {
  set_size(layer, "num_subkeys", scaled(size_at(layer, "num_subkeys"), std::sqrt(lengths), 1, kSmallestSubkeys));
  shrink_reads(layer, "top_k", lengths);
}

/// Rows a t^p of `power`: a is chosen so that the rows at the end of a row of tokens shrink as its length does.
void shrink_state(Json& state, const ShrinkScale& scale) {
  for (const char* key : {"rows", "limit", "min_rows", "multiple", "max_rows"}) { shrink_length(state, key, scale); }
  const Json *factor = state.find("factor"), *exponent = state.find("exponent");
  if (factor != nullptr && factor->is_number() && exponent != nullptr && exponent->is_number() && scale.lengths < 1) {
    state.set("factor", Json(factor->as_double() * std::pow(scale.lengths, 1 - exponent->as_double())));
  }
}

void shrink_layer(Json& layer, double width, const ShrinkScale& scale, int64_t hidden) {
  const std::string type = layer.at("type").as_string();
  const auto is = [&](std::initializer_list<std::string_view> types) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  if (is({"attention", "kvm", "ovq", "vq", "gdn", "mamba2", "mesanet"})) { shrink_heads(layer, width); }
  if (is({"ham"})) { shrink_ham(layer, width); }
  if (is({"lact"})) { shrink_lact(layer, width, hidden); }
  if (is({"sdm"})) { shrink_sdm(layer, width, scale.lengths, hidden); }
  if (is({"pkm", "fwpkm"})) { shrink_product_keys(layer, scale.lengths); }
  if (is({"pkm", "fwpkm", "fwmlp"})) {
    for (const char* key : {"key_dim", "value_dim", "fast_dim"}) { shrink_width(layer, key, width); }
  }
  shrink_width(layer, "intermediate_size", width);
  const Json* residual = layer.find("value_residual");
  if (residual != nullptr && *residual == Json("gated")) {
    shrink_width(layer, "value_residual_rank", width, kSmallestRank);
  }
  for (const char* key : {"window", "growth_length", "max_centroids", "eval_max_centroids", "codebook_size"}) {
    shrink_length(layer, key, scale);
  }
  if (has_chunks(type)) { shrink_length(layer, "chunk_size", scale); }
  if (Json* window = layer.find("block_window"); window != nullptr && window->is_object()) {
    shrink_length(*window, "size", scale);
  }
  if (Json* state = layer.find("state"); type == "kvm" && state != nullptr) { shrink_state(*state, scale); }
}

/// Whole periods become fewer; the blocks behind the last one stay, so a stack ends as it did.
struct Depth {
  int64_t layers, body, period, periods, fewer;

  Depth(int64_t num_layers, const ShrinkScale& scale)
      : layers(num_layers),
        body(num_layers - num_layers % scale.tail),
        period(scale.period),
        periods(body / scale.period),
        fewer(periods > 0 && scale.width < 1 ? scaled(periods,
                                                      std::sqrt(scale.width) * static_cast<double>(body) /
                                                          static_cast<double>(periods * scale.period),
                                                      1, 1)
                                             : 0) {}
  bool stays() const { return fewer == 0; }
  int64_t shrunken() const { return stays() ? layers : fewer * period + layers - body; }
  /// Where block i stands now: at the same place of its period.
  int64_t block(int64_t i) const {
    return stays()     ? i
           : i >= body ? fewer * period + i - body
                       : std::min(i / period, periods - 1) * fewer / periods * period + i % period;
  }
};

void shrink_depth(Json& model, const ShrinkScale& scale) {
  const int64_t layers = size_at(model, "num_layers");
  const Depth depth(layers, scale);
  set_size(model, "num_layers", depth.shrunken());
  Json* at = model.find("at");
  if (at == nullptr || !at->is_object()) { return; }
  Json moved = Json::object();
  for (const auto& [block, changes] : at->members()) {
    const std::string to = std::to_string(depth.block(std::stoll(block)));
    Json merged = moved.find(to) != nullptr ? moved.at(to) : Json::object();
    for (const auto& [key, name] : changes.members()) {
      if (const Json* other = merged.find(key); other != nullptr && !(*other == name)) {
        throw ConfigError("model.at." + block + "." + key, name.found(),
                          other->found() + ", which block " + to + " of the shrunken model has already");
      }
      merged.set(key, name);
    }
    moved.set(to, merged);
  }
  *at = moved;
}

}  // namespace

bool has_chunks(const std::string& type) {
  static const std::vector<std::string> types = {"ovq", "kvm", "fwpkm", "fwmlp", "lact"};
  return std::find(types.begin(), types.end(), type) != types.end();
}

int64_t scaled(int64_t value, double factor, int64_t multiple, int64_t least) {
  const double exact = static_cast<double>(value) * factor / static_cast<double>(multiple);
  return std::min(value, std::max(least, static_cast<int64_t>(std::llround(exact)) * multiple));
}

int64_t size_at(const Json& object, const char* key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_integer() ? std::max<int64_t>(0, value->as_int()) : 0;
}

void set_size(Json& object, const char* key, int64_t value) {
  if (Json* old = object.find(key); old != nullptr && old->is_integer() && old->as_int() > 0) { *old = Json(value); }
}

void shrink_length(Json& object, const char* key, const ShrinkScale& scale) {
  set_size(object, key, scaled(size_at(object, key), scale.lengths, 1, 1));
}

void shrink_model(Json& model, const ShrinkScale& scale) {
  const int64_t old = size_at(model, "hidden_size"), hidden = scaled(old, scale.width, kWidthMultiple, kSmallestWidth);
  const double width = static_cast<double>(hidden) / static_cast<double>(old);
  set_size(model, "hidden_size", hidden);
  shrink_depth(model, scale);
  for (auto& [name, layer] : model.find("layers")->members()) { shrink_layer(layer, width, scale, hidden); }
}

}  // namespace hebb
