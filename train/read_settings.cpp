#include "train/read_settings.h"

#include <algorithm>

namespace hebb {
namespace {

/// Puts `yarn` into every rope object of a layer definition, in place of its own extension; returns how many there are.
int extend_ropes(Json& value, const Json& yarn) {
  int found = 0;
  for (auto& [key, member] : value.members()) {
    if (!member.is_object()) { continue; }
    if (key == "rope") {
      member.set("yarn", yarn);
      member.erase("llama3");
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
  const std::vector<std::string> unused = model.unused();
  Json json = Fields::write(model);
  const Json yarn = Fields::write(*settings.yarn);
  int ropes = 0;
  for (auto& [name, layer] : json.find("layers")->members()) {
    const bool is_used = std::find(unused.begin(), unused.end(), name) == unused.end();
    if (is_used) { ropes += extend_ropes(layer, yarn); }
  }
  if (ropes == 0) {
    throw ConfigError("rope_scaling", "a model without rope", "a model with a layer that has a rope object");
  }
  const auto extended = Fields::read<ModelConfig>(json, "rope_scaling: model");
}

}  // namespace hebb
