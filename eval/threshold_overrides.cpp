#include "eval/threshold_overrides.h"

#include <charconv>

namespace hebb {
namespace {

/// All of `text` as a number.
template <class T> bool read_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

void change_fields(Fields& f, ThresholdOverride& c) {
  f.field("tau", c.tau).min(0).help("Threshold in units of the score.");
  f.field("mode", c.mode).one_of({"all", "none"}).help("Select every or no token.");
  if (f.reading()) { f.require(!c.tau || !c.mode, "tau", "no value together with mode"); }
}

/// Calls set(change, value) for the layers that each option is about.
template <class F>
void each_option(const std::string& option, const std::vector<std::string>& texts, const std::string& expected,
                 ThresholdOverrides& o, F&& set) {
  for (const std::string& text : texts) {
    const size_t at = text.find('=');
    int64_t block = -1;
    const bool names_block = at != std::string::npos;
    const bool is_block = !names_block || (read_number(std::string_view(text).substr(0, at), block) && block >= 0);
    if (!is_block || !set(names_block ? o.blocks[block] : o.all, names_block ? text.substr(at + 1) : text)) {
      throw ConfigError(option, text, expected + " or BLOCK=" + expected);
    }
  }
}

}  // namespace

void fields(Fields& f, ThresholdOverrides& o) {
  change_fields(f, o.all);
  std::vector<std::string> names;
  for (const auto& [block, change] : o.blocks) { names.push_back(std::to_string(block)); }
  f.map("blocks", names, [&](const std::string& name, Fields& sub) {
     int64_t block = 0;
     if (sub.reading() && (!read_number(name, block) || block < 0)) {
       throw ConfigError(sub.path(), "\"" + name + "\"", "the index of a block");
     }
     change_fields(sub, o.blocks[block]);
   }).help("Changes of single blocks, by index.");
}

ThresholdOverrides parse_threshold_overrides(const std::vector<std::string>& taus,
                                             const std::vector<std::string>& modes) {
  ThresholdOverrides o;
  each_option("--tau", taus, "a number >= 0", o, [](ThresholdOverride& change, const std::string& value) {
    double tau = 0;
    const bool is_number = read_number(value, tau) && tau >= 0;
    change = {tau, {}};
    return is_number;
  });
  each_option("--select", modes, "all or none", o, [](ThresholdOverride& change, const std::string& value) {
    change = {{}, value};
    return value == "all" || value == "none";
  });
  return o;
}

void apply(const ThresholdOverrides& overrides, Model& model) {
  std::map<int64_t, ThresholdOverride> rest = overrides.blocks;
  bool is_used = false;
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    const auto own = rest.find(static_cast<int64_t>(i));
    const bool has_own = own != rest.end();
    if (model.blocks()[i].mixer->override_threshold(has_own ? own->second : overrides.all)) {
      is_used = true;
      if (has_own) { rest.erase(own); }
    }
  }
  if (!rest.empty()) {
    throw ConfigError("thresholds.blocks." + std::to_string(rest.begin()->first), "a block without a ham layer",
                      "the index of a block with one");
  }
  if (!is_used && !overrides.empty()) {
    throw ConfigError("thresholds", "a model without ham layers", "a model with thresholds to change");
  }
}

}  // namespace hebb
