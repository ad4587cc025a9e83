#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

}  // namespace hebb
