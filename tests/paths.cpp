#include "tests/paths.h"

namespace hebb::testing {
std::string test_data_path() { return HEBB_TEST_DATA_PATH; }
std::string binary_path() { return HEBB_BINARY_PATH; }
std::string source_path() { return HEBB_SOURCE_PATH; }
}  // namespace hebb::testing
