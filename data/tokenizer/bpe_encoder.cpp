#include "data/tokenizer/bpe_encoder.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>

#include "core/error.h"
#include "core/utf8.h"
#include "data/text/characters.h"

namespace hebb {
namespace {

// The library writes spaces as U+2581 and cannot tell the two apart afterwards. Here both are ' ',
// which keeps the text as it is and the common tables in ASCII.
constexpr char32_t kVisibleSpace = 0x2581;
constexpr std::string_view kVisibleSpaceText = "\xE2\x96\x81";
constexpr int32_t kForeign = -1;

using PieceType = SentencePieceModel::PieceType;

std::u32string characters_of(std::string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = utf8_decode(text, at);
    out += c == kVisibleSpace ? U' ' : c;
  }
  return out;
}

std::string piece_obstacle(const SentencePieceModel::Piece& piece) {
  if (utf8_first_invalid(piece.text) != std::string_view::npos) { return "a piece is not UTF-8"; }
  const bool single = characters_of(piece.text).size() == 1;
  switch (piece.type) {
    case PieceType::normal:
      if (!std::isfinite(piece.score)) { return "a piece without a finite score"; }
      return piece.text.find(' ') == std::string::npos ? "" : "a piece with a raw space";
    case PieceType::unused: return "unused pieces";
    case PieceType::user_defined:
      if (piece.text.empty()) { return "an empty user-defined piece"; }
      return piece.text.find(' ') == std::string::npos ? "" : "a piece with a raw space";
    case PieceType::unknown:
    case PieceType::control: return single ? "a special piece of one character" : "";
    case PieceType::byte: return "";
  }
  return "a piece of unknown type";
}

}  // namespace

std::string BpeEncoder::obstacle(const SentencePieceModel& model) {
  if (model.type != SentencePieceModel::Type::bpe) { return "not a BPE model"; }
  if (model.has_normalization_rules) { return "normalisation rules"; }
  if (model.remove_extra_whitespaces) { return "removal of extra white space"; }
  if (!model.escape_whitespaces) { return "spaces are not escaped"; }
  if (model.whitespace_as_suffix) { return "white space as suffix"; }
  if (!model.byte_fallback) { return "no byte fallback"; }
  std::unordered_map<std::string_view, int> seen;
  for (const auto& piece : model.pieces) {
    std::string reason = piece_obstacle(piece);
    if (!reason.empty()) { return reason; }
    if (++seen[piece.text] > 1) { return "a piece that occurs twice"; }
  }
  return "";
}

/// Symbol numbers by text while the tables are built.
class SymbolNames {
 public:
  explicit SymbolNames(int32_t piece_count) : next_(piece_count) {}
  void set(const std::u32string& text, int32_t symbol) { symbols_.emplace(text, symbol); }
  /// Gives every character that is no piece itself a number behind the pieces.
  int32_t character(char32_t c) {
    const auto [it, is_new] = symbols_.emplace(std::u32string(1, c), next_);
    next_ += is_new ? 1 : 0;
    return it->second;
  }
  /// Symbol of a text, or kForeign.
  int32_t find(const std::u32string& text) const {
    const auto it = symbols_.find(text);
    return it == symbols_.end() ? kForeign : it->second;
  }

 private:
  std::unordered_map<std::u32string, int32_t> symbols_;
  int32_t next_;
};

namespace {

/// User-defined pieces, spaces as they are in texts.
std::vector<TokenizerJson::AddedToken> user_defined(const SentencePieceModel& model) {
  std::vector<TokenizerJson::AddedToken> tokens;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    if (piece.type != PieceType::user_defined) { continue; }
    tokens.push_back({.content = replace_all(piece.text, kVisibleSpaceText, " "),
                      .id = static_cast<int32_t>(id),
                      .is_special = false,
                      .strips_left = false,
                      .strips_right = false,
                      .is_normalized = false});
  }
  return tokens;
}

}  // namespace

BpeEncoder::BpeEncoder(const SentencePieceModel& model)
    : piece_count_(static_cast<int32_t>(model.pieces.size())),
      add_dummy_prefix_(model.add_dummy_prefix),
      user_defined_(user_defined(model), false) {
  HEBB_ASSERT(obstacle(model).empty());
  ascii_symbols_.fill(kForeign);
  SymbolNames names(piece_count_);
  for (int32_t id = 0; id < piece_count_; ++id) {
    const auto& piece = model.pieces[static_cast<size_t>(id)];
    if (piece.type == PieceType::normal) {
      names.set(characters_of(piece.text), id);
    } else if (piece.type == PieceType::byte) {
      byte_ids_[static_cast<size_t>(std::max(0, byte_piece_value(piece.text)))] = id;
    }
  }
  for (int32_t id = 0; id < piece_count_; ++id) {
    const auto& piece = model.pieces[static_cast<size_t>(id)];
    if (piece.type == PieceType::normal) { add_piece(piece, id, names); }
  }
}

void BpeEncoder::add_piece(const SentencePieceModel::Piece& piece, int32_t id, SymbolNames& names) {
  const std::u32string text = characters_of(piece.text);
  for (size_t i = 0; i < text.size(); ++i) {
    const int32_t symbol = names.character(text[i]);
    if (text[i] < 128) {
      ascii_symbols_[text[i]] = symbol;
    } else {
      symbols_.insert(text[i], symbol);
    }
    if (i > 0) {
      if (text[i - 1] < 128 && text[i] < 128) {
        ascii_joined_[text[i - 1]][text[i] >> 6] |= 1ULL << (text[i] & 63);
      } else {
        joined_.insert(pair_key(text[i - 1], text[i]), 1);
      }
    }
  }
  // Every way to make this piece from two symbols.
  for (size_t cut = 1; cut < text.size(); ++cut) {
    const int32_t left = names.find(text.substr(0, cut)), right = names.find(text.substr(cut));
    if (left >= 0 && right >= 0) {
      merges_.insert(pair_key(static_cast<uint32_t>(left), static_cast<uint32_t>(right)), {id, piece.score});
    }
  }
}

int32_t BpeEncoder::symbol_of(char32_t c) const {
  if (c < 128) { return ascii_symbols_[c]; }
  const int32_t* symbol = symbols_.find(c);
  return symbol != nullptr ? *symbol : kForeign;
}

inline bool BpeEncoder::never_joined(char32_t left, char32_t right) const {
  if (left < 128 && right < 128) { return (ascii_joined_[left][right >> 6] >> (right & 63) & 1) == 0; }
  return joined_.find(pair_key(left, right)) == nullptr;
}

void BpeEncoder::encode(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (text.empty()) { return; }
  if (add_dummy_prefix_) {
    scratch.text.assign(1, ' ');
    scratch.text += text;
    text = scratch.text;
  }
  if (user_defined_.is_empty()) { return encode_stretch(text, scratch, ids); }
  if (text.find(kVisibleSpaceText) != std::string_view::npos) {
    scratch.text = replace_all(std::string(text), kVisibleSpaceText, " ");
    text = scratch.text;
  }
  user_defined_.split(
      text, [&](std::string_view part) { encode_stretch(part, scratch, ids); }, [&](int32_t id) { ids.push_back(id); });
}

void BpeEncoder::encode_stretch(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const {
  char32_t previous = 0;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    char32_t c = utf8_decode(text, at);
    c = c == kVisibleSpace ? U' ' : c;
    if (start > begin && never_joined(previous, c)) {
      encode_part(text.substr(begin, start - begin), scratch, ids);
      begin = start;
    }
    previous = c;
  }
  encode_part(text.substr(begin), scratch, ids);
}

void BpeEncoder::encode_part(std::string_view part, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (part.size() == 1) { return emit(ascii_symbols_[static_cast<unsigned char>(part[0])], part, ids); }
  scratch.cached(part, ids, [&] { merge_part(part, scratch, ids); });
}

void BpeEncoder::merge_part(std::string_view part, Scratch& scratch, std::vector<int32_t>& ids) const {
  scratch.start(part);
  for (size_t at = 0; at < part.size();) {
    const size_t begin = at;
    const char32_t c = utf8_decode(part, at);
    scratch.append(symbol_of(c == kVisibleSpace ? U' ' : c), static_cast<uint32_t>(begin), static_cast<uint32_t>(at));
  }
  scratch.merge(merges_);
  scratch.each(
      [&](const Scratch::Node& node) { emit(node.symbol, part.substr(node.begin, node.end - node.begin), ids); });
}

// Characters outside the vocabulary become their bytes; a space those of U+2581, as the library does.
void BpeEncoder::emit(int32_t symbol, std::string_view text, std::vector<int32_t>& ids) const {
  if (symbol >= 0 && symbol < piece_count_) {
    ids.push_back(symbol);
    return;
  }
  for (const char byte : text == " " ? kVisibleSpaceText : text) {
    ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
  }
}

}  // namespace hebb
