#pragma once
#include <string_view>

namespace hebb {

/// Whether a file is what Git LFS leaves in place of one that has not been fetched (the specification of git-lfs).
inline bool is_lfs_pointer(std::string_view bytes) {
  return bytes.size() < 1024 && bytes.starts_with("version https://git-lfs.github.com/spec/v1\n");
}

constexpr const char* kLfsPointer = "a pointer of Git LFS, expected the file itself (git lfs pull fetches it)";

}  // namespace hebb
