#include "study/report/name_pattern.h"

#include <algorithm>
#include <cctype>

namespace hebb {
namespace {

bool is_in_class(std::string_view inside, char c) {
  const bool negated = inside.starts_with('!') || inside.starts_with('^');
  if (negated) { inside.remove_prefix(1); }
  const auto code = [](char value) { return static_cast<unsigned char>(value); };
  bool is_named = false;
  for (size_t i = 0; i < inside.size(); ++i) {
    if (i + 2 < inside.size() && inside[i + 1] == '-') {
      is_named |= code(inside[i]) <= code(c) && code(c) <= code(inside[i + 2]);
      i += 2;
    } else {
      is_named |= inside[i] == c;
    }
  }
  return is_named != negated;
}

bool is_letter_or_digit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

}  // namespace

NamePattern::NamePattern(std::string_view pattern, Tags tags) {
  using Kind = Piece::Kind;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const bool is_tag = c == '{' && tags == Tags::named;
    const size_t end = is_tag ? pattern.find('}', i) : c == '[' ? pattern.find(']', i + 2) : std::string::npos;
    if (c == '*') {
      if (pieces_.empty() || pieces_.back().kind != Kind::any_text) { pieces_.push_back({Kind::any_text, ""}); }
    } else if (c == '?') {
      pieces_.push_back({Kind::any_character, ""});
    } else if (end == std::string::npos) {
      pieces_.push_back({Kind::character, std::string(1, c)});
    } else {
      pieces_.push_back({is_tag ? Kind::tag : Kind::one_of, std::string(pattern.substr(i + 1, end - i - 1))});
      i = end;
    }
  }
}

/// The pieces from `piece` on against the name from `at` on; what has failed once is not tried again.
struct NamePattern::Match {
  const std::vector<Piece>& pieces;
  std::string_view name;
  std::vector<bool> failed = std::vector<bool>(pieces.size() * (name.size() + 1));
  std::vector<std::string> values = {};

  bool from(size_t piece, size_t at) {
    if (piece == pieces.size()) { return at == name.size(); }
    const size_t state = piece * (name.size() + 1) + at;
    if (failed[state]) { return false; }
    const bool is_tag = pieces[piece].kind == Piece::Kind::tag;
    const size_t least = pieces[piece].kind == Piece::Kind::any_text ? 0 : 1;
    for (size_t taken = longest_at(pieces[piece], at) + 1; taken-- > least;) {
      if (is_tag) { values.emplace_back(name.substr(at, taken)); }
      if (from(piece + 1, at + taken)) { return true; }
      if (is_tag) { values.pop_back(); }
    }
    failed[state] = true;
    return false;
  }

  /// Bytes of the name that a piece takes at most.
  size_t longest_at(const Piece& piece, size_t at) const {
    const std::string_view rest = name.substr(at);
    using Kind = Piece::Kind;
    switch (piece.kind) {
      case Kind::any_text: return rest.size();
      case Kind::tag: {
        const auto end = std::find_if_not(rest.begin(), rest.end(), is_letter_or_digit);
        return static_cast<size_t>(end - rest.begin());
      }
      case Kind::character: return rest.starts_with(piece.text) ? 1 : 0;
      case Kind::any_character: return rest.empty() ? 0 : 1;
      case Kind::one_of: return !rest.empty() && is_in_class(piece.text, rest[0]) ? 1 : 0;
    }
    return 0;
  }
};

bool NamePattern::matches(std::string_view name, std::vector<std::pair<std::string, std::string>>* found) const {
  const auto takes_some = [](const Piece& piece) { return piece.kind != Piece::Kind::any_text; };
  if (static_cast<size_t>(std::count_if(pieces_.begin(), pieces_.end(), takes_some)) > name.size()) { return false; }
  Match match{pieces_, name};
  if (!match.from(0, 0)) { return false; }
  size_t value = 0;
  for (const Piece& piece : pieces_) {
    if (found != nullptr && piece.kind == Piece::Kind::tag) { found->emplace_back(piece.text, match.values[value++]); }
  }
  return true;
}

std::optional<Json> tags_in_name(const std::string& pattern, const std::string& name) {
  std::vector<std::pair<std::string, std::string>> tags;
  if (!NamePattern(pattern, NamePattern::Tags::named).matches(name, &tags)) { return std::nullopt; }
  Json found = Json::object();
  for (const auto& [tag, value] : tags) { found.set(tag, Json(value)); }
  return found;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& id) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& p) { return NamePattern(p).matches(id); });
}

}  // namespace hebb
