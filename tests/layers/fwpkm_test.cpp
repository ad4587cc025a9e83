#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

TEST_CASE("fwpkm golden cases", "[fast]") {
  const int n = GENERATE(1, 2, 3, 4);
  INFO("case " << n);
  check_golden("fwpkm-" + std::to_string(n));
}
