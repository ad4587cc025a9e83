#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

TEST_CASE("ham agrees with the golden cases", "[ham][fast]") {
  const int n = GENERATE(1, 2, 3, 4);
  check_golden("ham-" + std::to_string(n));
}
