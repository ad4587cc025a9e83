#pragma once
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "tests/test.h"

namespace hebb {

/// A fresh folder that is removed at the end of the test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "hebb-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) { throw std::runtime_error("cannot create a temporary folder"); }
    path_ = name;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  /// Writes a file (and the folders above it) and returns its path.
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }

 private:
  std::filesystem::path path_;
};

/// Gives a test case a fresh `folder`.
struct FolderFixture {
  const TempFolder folder;
};
#define FOLDER_TEST(...) TEST_CASE_METHOD(hebb::FolderFixture, __VA_ARGS__)

}  // namespace hebb
