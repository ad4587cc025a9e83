#include "data/parquet/codec.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "core/error.h"

#if HEBB_HAVE_ZLIB
#include <zlib.h>
#endif
#if HEBB_HAVE_ZSTD
#include <zstd.h>
#endif

namespace hebb {
namespace {

/// A raw Snappy block: its length, then literals and copies of what is already there.
class SnappyDecoder {
 public:
  SnappyDecoder(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  std::string run(size_t size) {
    constexpr size_t kMostExpansion = 22;  // 64 bytes of a copy by 3
    if (length() != size || size > kMostExpansion * bytes_.size()) { fail("its length is wrong"); }
    out_.reserve(size);
    while (at_ < bytes_.size()) {
      const auto tag = static_cast<uint8_t>(bytes_[at_++]);
      tag & 3 ? copy(tag) : literal(tag >> 2);
      if (out_.size() > size) { fail("it holds more than its length"); }
    }
    if (out_.size() != size) { fail("it ends too early"); }
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const char* why) const {
    throw DataError(where_, fmt::format("snappy data is damaged at byte {:d}: {}", at_, why));
  }
  /// A little-endian number of so many bytes.
  size_t number(size_t count) {
    if (count > bytes_.size() - at_) { fail("it ends inside a tag"); }
    size_t value = 0;
    for (size_t i = 0; i < count; ++i) { value |= static_cast<size_t>(static_cast<uint8_t>(bytes_[at_++])) << 8 * i; }
    return value;
  }
  size_t length() {
    size_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      const size_t next = number(1);
      value |= (next & 0x7F) << shift;
      if (next < 0x80) { return value; }
    }
    fail("its length is no number");
  }
  void literal(size_t length) {
    constexpr size_t kLongest = 59;  // beyond it the number of bytes of the length
    length = (length > kLongest ? number(length - kLongest) : length) + 1;
    if (length > bytes_.size() - at_) { fail("it ends inside a literal"); }
    out_ += bytes_.substr(at_, length);
    at_ += length;
  }
  void copy(uint8_t tag) {
    size_t length = (tag >> 2) + 1, distance = 0;
    if ((tag & 3) == 1) {
      length = 4 + (tag >> 2 & 7);
      distance = static_cast<size_t>(tag >> 5) << 8 | number(1);
    } else {
      distance = number((tag & 3) == 2 ? 2 : 4);
    }
    if (distance == 0 || distance > out_.size()) { fail("a copy begins before the data"); }
    for (; length > 0; --length) { out_ += out_[out_.size() - distance]; }  // may overlap itself
  }

  std::string_view bytes_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0;
};

/// Lets `fill(out, size)` write to the end of a growing string; it returns how much, 0 at the end of its stream.
template <class Fill> std::string grow(size_t size, const char* name, const std::string& where, const Fill& fill) {
  constexpr size_t kFirst = 1 << 16;
  std::string out;
  size_t done = 0;
  while (true) {
    if (done == out.size()) { out.resize(std::min(size + 1, std::max(kFirst, 2 * done))); }  // one more than is right
    const size_t got = fill(out.data() + done, out.size() - done);
    done += got;
    if (done > size || got == 0) { break; }
  }
  if (done != size) {
    throw DataError(where, std::string(name) + " data has another length",
                    done > size ? "more" : fmt::format("{:d} bytes", done), fmt::format("{:d} bytes", size));
  }
  out.resize(size);
  return out;
}

#if HEBB_HAVE_ZLIB
class Inflater {
 public:
  Inflater(std::string_view bytes, const std::string& where) : where_(where) {
    constexpr int kGzipOrZlib = 32 + MAX_WBITS;
    if (::inflateInit2(&stream_, kGzipOrZlib) != Z_OK) { throw MemoryError(where, "no memory for gzip"); }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { ::inflateEnd(&stream_); }

  size_t fill(char* out, size_t size) {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out == size && !(is_finished_ && stream_.avail_in == 0)) {
      if (std::exchange(is_finished_, false)) { ::inflateReset(&stream_); }
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      is_finished_ = status == Z_STREAM_END;
      if (status != Z_OK && status != Z_STREAM_END) {
        throw DataError(where_, stream_.avail_in == 0 ? "gzip data is cut off" : "gzip data is damaged");
      }
    }
    return size - stream_.avail_out;
  }

 private:
  const std::string& where_;
  z_stream stream_{};
  bool is_finished_ = false;  // with a member
};

std::string decompress_gzip(std::string_view bytes, size_t size, const std::string& where) {
  Inflater inflater(bytes, where);
  return grow(size, "gzip", where, [&](char* out, size_t room) { return inflater.fill(out, room); });
}
#endif

#if HEBB_HAVE_ZSTD
std::string decompress_zstd(std::string_view bytes, size_t size, const std::string& where) {
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ::ZSTD_freeDStream(stream); }
  };
  const std::unique_ptr<ZSTD_DStream, Free> stream(::ZSTD_createDStream());
  if (!stream) { throw MemoryError(where, "no memory for zstd"); }
  ZSTD_inBuffer input{bytes.data(), bytes.size(), 0};
  return grow(size, "zstd", where, [&](char* out, size_t room) {
    ZSTD_outBuffer output{out, room, 0};
    size_t read = 0;
    do {
      read = input.pos;
      const size_t status = ::ZSTD_decompressStream(stream.get(), &output, &input);
      if (::ZSTD_isError(status)) {
        throw DataError(where, std::string("zstd data is damaged: ") + ::ZSTD_getErrorName(status));
      }
    } while (output.pos == 0 && input.pos > read);
    return output.pos;
  });
}
#endif

}  // namespace

void require_codec(int64_t codec, const std::string& where) {
  static constexpr const char* kNames[] = {"none", "snappy", "gzip", "LZO", "brotli", "LZ4", "zstd", "LZ4"};
  const bool is_known = codec >= 0 && codec <= static_cast<int64_t>(ParquetCodec::lz4_raw);
  switch (is_known ? static_cast<ParquetCodec>(codec) : ParquetCodec::lzo) {
    case ParquetCodec::none:
    case ParquetCodec::snappy: return;
    case ParquetCodec::gzip:
#if HEBB_HAVE_ZLIB
      return;
#else
      throw DataError(where, "gzip is not in this build", "gzip", "a build with the package zlib1g-dev");
#endif
    case ParquetCodec::zstd:
#if HEBB_HAVE_ZSTD
      return;
#else
      throw DataError(where, "zstd is not in this build", "zstd", "a build with the package libzstd-dev");
#endif
    default: break;
  }
  throw DataError(where, "compression", is_known ? kNames[codec] : fmt::format("number {:d}", codec),
                  "none, snappy, gzip or zstd");
}

std::string decompress(ParquetCodec codec, std::string_view bytes, size_t size, const std::string& where) {
  if (size == 0 && bytes.empty()) { return ""; }
  switch (codec) {
    case ParquetCodec::snappy: return SnappyDecoder(bytes, where).run(size);
#if HEBB_HAVE_ZLIB
    case ParquetCodec::gzip: return decompress_gzip(bytes, size, where);
#endif
#if HEBB_HAVE_ZSTD
    case ParquetCodec::zstd: return decompress_zstd(bytes, size, where);
#endif
    default: break;
  }
  if (bytes.size() != size) {
    throw DataError(where, "page size", fmt::format("{:d} bytes", bytes.size()),
                    fmt::format("{:d}, as without compression", size));
  }
  return std::string(bytes);
}

}  // namespace hebb
