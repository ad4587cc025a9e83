#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/files.h"

namespace hebb {

/// A file read from front to back, uncompressed on the way if it starts with the magic bytes of gzip
/// or zstd (the name does not matter). Memory is constant.
/// Concatenated gzip members and zstd frames, skippable frames and windows of up to 2^27 bytes are
/// read; what follows a compressed stream must be another one (zero bytes may pad gzip).
/// Errors: DataError with file and offset for unreadable files, damaged and cut-off streams, and for
/// compression that this build lacks. Source: RFC 1952, RFC 8878; docs/verbs/data.md.
class ByteSource {
 public:
  static std::unique_ptr<ByteSource> open(const fs::path& path);
  virtual ~ByteSource() = default;

  /// Up to `size` bytes; 0 at the end.
  virtual size_t read(char* out, size_t size) = 0;
  /// Bytes of the file consumed so far.
  virtual uint64_t file_offset() const = 0;
  virtual bool is_compressed() const = 0;
};

}  // namespace hebb
