#include "eval/thresholds.h"

#include <fmt/core.h>

#include <charconv>

namespace hebb {
namespace {

/// All of `text` as a number.
template <class T> bool read_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

/// One --tau or --select, which sets `key`.
void parse_option(const char* option, const char* key, const std::string& expected, const std::string& text,
                  ThresholdOverrides& to) {
  const size_t at = text.find('=');
  const std::string value = at == std::string::npos ? text : text.substr(at + 1);
  try {
    int64_t block = 0;
    if (at != std::string::npos && (!read_number(std::string_view(text).substr(0, at), block) || block < 0)) {
      throw ConfigError(option, text, "the index of a block");
    }
    double number = 0;
    const Json json = Json::object({{key, read_number(value, number) ? Json(number) : Json(value)}});
    (at != std::string::npos ? to.blocks[block] : to.all) = Fields::read<HamOverride>(json, "");
  } catch (const ConfigError&) { throw ConfigError(option, text, expected + " or BLOCK=" + expected); }
}

}  // namespace

void fields(Fields& f, ThresholdOverrides& o) {
  fields(f, o.all);
  std::vector<std::string> names;
  for (const auto& [block, change] : o.blocks) { names.push_back(std::to_string(block)); }
  f.map("blocks", names, [&](const std::string& name, Fields& sub) {
     int64_t block = 0;
     if (sub.reading() && (!read_number(name, block) || block < 0)) {
       throw ConfigError(sub.path(), "\"" + name + "\"", "the index of a block");
     }
     fields(sub, o.blocks[block]);
   }).help("Changes of single blocks, by index.");
}

ThresholdOverrides parse_thresholds(const std::vector<std::string>& taus, const std::vector<std::string>& selects) {
  ThresholdOverrides o;
  for (const std::string& text : taus) { parse_option("--tau", "tau", "a number >= 0", text, o); }
  for (const std::string& text : selects) { parse_option("--select", "mode", "all or none", text, o); }
  return o;
}

void apply(const ThresholdOverrides& overrides, Model& model) {
  auto left = overrides.blocks;
  bool is_used = false;
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    // A mixer is the only role of ham.
    auto* layer = dynamic_cast<Overridable*>(model.blocks()[i].mixer.get());
    if (layer == nullptr) { continue; }
    const auto own = left.extract(static_cast<int64_t>(i));
    layer->override_selection(own ? own.mapped() : overrides.all);
    is_used = true;
  }
  if (!left.empty()) {
    throw ConfigError(fmt::format("thresholds.blocks.{:d}", left.begin()->first), "a block without a ham layer",
                      "the index of a block with one");
  }
  if (!is_used && (overrides.all.tau || overrides.all.mode)) {
    throw ConfigError("thresholds", "a model without ham layers", "a model with thresholds to change");
  }
}

}  // namespace hebb
