#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_merge.h"
#include "data/tokenizer/flat_map.h"
#include "data/tokenizer/sentencepiece_model.h"

namespace hebb {

/// Encodes with a SentencePiece BPE model to exactly the ids that the library returns, many times
/// faster and with memory independent of the length of the text.
///
/// Why it is exact. The library starts from single characters and merges, again and again, the
/// adjacent pair whose concatenation is the vocabulary piece of the highest score, the leftmost first
/// among equals. A merge across the border between characters X and Y makes a piece that contains
/// "XY". So where no piece contains "XY" inside, nothing ever crosses, the two sides do not influence
/// each other, and the text can be cut there: the ids are those of the parts, one after the other.
/// The borders come from the vocabulary alone, so they hold for every text. The parts are short and
/// repeat (words, mostly), hence the cache. User-defined pieces are found first, the leftmost and longest, and nothing
/// merges across them.
/// What could break this is refused by `obstacle`: normalisation rules and white space removal, unused
/// pieces (the library remembers their last merge over the whole text), a missing byte fallback (runs of unknown
/// characters become one token).
class BpeEncoder {
 public:
  /// Why a model cannot be encoded here, or "" when it can.
  static std::string obstacle(const SentencePieceModel& model);

  /// The model must have no obstacle.
  explicit BpeEncoder(const SentencePieceModel& model);

  using Scratch = BpeScratch;

  /// Appends the ids of `text`, which must be valid UTF-8.
  void encode(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  /// Symbols: piece ids, then characters that occur in pieces without being one, then -1 for all others.
  int32_t symbol_of(char32_t c) const;
  bool never_joined(char32_t left, char32_t right) const;
  void add_piece(const SentencePieceModel::Piece& piece, int32_t id, class SymbolNames& names);
  void encode_stretch(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;
  void encode_part(std::string_view part, Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge_part(std::string_view part, Scratch& scratch, std::vector<int32_t>& ids) const;
  void emit(int32_t symbol, std::string_view text, std::vector<int32_t>& ids) const;

  int32_t piece_count_;
  bool add_dummy_prefix_;
  AddedTokens user_defined_;
  std::array<int32_t, 256> byte_ids_{};
  std::array<int32_t, 128> ascii_symbols_{};
  std::array<std::array<uint64_t, 2>, 128> ascii_joined_{};  // bit c2 of [c1]: some piece contains c1 c2
  FlatMap<char> joined_;                                     // the same for all other pairs of characters
  FlatMap<int32_t> symbols_;                                 // characters above ASCII
  BpeMerges merges_;
};

}  // namespace hebb
