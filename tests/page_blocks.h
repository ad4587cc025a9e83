#pragma once
#include <string>
#include <vector>

#include "core/files.h"
#include "tests/test.h"

namespace hebb {

/// The blocks of docs/PAGE that begin with `fence`, at least one.
inline std::vector<std::string> page_blocks(const std::string& page, const std::string& fence = "\n```json\n") {
  const std::string text = read_file(fs::path(HEBB_SOURCE) / "docs" / page);
  std::vector<std::string> blocks;
  for (size_t at = text.find(fence); at != std::string::npos; at = text.find(fence, at)) {
    at += fence.size();
    blocks.push_back(text.substr(at, text.find("```", at) - at));
  }
  INFO(page);
  REQUIRE(!blocks.empty());
  return blocks;
}

}  // namespace hebb
