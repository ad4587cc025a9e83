#include "study/ladder/shrink_sizes.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "layers/layer.h"

namespace hebb {
namespace {

constexpr int64_t kWidthMultiple = 8;
constexpr double kFastestRate = 0.01;

/// A number of a layer definition, and what becomes of it.
struct Size {
  Json* object;
  std::string key;
  Scaling scaling;

  const Json& json() const { return object->at(key); }
  int64_t value() const { return size_at(*object, key); }
  void set(int64_t value) const { set_size(*object, key, value); }
};

/// An element of model.layers.
struct Definition {
  std::string type;
  std::unique_ptr<LayerConfig> config;
};
void fields(Fields& f, Definition& definition) {
  f.type_tag(definition.type, {definition.type});
  definition.config->fields(f);
}

/// The sizes of a layer, as the fields of its type declare them.
std::vector<Size> sizes_of(Json& layer) {
  const std::string& type = layer.at("type").as_string();
  Definition definition{type, find_layer_type(type)->make()};
  Fields::read(layer, "layer", definition);
  std::vector<Size> sizes;
  for (const Fields::Description& field : Fields::describe_value("", definition)) {
    const auto member = [](Json* object, std::string_view key) {
      return object != nullptr && object->is_object() ? object->find(key) : nullptr;
    };
    Json* object = &layer;
    std::string_view key = field.path;
    for (size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.')) {
      object = member(object, key.substr(0, dot));
      key.remove_prefix(dot + 1);
    }
    const Json* value = member(object, key);
    if (field.scaling.kind != Scaling::Kind::none && value != nullptr && value->is_number()) {
      sizes.push_back({object, std::string(key), field.scaling});
    }
  }
  return sizes;
}

std::vector<Size> of_kind(const std::vector<Size>& sizes, Scaling::Kind kind) {
  std::vector<Size> found;
  std::copy_if(sizes.begin(), sizes.end(), std::back_inserter(found),
               [&](const Size& size) { return size.scaling.kind == kind && size.value() > 0; });
  return found;
}

/// Numbers of heads keep their ratios (query and key heads, say), and so do sizes of heads. Sizes shrink first: so the
/// states of recurrences shrink as parameters do. Below 16 channels the heads become fewer. Returns the factor of the
/// sizes.
double shrink_heads(const std::vector<Size>& sizes, double factor) {
  const std::vector<Size> counts = of_kind(sizes, Scaling::Kind::heads),
                          channels = of_kind(sizes, Scaling::Kind::head_channels);
  if (counts.empty() || channels.empty()) { return 1; }
  const auto common = [](const std::vector<Size>& places) {
    return std::accumulate(places.begin(), places.end(), int64_t{0},
                           [](int64_t g, const Size& size) { return std::gcd(g, size.value()); });
  };
  const int64_t heads = common(counts), unit = common(channels);
  const int64_t smallest = std::min_element(channels.begin(), channels.end(), [](const Size& a, const Size& b) {
                             return a.value() < b.value();
                           })->value();
  const int64_t multiple = kWidthMultiple / std::gcd(kWidthMultiple, smallest / unit);
  const int64_t floor = (scaling::kLeastChannels * unit + smallest - 1) / smallest;
  const int64_t new_unit = scaled(unit, factor, multiple, floor);
  const double rest = factor * static_cast<double>(unit) / static_cast<double>(floor);
  const int64_t new_heads = scaled(heads, floor < unit ? std::min(1.0, rest) : factor, 1, 1);
  for (const Size& size : counts) { size.set(size.value() / heads * new_heads); }
  for (const Size& size : channels) { size.set(size.value() / unit * new_unit); }
  return static_cast<double>(new_unit) / static_cast<double>(unit);
}

/// The largest divisor of `size` that is at most `count` and leaves an even quotient of at least `least`.
int64_t divisor(int64_t size, int64_t count, int64_t least) {
  for (int64_t n = count; n > 1; --n) {
    if (size % n == 0 && size / n % 2 == 0 && size / n >= least) { return n; }
  }
  return 1;
}

/// Heads into which `from` channels were divided divide `to` channels now. Returns the factor of the channels of the
/// first ones.
double shrink_heads_of_width(const std::vector<Size>& sizes, int64_t from, int64_t to) {
  double factor = 1;
  const std::vector<Size> counts = of_kind(sizes, Scaling::Kind::heads_of_width);
  for (const Size& count : counts) {
    const int64_t old = count.value();
    count.set(divisor(to, old, count.scaling.least));
    if (&count == counts.data()) {
      factor = static_cast<double>(to) / static_cast<double>(count.value()) * static_cast<double>(old) /
               static_cast<double>(from);
    }
  }
  return factor;
}

void shrink_length(const Size& size, double lengths) {
  const double factor = std::pow(lengths, size.scaling.power);
  if (!size.json().is_integer()) {
    if (lengths < 1) { size.object->set(size.key, Json(size.json().as_double() * factor)); }
  } else if (size.scaling.kind == Scaling::Kind::square) {
    const int64_t root = std::llround(std::sqrt(static_cast<double>(size.value())));
    const int64_t fewer = scaled(root, factor, 1, size.scaling.least);
    size.set(fewer * fewer);
  } else {
    size.set(scaled(size.value(), factor, 1, size.scaling.least));
  }
}

/// A model of `from` channels has `to` now.
void shrink_layer(Json& layer, int64_t from, int64_t to, double lengths) {
  const double width = static_cast<double>(to) / static_cast<double>(from);
  const std::vector<Size> sizes = sizes_of(layer);
  const double channels = shrink_heads(sizes, width) * shrink_heads_of_width(sizes, from, to);
  for (const Size& size : sizes) {
    switch (size.scaling.kind) {
      case Scaling::Kind::rope_channels: size.set(scaled(size.value(), channels, 2, size.scaling.least)); break;
      case Scaling::Kind::channels:
        size.set(
            scaled(size.value(), width, size.scaling.least < kWidthMultiple ? 1 : kWidthMultiple, size.scaling.least));
        break;
      case Scaling::Kind::length:
      case Scaling::Kind::square: shrink_length(size, lengths); break;
      default: break;
    }
  }
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

int64_t scaled(int64_t value, double factor, int64_t multiple, int64_t least) {
  const double exact = static_cast<double>(value) * factor / static_cast<double>(multiple);
  return std::min(value, std::max(least, static_cast<int64_t>(std::llround(exact)) * multiple));
}

int64_t size_at(const Json& object, std::string_view key) { return std::max<int64_t>(0, object.integer_at(key, 0)); }

void set_size(Json& object, std::string_view key, int64_t value) {
  if (Json* old = object.find(key); old != nullptr && old->is_integer() && old->as_int() > 0) { *old = Json(value); }
}

void shrink_length(Json& object, const char* key, const ShrinkScale& scale) {
  set_size(object, key, scaled(size_at(object, key), scale.lengths, 1, 1));
}

double shortest_window(const Json& layer) {
  double shortest = std::numeric_limits<double>::infinity();
  Json copy = layer;
  for (const Size& size : sizes_of(copy)) {
    if (size.scaling.is_window && size.value() > 0) {
      shortest = std::min(shortest, static_cast<double>(size.value()));
    }
  }
  return shortest;
}

void shrink_model(Json& model, const ShrinkScale& scale) {
  const int64_t old = size_at(model, "hidden_size"), hidden = scaled(old, scale.width, kWidthMultiple, kSmallestWidth);
  set_size(model, "hidden_size", hidden);
  shrink_depth(model, scale);
  for (auto& [name, layer] : model.find("layers")->members()) { shrink_layer(layer, old, hidden, scale.lengths); }
}

void scale_steps(Json& layer, double factor) {
  for (const Size& size : sizes_of(layer)) {
    if (size.scaling.kind == Scaling::Kind::steps) {
      size.set(scaled(size.value(), factor, 1, size.scaling.least));
    } else if (size.scaling.kind == Scaling::Kind::step_rate && factor < 1) {
      size.object->set(size.key, Json(std::min(kFastestRate, size.json().as_double() / factor)));
    }
  }
}

}  // namespace hebb
