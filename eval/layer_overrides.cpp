#include "eval/layer_overrides.h"

#include <fmt/core.h>

#include <charconv>

namespace hebb {
namespace {

/// All of `text` as a number.
template <class T> bool read_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

/// What Fields visits: the object under a group's key.
struct GroupFields {
  const OverrideGroup& group;
  LayerOverrides::Changes& changes;
};

void fields(Fields& f, GroupFields& o) {
  const auto visit = [&](Fields& to, std::shared_ptr<LayerOverride>& change) {
    if (change == nullptr) { change = o.group.make(); }
    change->fields(to);
  };
  visit(f, o.changes.all);
  std::vector<std::string> names;
  for (const auto& [block, change] : o.changes.blocks) { names.push_back(std::to_string(block)); }
  f.map("blocks", names, [&](const std::string& name, Fields& sub) {
     int64_t block = 0;
     if (sub.reading() && (!read_number(name, block) || block < 0)) {
       throw ConfigError(sub.path(), "\"" + name + "\"", "the index of a block");
     }
     visit(sub, o.changes.blocks[block]);
   }).help("Changes of single blocks, by index.");
}

/// One override as Fields visits it.
struct Values {
  LayerOverride& values;
};
void fields(Fields& f, Values& v) { v.values.fields(f); }

bool sets_something(LayerOverride& change) {
  const Json written = Fields::write(Values{change});
  for (const auto& [key, value] : written.members()) {
    if (!value.is_null()) { return true; }
  }
  return false;
}

/// An override with the one value that an option says. Throws ConfigError.
std::shared_ptr<LayerOverride> parse_value(const OverrideGroup& group, const std::string& key,
                                           const std::string& text) {
  double number = 0;
  const Json value = read_number(text, number) ? Json(number) : Json(text);
  std::shared_ptr<LayerOverride> change = group.make();
  Values values{*change};
  Fields::read(Json::object({{key, value}}), "", values);
  return change;
}

void parse_option(const OverrideGroup& group, const OverrideGroup::Option& option, const std::string& text,
                  LayerOverrides::Changes& to) {
  const size_t at = text.find('=');
  const bool names_block = at != std::string::npos;
  try {
    int64_t block = 0;
    if (names_block && (!read_number(std::string_view(text).substr(0, at), block) || block < 0)) {
      throw ConfigError(option.name, text, "the index of a block");
    }
    (names_block ? to.blocks[block] : to.all) =
        parse_value(group, option.key, names_block ? text.substr(at + 1) : text);
  } catch (const ConfigError&) {
    throw ConfigError(option.name, text, option.expected + " or BLOCK=" + option.expected);
  }
}

/// Layers of `type` in block `i`.
std::vector<Layer*> layers_of_type(Model& model, size_t i, const std::string& type) {
  const BlockSpec spec = model.config().block(static_cast<int64_t>(i));
  const Model::Block& block = model.blocks()[i];
  std::vector<Layer*> found;
  for (const auto& [name, layer] : {std::pair{&spec.memory, block.memory.get()},
                                    std::pair{&spec.mixer, block.mixer.get()}, std::pair{&spec.ffn, block.ffn.get()}}) {
    if (layer != nullptr && model.config().find(**name)->type == type) { found.push_back(layer); }
  }
  return found;
}

void apply(const OverridableType& to, LayerOverrides::Changes changes, Model& model) {
  const std::string& key = to.group->key;
  bool is_used = false;
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    const auto own = changes.blocks.find(static_cast<int64_t>(i));
    const bool has_own = own != changes.blocks.end();
    const std::vector<Layer*> layers = layers_of_type(model, i, to.type);
    for (Layer* layer : layers) { layer->override_settings(has_own ? own->second.get() : changes.all.get()); }
    is_used = is_used || !layers.empty();
    if (has_own && !layers.empty()) { changes.blocks.erase(own); }
  }
  if (!changes.blocks.empty()) {
    throw ConfigError(fmt::format("{}.blocks.{:d}", key, changes.blocks.begin()->first),
                      "a block without a " + to.type + " layer", "the index of a block with one");
  }
  if (!is_used && changes.all != nullptr && sets_something(*changes.all)) {
    throw ConfigError(key, "a model without " + to.type + " layers", "a model with " + key + " to change");
  }
}

}  // namespace

std::vector<OverridableType> overridable_types() {
  std::vector<OverridableType> found;
  for (const LayerType& type : layer_types()) {
    if (const OverrideGroup* group = type.make()->overrides()) { found.push_back({type.name, group}); }
  }
  return found;
}

void fields(Fields& f, LayerOverrides& o) {
  for (const OverridableType& to : overridable_types()) {
    GroupFields group{*to.group, o.by_type[to.type]};
    f.object(to.group->key, group).help(to.group->help);
  }
}

LayerOverrides parse_overrides(const std::map<std::string, std::vector<std::string>>& texts) {
  LayerOverrides o;
  for (const OverridableType& to : overridable_types()) {
    for (const OverrideGroup::Option& option : to.group->options) {
      const auto given = texts.find(option.name);
      if (given == texts.end()) { continue; }
      for (const std::string& text : given->second) { parse_option(*to.group, option, text, o.by_type[to.type]); }
    }
  }
  return o;
}

void apply(const LayerOverrides& overrides, Model& model) {
  for (const OverridableType& to : overridable_types()) {
    const auto changes = overrides.by_type.find(to.type);
    apply(to, changes != overrides.by_type.end() ? changes->second : LayerOverrides::Changes(), model);
  }
}

}  // namespace hebb
