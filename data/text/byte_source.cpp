#include "data/text/byte_source.h"

#include <fmt/core.h>

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/input_file.h"
#include "core/utf8.h"

#if HEBB_HAVE_ZLIB
#include <zlib.h>
#endif
#if HEBB_HAVE_ZSTD
#include <zstd.h>
#endif

namespace hebb {
namespace {

constexpr size_t kBlock = 256 * 1024;
[[maybe_unused]] constexpr int kZstdWindowLog = 27;

class PlainFile final : public ByteSource {
 public:
  explicit PlainFile(const fs::path& path) : path_(path), file_(path) {
    if (!file_.problem().empty()) { fail(); }
    ::posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }

  size_t read(char* out, size_t size) override {
    size_t got = std::min(size, head_.size());
    if (got > 0) {
      std::memcpy(out, head_.data(), got);
      head_.erase(0, got);
    } else {
      got = read_file(out, size);
    }
    offset_ += got;
    return got;
  }
  /// The first four bytes (fewer in a shorter file), which stay unread; works for pipes too.
  std::string_view peek() {
    char bytes[4];
    while (head_.size() < sizeof bytes) {
      const size_t got = read_file(bytes, sizeof bytes - head_.size());
      if (got == 0) { break; }
      head_.append(bytes, got);
    }
    return head_;
  }
  uint64_t file_offset() const override { return offset_; }
  bool is_compressed() const override { return false; }
  std::string path() const { return path_.string(); }

 private:
  size_t read_file(char* out, size_t size) {
    const ssize_t got = file_.read(out, size);
    if (got < 0) { fail(); }
    return static_cast<size_t>(got);
  }
  [[noreturn]] void fail() const {
    if (file_.is_missing()) { throw MissingFileError(path_.string(), file_.problem()); }
    throw DataError(path_.string(), file_.problem());
  }
  fs::path path_;
  InputFile file_;
  std::string head_;
  uint64_t offset_ = 0;
};

/// Compressed input by blocks; knows the offset of the next unread byte.
class CompressedFile : public ByteSource {
 public:
  explicit CompressedFile(std::unique_ptr<PlainFile> file) : file_(std::move(file)), block_(kBlock) {}
  uint64_t file_offset() const override { return file_->file_offset() - (end_ - at_); }
  bool is_compressed() const override { return true; }

 protected:
  /// Unread input, after reading more if there is none; empty at the end of the file.
  std::string_view input() {
    if (at_ == end_) {
      at_ = 0;
      end_ = file_->read(block_.data(), block_.size());
    }
    return {block_.data() + at_, end_ - at_};
  }
  void consume(size_t size) { at_ += size; }
  std::string where() const { return fmt::format("{}: byte {:d}", file_->path(), file_offset()); }

 private:
  std::unique_ptr<PlainFile> file_;
  std::vector<char> block_;
  size_t at_ = 0, end_ = 0;
};

#if HEBB_HAVE_ZLIB
class GzipFile final : public CompressedFile {
 public:
  explicit GzipFile(std::unique_ptr<PlainFile> file) : CompressedFile(std::move(file)) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (::inflateInit2(&stream_, kGzipOnly) != Z_OK) { throw MemoryError(where(), "no memory for gzip"); }
  }
  ~GzipFile() override { ::inflateEnd(&stream_); }

  size_t read(char* out, size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(std::min<size_t>(size, 1 << 30));
    const uInt wanted = stream_.avail_out;
    while (stream_.avail_out == wanted && start_member()) { inflate_some(); }
    return wanted - stream_.avail_out;
  }

 private:
  /// False at the end of the file behind a complete member.
  bool start_member() {
    if (is_inside_) { return true; }
    std::string_view bytes = input();
    while (is_later_ && !bytes.empty() && bytes[0] == '\0') {
      consume(1);
      bytes = input();
    }
    if (bytes.empty()) { return false; }
    if (bytes[0] != '\x1F') {
      throw DataError(where(), "unknown bytes after a gzip stream", hex_bytes(bytes), "another gzip stream or the end");
    }
    ::inflateReset(&stream_);
    is_inside_ = is_later_ = true;
    return true;
  }

  void inflate_some() {
    const std::string_view bytes = input();
    if (bytes.empty()) {
      throw DataError(where(), "gzip stream is cut off", "the end of the file", "more compressed data");
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    consume(bytes.size() - stream_.avail_in);
    if (status == Z_STREAM_END) {
      is_inside_ = false;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      throw DataError(where(), "gzip stream is damaged" + (stream_.msg ? std::string(": ") + stream_.msg : ""));
    }
  }

  z_stream stream_{};
  bool is_inside_ = false, is_later_ = false;
};
#endif

#if HEBB_HAVE_ZSTD
class ZstdFile final : public CompressedFile {
 public:
  explicit ZstdFile(std::unique_ptr<PlainFile> file)
      : CompressedFile(std::move(file)), stream_(::ZSTD_createDStream()) {
    if (stream_ == nullptr) { throw MemoryError(where(), "no memory for zstd"); }
    check(::ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, kZstdWindowLog));
  }
  ~ZstdFile() override { ::ZSTD_freeDStream(stream_); }

  size_t read(char* out, size_t size) override {
    ZSTD_outBuffer output{out, size, 0};
    while (output.pos == 0) {
      const std::string_view bytes = input();
      // The decoder may hold finished output although its input is used up.
      if (bytes.empty() && !may_hold_output_) {
        if (is_inside_) {
          throw DataError(where(), "zstd stream is cut off", "the end of the file", "more compressed data");
        }
        return 0;
      }
      ZSTD_inBuffer input_buffer{bytes.data(), bytes.size(), 0};
      const size_t status = ::ZSTD_decompressStream(stream_, &output, &input_buffer);
      consume(input_buffer.pos);
      check(status);
      is_inside_ = status != 0;
      may_hold_output_ = is_inside_ && output.pos == output.size;
    }
    return output.pos;
  }

 private:
  void check(size_t status) const {
    if (::ZSTD_isError(status)) {
      throw DataError(where(), std::string("zstd stream is damaged: ") + ::ZSTD_getErrorName(status));
    }
  }

  ZSTD_DStream* stream_;
  bool is_inside_ = false, may_hold_output_ = false;
};
#endif

bool is_gzip(std::string_view head) { return head.substr(0, 2) == "\x1F\x8B"; }

bool is_zstd(std::string_view head) {
  if (head.size() < 4) { return false; }
  uint32_t magic;
  std::memcpy(&magic, head.data(), 4);
  constexpr uint32_t kFrame = 0xFD2FB528, kSkippable = 0x184D2A50, kSkippableMask = 0xFFFFFFF0;
  return magic == kFrame || (magic & kSkippableMask) == kSkippable;
}

}  // namespace

std::unique_ptr<ByteSource> ByteSource::open(const fs::path& path) {
  auto file = std::make_unique<PlainFile>(path);
  const std::string head(file->peek());
  if (is_gzip(head)) {
#if HEBB_HAVE_ZLIB
    return std::make_unique<GzipFile>(std::move(file));
#else
    throw DataError(path.string(), "gzip is not in this build", "a gzip file", "a build with the package zlib1g-dev");
#endif
  }
  if (is_zstd(head)) {
#if HEBB_HAVE_ZSTD
    return std::make_unique<ZstdFile>(std::move(file));
#else
    throw DataError(path.string(), "zstd is not in this build", "a zstd file", "a build with the package libzstd-dev");
#endif
  }
  return file;
}

}  // namespace hebb
