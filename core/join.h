#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace hebb {

/// The texts of some items with `separator` between them: text(item), or the items themselves.
template <class Items, class Text = std::identity>
std::string join(const Items& items, std::string_view separator, Text&& text = {}) {
  std::string joined;
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) { joined += separator; }
    joined += text(item);
    is_first = false;
  }
  return joined;
}

}  // namespace hebb
