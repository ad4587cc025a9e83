#include "data/tokenizer/added_tokens.h"

#include <iterator>

#include "core/utf8.h"
#include "data/tokenizer/character_class.h"

namespace hebb {

using AddedToken = TokenizerJson::AddedToken;

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, bool normalized) {
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(tokens_),
               [&](const AddedToken& token) { return token.is_normalized == normalized; });
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) { begins_[static_cast<unsigned char>(token.content[0])] = true; }
}

const AddedToken* AddedTokens::find(std::string_view text, size_t& at) const {
  if (tokens_.empty()) { return nullptr; }
  for (; at < text.size(); ++at) {
    if (!begins_[static_cast<unsigned char>(text[at])]) { continue; }
    if (const AddedToken* token = longest(text.substr(at))) { return token; }
  }
  return nullptr;
}

// Narrows the sorted tokens byte by byte to those that begin as the text does; the shortest of them comes first.
const AddedToken* AddedTokens::longest(std::string_view text) const {
  const AddedToken* found = nullptr;
  auto first = tokens_.begin(), last = tokens_.end();
  for (size_t i = 0; i < text.size() && first != last; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto byte_of = [&](const AddedToken& token) { return static_cast<unsigned char>(token.content[i]); };
    first = std::partition_point(first, last, [&](const AddedToken& token) { return byte_of(token) < byte; });
    last = std::partition_point(first, last, [&](const AddedToken& token) { return byte_of(token) == byte; });
    if (first != last && first->content.size() == i + 1) { found = &*first++; }
  }
  return found;
}

size_t AddedTokens::trim_end(std::string_view text, size_t end) {
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && is_utf8_continuation(text[begin])) { --begin; }
    size_t at = begin;
    if (character_class(utf8_decode(text, at)) != CharacterClass::space) { break; }
    end = begin;
  }
  return end;
}

size_t AddedTokens::trim_begin(std::string_view text, size_t begin) {
  for (size_t at = begin; at < text.size(); begin = at) {
    if (character_class(utf8_decode(text, at)) != CharacterClass::space) { break; }
  }
  return begin;
}

}  // namespace hebb
