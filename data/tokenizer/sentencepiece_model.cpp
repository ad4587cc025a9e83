#include "data/tokenizer/sentencepiece_model.h"

#include <fmt/core.h>

#include <cstring>

#include "core/error.h"

namespace hebb {
namespace {

enum WireType : int { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct WireField {
  uint64_t number = 0;
  int type = 0;
  uint64_t value = 0;  // varint, fixed
  std::string_view bytes;
};

/// Goes through the fields of one protocol buffer message.
class WireReader {
 public:
  WireReader(std::string_view file, std::string_view message, const std::string& where)
      : file_(file), rest_(message), where_(where) {}

  bool next(WireField& field) {
    if (rest_.empty()) { return false; }
    field = {};
    const uint64_t tag = varint();
    field.number = tag >> 3;
    field.type = static_cast<int>(tag & 7);
    switch (field.type) {
      case kVarint: field.value = varint(); return true;
      case kFixed64: field.value = fixed(8); return true;
      case kFixed32: field.value = fixed(4); return true;
      case kBytes: field.bytes = take(varint()); return true;
      default: damaged(fmt::format("wire type {:d}", field.type), "0, 1, 2 or 5");
    }
  }

 private:
  [[noreturn]] void damaged(const std::string& found, const std::string& expected) const {
    throw DataError(where_, fmt::format("not a SentencePiece model: damaged at byte {:d}", rest_.data() - file_.data()),
                    found, expected);
  }
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) {
      damaged(fmt::format("a field of {:d} bytes", size), fmt::format("at most {:d}", rest_.size()));
    }
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) { return value; }
    }
    damaged("an integer of more than 10 bytes", "at most 10");
  }
  uint64_t fixed(size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, take(size).data(), size);
    return value;
  }

  std::string_view file_, rest_;
  const std::string& where_;
};

using Piece = SentencePieceModel::Piece;

Piece read_piece(WireReader reader) {
  Piece piece;
  for (WireField f; reader.next(f);) {
    if (f.number == 1 && f.type == kBytes) {
      piece.text = f.bytes;
    } else if (f.number == 2 && f.type == kFixed32) {
      const auto bits = static_cast<uint32_t>(f.value);
      std::memcpy(&piece.score, &bits, sizeof bits);
    } else if (f.number == 3 && f.type == kVarint) {
      piece.type = static_cast<SentencePieceModel::PieceType>(f.value);
    }
  }
  return piece;
}

void read_trainer_spec(WireReader reader, SentencePieceModel& model) {
  for (WireField f; reader.next(f);) {
    switch (f.number) {
      case 3: model.type = static_cast<SentencePieceModel::Type>(f.value); break;
      case 16: model.training_threads = static_cast<int64_t>(f.value); break;
      case 24: model.whitespace_as_suffix = f.value != 0; break;
      case 35: model.byte_fallback = f.value != 0; break;
      case 44: model.unknown_surface = f.bytes; break;
      default: break;
    }
  }
}

void read_normalizer_spec(WireReader reader, SentencePieceModel& model) {
  for (WireField f; reader.next(f);) {
    switch (f.number) {
      case 2: model.has_normalization_rules = !f.bytes.empty(); break;
      case 3: model.add_dummy_prefix = f.value != 0; break;
      case 4: model.remove_extra_whitespaces = f.value != 0; break;
      case 5: model.escape_whitespaces = f.value != 0; break;
      default: break;
    }
  }
}

void read_denormalizer_spec(WireReader reader, SentencePieceModel& model) {
  for (WireField f; reader.next(f);) {
    if (f.number == 2) { model.has_denormalization_rules = !f.bytes.empty(); }
  }
}

/// Whether the first line is a token in base64, a space and a rank.
bool is_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, bytes.find('\n'));
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space % 4 != 0 || space + 1 == line.size()) { return false; }
  const auto all = [](std::string_view text, std::string_view allowed) {
    return text.find_first_not_of(allowed) == std::string_view::npos;
  };
  return all(line.substr(0, space), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") &&
         all(line.substr(space + 1), "0123456789\r");
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where) {
  if (is_tiktoken(bytes)) {
    throw DataError(where, "not a SentencePiece model", "a file of tiktoken, which lacks the pattern that cuts words",
                    "the tokenizer.json of the same model");
  }
  SentencePieceModel model;
  WireReader reader(bytes, bytes, where);
  for (WireField f; reader.next(f);) {
    if (f.type != kBytes) { continue; }
    const WireReader message(bytes, f.bytes, where);
    switch (f.number) {
      case 1: model.pieces.push_back(read_piece(message)); break;
      case 2: read_trainer_spec(message, model); break;
      case 3: read_normalizer_spec(message, model); break;
      case 5: read_denormalizer_spec(message, model); break;
      default: break;
    }
  }
  if (model.pieces.empty()) {
    throw DataError(where, "not a SentencePiece model", "no vocabulary", "at least one piece");
  }
  return model;
}

int byte_piece_value(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') { return -1; }
  int value = 0;
  for (const char c : piece.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) { return -1; }
    value = value * 16 + digit;
  }
  return value;
}

}  // namespace hebb
