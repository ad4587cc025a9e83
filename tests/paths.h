#pragma once
#include <string>

namespace hebb::testing {
std::string test_data_path();  // the folder tests/
std::string binary_path();     // the hebb program of this build
std::string source_path();     // the checkout
}  // namespace hebb::testing

#define HEBB_TEST_DATA ::hebb::testing::test_data_path()
#define HEBB_BINARY ::hebb::testing::binary_path()
#define HEBB_SOURCE ::hebb::testing::source_path()
