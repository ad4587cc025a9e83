// What surrounds and addresses memories, against its CPU twin.
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

TEST_CASE("scores and mixtures around a memory equal the CPU's", "[fast]") {
  const Shape shape{5, 37}, rows{5};
  in_both_types([&](Twins& t) {
    const Twin y = t.output(shape), rstd = t.float_output(rows), x = t.input(shape);
    t.check([&](auto at) { return ZScore{at(y), at(rstd), at(x)}; });
  });
  in_both_types([&](Twins& t) {
    const Twin d_x = t.sum(shape), d_y = t.input(shape), y = t.input(shape), rstd = t.parameter(rows);
    t.check([&](auto at) { return ZScoreBackward{at(d_x), at(d_y), at(y), at(rstd), true}; });
  });
  in_both_types([&](Twins& t) {
    const Twin g = t.output(rows), x = t.input(shape);
    t.check([&](auto at) { return MeanGate{at(g), at(x)}; });
  });
  in_both_types([&](Twins& t) {
    const Twin d_x = t.sum(shape), d_g = t.input(rows), g = t.input(rows);
    t.check([&](auto at) { return MeanGateBackward{at(d_x), at(d_g), at(g), true}; });
  });
  in_both_types([&](Twins& t) {
    const Twin o = t.output(shape), g = t.input(rows), a = t.input(shape), b = t.input(shape);
    t.check([&](auto at) { return GateMix{at(o), at(g), at(a), at(b)}; });
  });
  in_both_types([&](Twins& t) {
    const Twin d_g = t.sum(rows), d_a = t.output(shape), d_b = t.sum(shape), d_o = t.input(shape), g = t.input(rows),
               a = t.input(shape), b = t.input(shape);
    t.check([&](auto at) { return GateMixBackward{at(d_g), at(d_a), at(d_b), at(d_o), at(g), at(a), at(b), true, false, true}; });
  });
}

}  // namespace
