#include "data/parquet/encoding.h"

#include <fmt/core.h>

#include <cstring>

#include "core/error.h"

namespace hebb {
namespace {

enum Encoding : int64_t {
  kPlain = 0,
  kPlainDictionary = 2,
  kDeltaLength = 6,
  kDeltaByteArray = 7,
  kDictionary = 8,
};

/// Takes a number of 7 bits a byte off the front.
uint64_t take_varint(std::string_view& bytes, const std::string& where) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) { throw DataError(where, "the page ends inside a number"); }
    const auto next = static_cast<uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(next & 0x7F) << shift;
    if (next < 0x80) { return value; }
  }
  throw DataError(where, "the page holds a number of more than 64 bits");
}

/// `width` <= 32 bits from bit `first` on, lowest first; they must be there.
uint32_t packed_bits(std::string_view bytes, uint64_t first, uint32_t width) {
  uint64_t value = 0;
  const size_t begin = first / 8, end = (first + width + 7) / 8;
  for (size_t i = begin; i < end; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << 8 * (i - begin);
  }
  return static_cast<uint32_t>(value >> first % 8 & ((1ULL << width) - 1));
}

}  // namespace

uint32_t HybridReader::next() {
  while (left_ == 0) { start_run(); }
  --left_;
  if (!is_packed_) { return value_; }
  if (bit_ + width_ > 8 * bytes_.size()) { throw DataError(*where_, "the page ends inside packed numbers"); }
  const uint32_t value = packed_bits(bytes_, bit_, width_);
  bit_ += width_;
  if (left_ == 0) { bytes_.remove_prefix((bit_ + 7) / 8); }
  return value;
}

void HybridReader::start_run() {
  const uint64_t head = take_varint(bytes_, *where_);
  is_packed_ = head & 1;
  if (is_packed_) {
    left_ = (head >> 1) * 8;
    bit_ = 0;
    return;
  }
  left_ = head >> 1;
  const size_t size = (width_ + 7) / 8;
  if (size > bytes_.size()) { throw DataError(*where_, "the page ends inside a run of numbers"); }
  value_ = width_ == 0 ? 0 : packed_bits(bytes_, 0, static_cast<uint32_t>(8 * size));
  bytes_.remove_prefix(size);
}

PageStrings::PageStrings(int64_t encoding, std::string_view bytes, uint64_t count,
                         const std::vector<std::string_view>* dictionary, const std::string* where)
    : encoding_(encoding), bytes_(bytes), dictionary_(dictionary), where_(where) {
  constexpr int kMostBits = 32;
  switch (encoding) {
    case kPlain: return;
    case kPlainDictionary:
    case kDictionary:
      if (dictionary == nullptr) { throw DataError(*where, "a page of dictionary indices comes before a dictionary"); }
      if (!bytes_.empty()) {  // a page of nulls may have no indices
        const auto width = static_cast<uint8_t>(take(1)[0]);
        if (width > kMostBits) {
          throw DataError(*where, "width of dictionary indices", fmt::format("{:d} bits", width), "at most 32");
        }
        indices_ = HybridReader(bytes_, width, where);
      }
      return;
    case kDeltaByteArray: prefixes_ = packed_lengths(count); [[fallthrough]];
    case kDeltaLength: lengths_ = packed_lengths(count); break;
    default:
      throw DataError(*where, "encoding of a page", fmt::format("number {:d}", encoding),
                      "plain (0), dictionary (2, 8), delta length (6) or delta byte array (7)");
  }
  if (encoding == kDeltaByteArray && prefixes_.size() != lengths_.size()) {
    throw DataError(*where, "number of suffixes", std::to_string(lengths_.size()),
                    fmt::format("{:d}, as there are prefixes", prefixes_.size()));
  }
}

std::string_view PageStrings::next() {
  switch (encoding_) {
    case kPlain: return plain();
    case kDeltaLength: return by_length();
    case kDeltaByteArray: return by_prefix();
    default: break;
  }
  if (bytes_.empty()) { throw DataError(*where_, "the page ends before its values"); }
  const uint32_t index = indices_.next();
  if (index >= dictionary_->size()) {
    throw DataError(*where_, "dictionary index", std::to_string(index),
                    fmt::format("one below {:d}, the strings of the dictionary", dictionary_->size()));
  }
  return (*dictionary_)[index];
}

std::string_view PageStrings::take(uint64_t size) {
  if (size > bytes_.size()) {
    throw DataError(*where_, "the page ends inside a string", fmt::format("{:d} bytes", bytes_.size()),
                    fmt::format("{:d}", size));
  }
  const std::string_view taken = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return taken;
}

std::string_view PageStrings::plain() {
  uint32_t size = 0;
  std::memcpy(&size, take(sizeof size).data(), sizeof size);
  return take(size);
}

std::string_view PageStrings::by_length() {
  if (at_ == lengths_.size()) { throw DataError(*where_, "the page ends before its values"); }
  return take(lengths_[at_++]);
}

std::string_view PageStrings::by_prefix() {
  const size_t index = at_;
  const std::string_view suffix = by_length();
  if (prefixes_[index] > joined_.size()) {
    throw DataError(*where_, "shared prefix of a string", fmt::format("{:d} bytes", prefixes_[index]),
                    fmt::format("at most {:d}, the string before it", joined_.size()));
  }
  joined_.resize(prefixes_[index]);
  joined_ += suffix;
  return joined_;
}

// Delta-packed: differences from the least one of a block, in miniblocks of one width each.
std::vector<uint32_t> PageStrings::packed_lengths(uint64_t count) {
  if (bytes_.empty()) { return {}; }  // a page of nulls
  constexpr uint64_t kMostInBlock = 1 << 16, kMiniblockUnit = 32;
  constexpr uint32_t kMostBits = 32;
  const auto zigzag = [&] {
    const uint64_t value = take_varint(bytes_, *where_);
    return value >> 1 ^ (~(value & 1) + 1);
  };
  const uint64_t block = take_varint(bytes_, *where_), miniblocks = take_varint(bytes_, *where_);
  const uint64_t total = take_varint(bytes_, *where_);
  if (block == 0 || block > kMostInBlock || miniblocks == 0 || block % miniblocks != 0 ||
      block / miniblocks % kMiniblockUnit != 0) {
    throw DataError(*where_, "blocks of delta-packed lengths", fmt::format("{:d} in {:d}", block, miniblocks),
                    "at most 65536, in miniblocks of a multiple of 32");
  }
  if (total > count) {
    throw DataError(*where_, "number of delta-packed lengths", std::to_string(total),
                    fmt::format("at most {:d}, the values of the page", count));
  }
  std::vector<uint32_t> lengths;
  auto value = static_cast<uint32_t>(zigzag());
  const auto add = [&] {
    if (value > INT32_MAX) { throw DataError(*where_, "a length below 0 in the page"); }
    lengths.push_back(value);
  };
  if (total > 0) { add(); }
  while (lengths.size() < total) {
    const auto least = static_cast<uint32_t>(zigzag());
    const std::string_view widths = take(miniblocks);
    for (uint64_t i = 0; i < miniblocks && lengths.size() < total; ++i) {
      const auto width = static_cast<uint8_t>(widths[i]);
      if (width > kMostBits) {
        throw DataError(*where_, "width of delta-packed lengths", fmt::format("{:d} bits", width), "at most 32");
      }
      const std::string_view packed = take(block / miniblocks * width / 8);
      for (uint64_t j = 0; j < block / miniblocks && lengths.size() < total; ++j) {
        value += least + packed_bits(packed, j * width, width);
        add();
      }
    }
  }
  return lengths;
}

std::vector<std::string_view> dictionary_strings(std::string_view bytes, uint64_t count, const std::string& where) {
  std::vector<std::string_view> strings;
  PageStrings page(kPlain, bytes, count, nullptr, &where);
  for (uint64_t i = 0; i < count; ++i) { strings.push_back(page.next()); }
  return strings;
}

}  // namespace hebb
