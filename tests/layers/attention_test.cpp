#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

TEST_CASE("attention golden cases", "[fast]") {
  const int n = GENERATE(1, 2, 3, 4);
  check_golden("attention-" + std::to_string(n));
}
