#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"

namespace hebb {

namespace fs = std::filesystem;

/// Whole file as a string. Throws Error of the given class (`code`) naming the path and the system's reason.
std::string read_file(const fs::path& path, ExitCode code = ExitCode::kData);

/// A device, pipe or socket: a rename would put a plain file in its place.
bool is_special_file(const fs::path& path);

/// Writes via "PATH.tmp-PID", fsync, rename, fsync of the folder: readers see the old or the new
/// file, never a part. The temporary is removed on failure. A full disk or a read-only folder gives
/// a CheckpointError with path and reason.
void write_file_atomic(const fs::path& path, std::string_view bytes);

/// A file descriptor that is closed on every way out.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  bool close();  // false, and the reason in errno, where the system has an error to report

 private:
  int fd_;
};

/// Writes everything. Errors: CheckpointError with the system's reason, naming `path`.
void write_all(const Descriptor& file, const fs::path& path, std::string_view bytes);

/// Read-only memory map of a whole file; the file stays open for its lifetime.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const fs::path& path, ExitCode code = ExitCode::kData);
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  const fs::path& path() const { return path_; }

 private:
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  fs::path path_;
};

/// Sequential writer with explicit error reports (short writes, ENOSPC, EIO): every failure throws
/// CheckpointError naming the path. close() fsyncs; the destructor closes without a throw.
class FileWriter {
 public:
  explicit FileWriter(const fs::path& path);
  void write(const void* bytes, size_t size);
  uint64_t written() const { return written_; }
  void close();

 private:
  fs::path path_;
  Descriptor file_;
  uint64_t written_ = 0;
  std::vector<char> buffer_;
  void flush();
};

void fsync_directory(const fs::path& path);

/// A path, a folder (the files in it), or a pattern (*, ?, [..] in any component; ** for any number of folders): files
/// in byte order. A component that exists under its own name is that name. Names with a leading dot are left out, and
/// ** does not follow links to folders. Throws MissingFileError when nothing matches.
std::vector<fs::path> expand_paths(const std::string& pattern);

}  // namespace hebb
