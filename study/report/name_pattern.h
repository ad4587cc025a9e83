#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"

namespace hebb {

/// A pattern of names: * (any text), ? (one character), [a-z] and [!a-z] (one of these or none of them), and {tag}
/// where tags are read, which stands for letters and digits, as many as fit. Time is at most the length of the pattern
/// times the square of the name's.
class NamePattern {
 public:
  enum class Tags { none, named };
  explicit NamePattern(std::string_view pattern, Tags tags = Tags::none);

  /// Whether the whole name fits; `found` gets the tags with their values, in their order.
  bool matches(std::string_view name, std::vector<std::pair<std::string, std::string>>* found = nullptr) const;

 private:
  struct Piece {
    enum class Kind { character, any_character, any_text, one_of, tag } kind;
    std::string text;  // the character, the inside of [..] or the name of the tag
  };
  struct Match;

  std::vector<Piece> pieces_;
};

/// The tags that the name of a file or run gives a pattern; nothing where it does not match.
std::optional<Json> tags_in_name(const std::string& pattern, const std::string& name);

/// Whether a run id matches one of the patterns.
bool matches_any(const std::vector<std::string>& patterns, const std::string& id);

}  // namespace hebb
