#pragma once
// The parts of a SentencePiece model file that decide how text is split and joined. The file is a
// protocol buffer; the library has no public access to its normalisation settings.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hebb {

struct SentencePieceModel {
  enum class Type : int { unigram = 1, bpe = 2, word = 3, character = 4 };
  enum class PieceType : int { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::normal;
  };

  std::vector<Piece> pieces;
  Type type = Type::unigram;
  bool byte_fallback = false;
  bool add_dummy_prefix = true;  // a space in front of every text
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;  // space becomes U+2581
  bool whitespace_as_suffix = false;
  bool has_normalization_rules = false;
  bool has_denormalization_rules = false;
  std::string unknown_surface = " \xE2\x81\x87 ";
  int64_t training_threads = 16;
};

/// Reads the fields above. Throws DataError(where, ...) with the byte offset of damage.
/// Source: sentencepiece_model.proto of SentencePiece (field numbers), protocol buffer wire format.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where);

/// Value of a byte piece "<0x41>", or -1.
int byte_piece_value(std::string_view piece);

}  // namespace hebb
