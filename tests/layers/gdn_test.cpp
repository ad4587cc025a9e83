#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

TEST_CASE("gdn agrees with the golden cases", "[gdn][fast]") {
  for (const char* name : {"gdn-1", "gdn-2", "gdn-3", "gdn-4"}) {
    INFO(name);
    check_golden(name);
  }
}
