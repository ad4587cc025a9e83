// relu2: the feed-forward layer with squared ReLU against the reference.
#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

TEST_CASE("relu2 agrees with the golden cases", "[relu2][fast]") {
  check_golden(GENERATE(from_range(golden_cases("relu2-"))));
}
