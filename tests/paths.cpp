#include "tests/paths.h"

#include <algorithm>
#include <filesystem>

namespace hebb::testing {
std::string test_data_path() {  // a program that was built elsewhere runs in the repository
  return std::filesystem::exists(HEBB_TEST_DATA_PATH) ? HEBB_TEST_DATA_PATH : "tests";
}
std::string binary_path() { return HEBB_BINARY_PATH; }
std::string source_path() { return HEBB_SOURCE_PATH; }
bool is_sanitized() { return !std::string(HEBB_SANITIZERS).empty(); }

std::vector<std::string> golden_cases(const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test_data_path() + "/golden")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && std::filesystem::exists(entry.path() / "rows.safetensors") &&
        std::filesystem::exists(entry.path() / "model.json")) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}
}  // namespace hebb::testing
