#include "layers/ham/override.h"

namespace hebb {

void HamOverride::fields(Fields& f) {
  f.field("tau", tau).min(0).help("Threshold in units of the score.");
  f.field("mode", mode).one_of({"all", "none"}).help("Select every or no token.");
  if (f.reading()) { f.require(!tau || !mode, "tau", "no value together with mode"); }
}

const OverrideGroup& ham_overrides() {
  static const OverrideGroup group{
      "thresholds",
      "What replaces the thresholds of ham layers.",
      []() -> std::unique_ptr<LayerOverride> { return std::make_unique<HamOverride>(); },
      {{"--tau", "tau", "a number >= 0", "X", "Threshold of all ham layers, or BLOCK=X of one, in units of the score"},
       {"--select", "mode", "all or none", "MODE",
        "Select all or no tokens in ham layers: all, none, BLOCK=all, BLOCK=none"}}};
  return group;
}

}  // namespace hebb
