#include "data/shards/shard.h"

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "core/hash.h"
#include "data/shards/numpy_header.h"
#include "data/shards/shard_format.h"

namespace hebb {
namespace {

// Returns whether all tokens are in [0, vocab_size); one pass without branches on the values.
template <class Token> bool copy_tokens(const uint8_t* bytes, int64_t count, int64_t vocab_size, int32_t* out) {
  bool fits = true;
  for (int64_t i = 0; i < count; ++i) {
    const auto token = static_cast<int64_t>(load_le<Token>(bytes + i * static_cast<int64_t>(sizeof(Token))));
    fits &= token >= 0 && token < vocab_size;
    out[i] = static_cast<int32_t>(token);
  }
  return fits;
}

bool is_megatron_index(std::span<const uint8_t> bytes) {
  return bytes.size() >= kMegatronMagic.size() &&
         std::memcmp(bytes.data(), kMegatronMagic.data(), kMegatronMagic.size()) == 0;
}

}  // namespace

std::span<const uint8_t> Shard::Bytes::view() const {
  if (map.data() != nullptr) { return {map.data(), map.size()}; }
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

Shard Shard::open(const fs::path& path, const ShardOptions& options) {
  Shard shard;
  shard.name_ = path.string();
  shard.bin_ = std::make_shared<const Bytes>(Bytes{MappedFile(path), {}});
  const fs::path index = shard.index_name();
  std::error_code error;
  if (index != path && fs::exists(index, error)) {
    shard.idx_ = std::make_shared<const Bytes>(Bytes{MappedFile(index), {}});
  }
  shard.parse(options);
  return shard;
}

Shard Shard::from_bytes(const std::string& name, std::string bytes, std::optional<std::string> index,
                        const ShardOptions& options) {
  Shard shard;
  shard.name_ = name;
  shard.bin_ = std::make_shared<const Bytes>(Bytes{{}, std::move(bytes)});
  if (index) { shard.idx_ = std::make_shared<const Bytes>(Bytes{{}, std::move(*index)}); }
  shard.parse(options);
  return shard;
}

std::string Shard::index_name() const { return fs::path(name_).replace_extension(".idx").string(); }

void Shard::parse(const ShardOptions& options) {
  const bool found_megatron = idx_ && is_megatron_index(idx_->view());
  if (options.format == "raw_u16" || options.format == "raw_u32") {
    idx_.reset();  // headerless files have none; a file of that name belongs to something else
    if (is_numpy(bin_->view())) {
      fail_at_byte(name_, 0, "format \"" + options.format + "\"", "a NumPy file",
                   "tokens without a header, or the format \"auto\"");
    }
    parse_raw(options.format == "raw_u16" ? TokenType::u16 : TokenType::u32);
  } else if (options.format == "megatron" || (options.format == "auto" && found_megatron)) {
    format_ = Format::megatron;
    if (!idx_) {
      throw DataError(name_, "Megatron data needs its index", "no file " + index_name(), "the .idx beside the .bin");
    }
    MegatronIndex index = parse_megatron_index(idx_->view(), index_name(), bin_->view().size());
    type_ = index.type;
    tokens_ = index.tokens;
    starts_ = std::move(index.starts);
    documents_ = static_cast<int64_t>(starts_.size()) - 1;
    has_index_ = true;
    data_ = bin_->view().data();
    return;
  } else if (is_numpy(bin_->view())) {
    const NumpyHeader header = parse_numpy_header(bin_->view(), name_);
    format_ = Format::numpy;
    type_ = header.type;
    tokens_ = header.tokens;
    data_offset_ = header.bytes;
    data_ = bin_->view().data() + header.bytes;
  } else {
    HEBB_ASSERT(options.format == "auto");
    parse_header();
  }
  parse_documents(options);
}

namespace {

/// Whether a file begins with printable ASCII, as text and JSON do and headers and ids do not.
bool looks_like_text(std::span<const uint8_t> bytes) {
  const auto start = bytes.first(std::min<size_t>(bytes.size(), 64));
  return start.size() >= 4 && std::all_of(start.begin(), start.end(), [](uint8_t c) {
           return (c >= 0x20 && c < 0x7F) || c == '\n' || c == '\r' || c == '\t';
         });
}

}  // namespace

void Shard::parse_header() {
  const auto bytes = bin_->view();
  const auto field = [&](int i) { return load_le<int32_t>(bytes.data() + 4 * i); };
  if (bytes.size() < 4 || (field(kFieldMagic) != kShardMagic16 && field(kFieldMagic) != kShardMagic32)) {
    fail_at_byte(
        name_, 0, "magic number",
        bytes.size() < 4         ? fmt::format("{:d} bytes", bytes.size())
        : looks_like_text(bytes) ? "text"
                                 : std::to_string(field(kFieldMagic)),
        looks_like_text(bytes)
            ? "token shards, which hebb data encode makes of text"
            : "20240520 (uint16) or 20240801 (uint32); headerless files need \"format\": \"raw_u16\" or \"raw_u32\"");
  }
  if (bytes.size() < static_cast<uint64_t>(kShardHeaderBytes)) {
    fail_at_byte(name_, bytes.size(), "file ends inside the header", fmt::format("{:d} bytes", bytes.size()),
                 "at least 1024");
  }
  const bool narrow = field(kFieldMagic) == kShardMagic16;
  type_ = narrow ? TokenType::u16 : TokenType::u32;
  const int32_t version = narrow ? kShardVersion16 : kShardVersion32;
  if (field(kFieldVersion) != version) {
    fail_at_byte(name_, 4 * kFieldVersion, "version", std::to_string(field(kFieldVersion)), std::to_string(version));
  }
  tokens_ = field(kFieldTokens);
  const int64_t width = token_width(type_);
  if (tokens_ < 0 || static_cast<uint64_t>(kShardHeaderBytes + tokens_ * width) != bytes.size()) {
    const int64_t room = static_cast<int64_t>(bytes.size()) - kShardHeaderBytes;
    fail_at_byte(name_, 4 * kFieldTokens, fmt::format("number of tokens in a file of {:d} bytes", bytes.size()),
                 std::to_string(tokens_),
                 fmt::format("{:d}{}", room / width, room % width != 0 ? " and a part of a token" : ""));
  }
  data_offset_ = kShardHeaderBytes;
  data_ = bytes.data() + data_offset_;
  const int32_t extended = field(kFieldExtended);
  if (extended != 0 && extended != 1) {
    fail_at_byte(name_, 4 * kFieldExtended, "header field 3", std::to_string(extended), "0 or 1");
  }
  format_ = extended == 1 ? Format::hebb : Format::llmc;
  if (extended == 1) { parse_extended_header(); }
}

void Shard::parse_extended_header() {
  const auto field = [&](int i) { return load_le<int32_t>(bin_->view().data() + 4 * i); };
  const int64_t vocab = field(kFieldVocab);
  if (vocab < 1 || (type_ == TokenType::u16 && vocab > kMaxVocab16)) {
    fail_at_byte(name_, 4 * kFieldVocab, "vocabulary size", std::to_string(vocab),
                 type_ == TokenType::u16 ? "1 to 65536 with uint16 tokens" : "at least 1");
  }
  vocab_size_ = vocab;
  bos_ = field(kFieldBos);
  eos_ = field(kFieldEos);
  for (const int i : {kFieldBos, kFieldEos}) {
    if (field(i) < -1 || field(i) >= vocab) {
      fail_at_byte(name_, 4 * static_cast<uint64_t>(i), i == kFieldBos ? "BOS id" : "EOS id", std::to_string(field(i)),
                   fmt::format("-1 or an id below {:d}", vocab));
    }
  }
  stored_crc_ = static_cast<uint32_t>(field(kFieldCrc));
  tokenizer_hash_ = static_cast<uint64_t>(static_cast<uint32_t>(field(kFieldHashHigh))) << 32 |
                    static_cast<uint32_t>(field(kFieldHashLow));
  for (int i = kFieldUnused; i < kShardHeaderInts; ++i) {
    if (field(i) != 0) {
      fail_at_byte(name_, 4 * static_cast<uint64_t>(i), fmt::format("unused header field {:d}", i),
                   std::to_string(field(i)), "0");
    }
  }
}

void Shard::parse_raw(TokenType type) {
  format_ = Format::raw;
  type_ = type;
  const auto bytes = bin_->view();
  const auto width = static_cast<uint64_t>(token_width(type));
  if (bytes.size() % width != 0) {
    fail_at_byte(name_, bytes.size(), "file size", fmt::format("{:d} bytes", bytes.size()),
                 fmt::format("a multiple of {:d}", width));
  }
  data_ = bytes.data();
  tokens_ = static_cast<int64_t>(bytes.size() / width);
}

void Shard::parse_documents(const ShardOptions& options) {
  if (idx_) {
    documents_ = check_index(idx_->view(), index_name(), tokens_);
    index_starts_ = idx_->view().data() + kIndexHeaderBytes;
    has_index_ = true;
    return;
  }
  if (options.split_token) {
    split_documents(*options.split_token, options.split_before);
  } else {
    starts_.push_back(0);
    if (tokens_ > 0) { starts_.push_back(tokens_); }
  }
  documents_ = static_cast<int64_t>(starts_.size()) - 1;
}

void Shard::split_documents(int64_t split_token, bool split_before) {
  starts_.push_back(0);
  for (int64_t i = 0; i < tokens_; ++i) {
    if (token(i) == split_token) {
      const int64_t start = split_before ? i : i + 1;
      if (start > starts_.back()) { starts_.push_back(start); }
    }
  }
  if (tokens_ > starts_.back()) { starts_.push_back(tokens_); }
}

/// In a file that was cut the last token of the page in which it ends reads as zero. The file's size is asked for only
/// then: network file systems answer slowly.
void Shard::require_uncut_after(int64_t begin, int64_t count) const {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto width = static_cast<uintptr_t>(token_width(type_));
  if (count == 0 || bin_->map.data() == nullptr) { return; }
  const auto map = reinterpret_cast<uintptr_t>(bin_->map.data()), first = reinterpret_cast<uintptr_t>(data_);
  const uintptr_t last_read = first + static_cast<uintptr_t>(begin + count) * width - 1;
  const uintptr_t end = std::min((last_read / page + 1) * page, map + bin_->map.size());
  const int64_t last = static_cast<int64_t>((end - first) / width) - 1;  // whole token of the page
  bool is_zero = false;
  read_mapped([&] { is_zero = token(last) == 0; });
  if (is_zero) { require_uncut(reinterpret_cast<const uint8_t*>(end - 1)); }
}

int64_t Shard::token(int64_t i) const {
  return with_token_type(type_, [&]<class T>(T) -> int64_t { return load_le<T>(data_ + i * token_width(type_)); });
}

uint64_t Shard::byte_offset(int64_t token) const {
  return static_cast<uint64_t>(data_offset_ + token * token_width(type_));
}

void Shard::read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const {
  HEBB_ASSERT(begin >= 0 && count >= 0 && begin + count <= tokens_);
  bool fits = false;
  read_mapped([&] {
    fits = with_token_type(
        type_, [&]<class T>(T) { return copy_tokens<T>(data_ + begin * token_width(type_), count, vocab_size, out); });
  });
  require_uncut_after(begin, count);
  if (fits) { return; }
  for (int64_t i = begin; i < begin + count; ++i) {
    const int64_t id = token(i);
    if (id < 0 || id >= vocab_size) {
      fail_at_byte(name_, byte_offset(i), "token id outside the vocabulary", std::to_string(id),
                   fmt::format("0 <= id < {:d}", vocab_size));
    }
  }
}

uint32_t Shard::continue_crc(int64_t begin, int64_t count, uint32_t crc) const {
  const int64_t width = token_width(type_);
  uint32_t continued = 0;
  read_mapped([&] { continued = crc32(data_ + begin * width, static_cast<size_t>(count * width), crc); });
  if (count > 0) { require_uncut(data_ + (begin + count) * width - 1); }  // a fingerprint may follow, of zeros
  return continued;
}

void Shard::require_crc(uint32_t computed) const {
  if (stored_crc_ && computed != *stored_crc_) {
    fail_at_byte(name_, static_cast<uint64_t>(data_offset_),
                 fmt::format("CRC-32 of the {:d} tokens does not match the header (byte 28)", tokens_),
                 fmt::format("0x{:08x}", computed), fmt::format("0x{:08x}", *stored_crc_));
  }
}

}  // namespace hebb
