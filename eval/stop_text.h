#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace hebb {

/// Text that grows until one of some strings is in it; it is cut before the first of them.
class StopText {
 public:
  /// `stops`: none is empty.
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Appends. False: a string has been found, the text is complete.
  bool push(std::string_view more);
  const std::string& text() const { return text_; }
  bool is_cut() const { return is_cut_; }
  /// Bytes of text() that stay whatever follows: none of the strings can begin in them.
  size_t settled() const;

 private:
  std::vector<std::string> stops_;
  std::string text_;
  bool is_cut_ = false;
};

}  // namespace hebb
