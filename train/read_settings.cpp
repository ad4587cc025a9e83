#include "train/read_settings.h"

#include <set>

namespace hebb {
namespace {

/// Puts `yarn` into every rope object of a layer definition; returns how many there are.
int extend_ropes(Json& value, const Json& yarn) {
  int found = 0;
  for (auto& [key, member] : value.members()) {
    if (!member.is_object()) { continue; }
    if (key == "rope") {
      member.set("yarn", yarn);
      ++found;
    } else {
      found += extend_ropes(member, yarn);
    }
  }
  return found;
}

}  // namespace

void fields(Fields& f, ReadSettings& s) {
  f.field("segment", s.segment)
      .min(1)
      .unit("tokens")
      .help("Tokens per pass while reading; state is carried between them.");
  f.object("rope_scaling", s.yarn)
      .help("YaRN of every layer with a rope object, for contexts beyond the training length.");
}

void check(const ReadSettings& settings, const ModelConfig& model) {
  if (!settings.yarn) { return; }
  std::set<std::string> used;
  for (int64_t i = 0; i < model.num_layers; ++i) {
    const BlockSpec block = model.block(i);
    for (const auto& name : {block.mixer, block.ffn, block.memory}) {
      if (name) { used.insert(*name); }
    }
  }
  Json json = Fields::write(model);
  const Json yarn = Fields::write(*settings.yarn);
  int ropes = 0;
  for (auto& [name, layer] : json.find("layers")->members()) {
    if (used.count(name) > 0) { ropes += extend_ropes(layer, yarn); }
  }
  if (ropes == 0) {
    throw ConfigError("rope_scaling", "a model without rope", "a model with a layer that has a rope object");
  }
  const auto extended = Fields::read<ModelConfig>(json, "rope_scaling: model");
}

}  // namespace hebb
