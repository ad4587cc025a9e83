#pragma once
#include <string>
#include <vector>

namespace hebb::testing {
std::string test_data_path();  // the folder tests/
std::string binary_path();     // the hebb program of this build
std::string source_path();     // the checkout
bool is_sanitized();           // the library; tests may not be

/// Names of the layer cases in tests/golden that begin with `prefix`, sorted; a new folder is a new case of every test
/// that asks here.
std::vector<std::string> golden_cases(const std::string& prefix = "");
}  // namespace hebb::testing

#define HEBB_TEST_DATA ::hebb::testing::test_data_path()
#define HEBB_BINARY ::hebb::testing::binary_path()
#define HEBB_SOURCE ::hebb::testing::source_path()
