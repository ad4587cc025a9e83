#include "layers/ham/override.h"

namespace hebb {

void fields(Fields& f, HamOverride& o) {
  f.field("tau", o.tau).min(0).help("Threshold in units of the score.");
  f.field("mode", o.mode).one_of({"all", "none"}).help("Select every or no token.");
  if (f.reading()) { f.require(!o.tau || !o.mode, "tau", "no value together with mode"); }
}

}  // namespace hebb
