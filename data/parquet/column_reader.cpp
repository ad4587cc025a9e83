#include "data/parquet/column_reader.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "core/utf8.h"

namespace hebb {
namespace {

constexpr uint64_t kTailBytes = 8;  // length of the footer, magic

}  // namespace

ParquetColumn::ParquetColumn(const fs::path& path, const std::string& field)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status {};
  if (!file_.is_open() || ::fstat(file_.fd(), &status) != 0) {
    throw DataError(path.string(), std::string("cannot open: ") + std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    throw DataError(path.string(), "Parquet is read from files", "a pipe or a device",
                    "a file, as its footer comes last");
  }
  size_ = static_cast<uint64_t>(status.st_size);
  const auto refuse = [&](const char* what, const std::string& found, const char* expected) {
    throw DataError(path.string(), what, found, expected);
  };
  if (size_ < kParquetMagic.size() + kTailBytes) {
    refuse("not a Parquet file", fmt::format("{:d} bytes", size_), "at least 12");
  }
  const std::string head = read(0, kParquetMagic.size()), tail = read(size_ - kTailBytes, kTailBytes);
  if (head == "PARE") { refuse("the file", "an encrypted footer", "data without encryption"); }
  if (head != kParquetMagic) { refuse("not a Parquet file", "bytes " + hex_bytes(head), "PAR1 at the beginning"); }
  if (tail.substr(4) != kParquetMagic) {
    refuse("the Parquet file is cut off", "bytes " + hex_bytes(tail.substr(4)) + " at its end", "PAR1");
  }
  uint32_t footer = 0;
  std::memcpy(&footer, tail.data(), sizeof footer);
  if (footer > size_ - kTailBytes - kParquetMagic.size()) {
    refuse("size of the footer", fmt::format("{:d} bytes", footer), "a size inside the file");
  }
  data_end_ = size_ - kTailBytes - footer;
  schema_ = parse_parquet_footer(read(data_end_, footer), data_end_, field, path.string());
}

std::string ParquetColumn::read(uint64_t begin, uint64_t size) const {
  std::string bytes(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t got = ::pread(file_.fd(), bytes.data() + done, size - done, static_cast<off_t>(begin + done));
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      throw DataError(path_.string(), "the file has been cut while it was read");
    } else if (errno != EINTR) {
      throw DataError(path_.string(), std::string("cannot read: ") + std::strerror(errno));
    }
  }
  return bytes;
}

bool ParquetColumn::next(std::string_view& value) {
  while (page_left_ == 0) {
    if (!next_page()) { return false; }
  }
  --page_left_;
  ++rows_;
  const bool is_null = schema_.is_optional && levels_.next() == 0;
  value = is_null ? std::string_view() : strings_.next();
  return true;
}

/// Opens the next page; false at the end of the file.
bool ParquetColumn::next_page() {
  while (chunk_left_ == 0) {
    if (group_ == schema_.row_groups.size()) {
      offset_ = size_;
      return false;
    }
    const ParquetChunk& chunk = schema_.row_groups[group_++];
    chunk_left_ = chunk.values;
    offset_ = chunk.begin;
    page_ = 0;
    has_dictionary_ = false;
  }
  where_ = fmt::format("{}: row group {:d}, column {}, page {:d}", path_.string(), group_ - 1, schema_.name, page_++);
  const ParquetPageHeader header = read_header();
  std::string bytes = read(offset_, static_cast<uint64_t>(header.compressed));
  offset_ += bytes.size();
  if (header.crc && *header.crc != crc32(bytes.data(), bytes.size())) {
    throw DataError(where_, "CRC-32 of the page", fmt::format("0x{:08x}", crc32(bytes.data(), bytes.size())),
                    fmt::format("0x{:08x}", *header.crc));
  }
  open_page(header, std::move(bytes));
  return true;
}

/// Reads the header at offset_, which it moves behind it.
ParquetPageHeader ParquetColumn::read_header() {
  constexpr uint64_t kFirstTry = 1 << 12, kMost = 1 << 26;  // statistics may hold long strings
  for (uint64_t size = kFirstTry;; size *= 8) {
    const uint64_t rest = data_end_ - offset_;
    const std::string bytes = read(offset_, std::min(size, rest));
    try {
      ThriftReader reader(bytes, where_);
      const ParquetPageHeader header = parse_page_header(reader);
      const uint64_t room = rest - reader.position();
      if (header.compressed < 0 || static_cast<uint64_t>(header.compressed) > room) {
        throw DataError(where_, "compressed size of the page", fmt::format("{:d} bytes", header.compressed),
                        fmt::format("0 to {:d}, up to the footer", room));
      }
      if (header.uncompressed < 0 || header.uncompressed > INT32_MAX) {
        throw DataError(where_, "size of the page", fmt::format("{:d} bytes", header.uncompressed), "0 to 2^31 - 1");
      }
      offset_ += reader.position();
      return header;
    } catch (const ThriftCutOff&) {
      if (size >= rest || size > kMost) { throw; }
    }
  }
}

std::string ParquetColumn::unpack(std::string_view bytes, int64_t size) const {
  return decompress(schema_.row_groups[group_ - 1].codec, bytes, static_cast<size_t>(size), where_);
}

void ParquetColumn::open_page(const ParquetPageHeader& header, std::string bytes) {
  if (header.type == ParquetPageHeader::index) { return; }
  const bool is_data = header.type == ParquetPageHeader::data || header.type == ParquetPageHeader::data_v2;
  if (!is_data && header.type != ParquetPageHeader::dictionary) {
    throw DataError(where_, "type of the page", std::to_string(header.type), "data (0, 3) or dictionary (2)");
  }
  // 32 bits, as the format has it: a run of nulls takes two bytes, whatever its length.
  const uint64_t most = is_data ? std::min<uint64_t>(chunk_left_, INT32_MAX)
                                : static_cast<uint64_t>(header.uncompressed) / sizeof(uint32_t);
  if (header.values < 0 || static_cast<uint64_t>(header.values) > most) {
    throw DataError(where_, "number of values", std::to_string(header.values), fmt::format("0 to {:d}", most));
  }
  const auto values = static_cast<uint64_t>(header.values);
  if (!is_data) {
    constexpr int64_t kPlain = 0, kPlainDictionary = 2;
    if (header.encoding != kPlain && header.encoding != kPlainDictionary) {
      throw DataError(where_, "encoding of the dictionary", std::to_string(header.encoding), "plain (0, 2)");
    }
    dictionary_data_ = unpack(bytes, header.uncompressed);
    dictionary_ = dictionary_strings(dictionary_data_, values, where_);
    has_dictionary_ = true;
    return;
  }
  std::string_view strings;
  if (header.type == ParquetPageHeader::data) {
    constexpr int64_t kHybrid = 3;
    data_ = unpack(bytes, header.uncompressed);
    strings = data_;
    if (schema_.is_optional) {
      if (header.level_encoding != kHybrid) {
        throw DataError(where_, "encoding of definition levels", std::to_string(header.level_encoding), "hybrid (3)");
      }
      uint32_t size = 0;
      if (strings.size() >= sizeof size) { std::memcpy(&size, strings.data(), sizeof size); }
      if (strings.size() < sizeof size || size > strings.size() - sizeof size) {
        throw DataError(where_, "definition levels", fmt::format("{:d} bytes", size), "a size inside the page");
      }
      levels_ = HybridReader(strings.substr(sizeof size, size), 1, &where_);
      strings.remove_prefix(sizeof size + size);
    }
  } else {
    if (header.repetition_bytes != 0) {
      throw DataError(where_, "repetition levels", fmt::format("{:d} bytes", header.repetition_bytes), "none");
    }
    if (header.level_bytes < 0 || static_cast<uint64_t>(header.level_bytes) > bytes.size() ||
        header.level_bytes > header.uncompressed) {
      throw DataError(where_, "definition levels", fmt::format("{:d} bytes", header.level_bytes),
                      "a size inside the page");
    }
    levels_data_ = std::move(bytes);
    const std::string_view page = levels_data_;
    const auto levels = static_cast<size_t>(header.level_bytes);
    levels_ = HybridReader(page.substr(0, levels), 1, &where_);
    const std::string_view packed = page.substr(levels);
    const int64_t size = header.uncompressed - header.level_bytes;
    data_ = header.is_compressed ? unpack(packed, size)
                                 : decompress(ParquetCodec::none, packed, static_cast<size_t>(size), where_);
    strings = data_;
  }
  strings_ = PageStrings(header.encoding, strings, values, has_dictionary_ ? &dictionary_ : nullptr, &where_);
  chunk_left_ -= values;
  page_left_ = values;
}

}  // namespace hebb
