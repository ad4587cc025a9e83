#include "core/files.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/input_file.h"
#include "core/lfs_pointer.h"
#include "core/map_faults.h"
#include "core/retry.h"
#include "core/sign_of_life.h"

namespace hebb {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail_read(ExitCode code, const fs::path& path, const std::string& what, bool is_missing = false) {
  if (is_missing && code == ExitCode::kData) { throw MissingFileError(path.string(), what); }
  switch (code) {
    case ExitCode::kUsage: throw ConfigError(path.string(), what);
    case ExitCode::kData: throw DataError(path.string(), what);
    case ExitCode::kCheckpoint: throw CheckpointError(path.string(), what);
    default: throw Error(code, path.string() + ": " + what);
  }
}

[[noreturn]] void fail_write(const fs::path& path, const char* what, int error) {
  throw CheckpointError(path.string(), std::string(what) + ": " + reason(error));
}

/// A plain file: a pipe is not waited for.
Descriptor open_for_reading(const fs::path& path, ExitCode code) {
  Descriptor file(retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!file.is_open()) { fail_read(code, path, "cannot open: " + reason(errno), errno == ENOENT); }
  return file;
}

void refuse_pointer(ExitCode code, const fs::path& path, std::string_view bytes) {
  if (is_lfs_pointer(bytes)) { fail_read(code, path, std::string("found ") + kLfsPointer); }
}

/// An empty file; `path` is what messages name.
Descriptor create(const fs::path& file, const fs::path& path) {
  Descriptor created(retried([&] { return ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); }));
  if (!created.is_open()) { fail_write(path, "cannot create", errno); }
  return created;
}

void sync_file(const Descriptor& file, const fs::path& path) {
  // Pipes, devices and some network file systems cannot sync; they say EINVAL or ENOTSUP.
  if (retried([&] { return ::fsync(file.fd()); }) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail_write(path, "cannot flush to disk", errno);
  }
}

}  // namespace

bool is_special_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

bool Descriptor::close() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

void write_all(const Descriptor& file, const fs::path& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = retried([&] { return ::write(file.fd(), bytes.data(), bytes.size()); });
    if (n < 0) { fail_write(path, "cannot write", errno); }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

std::string read_file(const fs::path& path, ExitCode code) {
  InputFile file(path);
  std::string bytes;
  size_t used = 0;
  bytes.resize(file.size() + 1);  // one more, so that the end shows in one pass
  for (;;) {
    if (used == bytes.size()) { bytes.resize(std::max<size_t>(2 * used, 65536)); }
    const ssize_t n = file.read(bytes.data() + used, bytes.size() - used);
    if (n == 0) {
      bytes.resize(used);
      refuse_pointer(code, path, bytes);
      return bytes;
    }
    if (n < 0) { fail_read(code, path, file.problem(), file.is_missing()); }
    used += static_cast<size_t>(n);
  }
}

void write_file_atomic(const fs::path& path, std::string_view bytes) {
  if (is_special_file(path)) {
    FileWriter file(path);
    file.write(bytes.data(), bytes.size());
    file.close();
    return;
  }
  const fs::path temporary = fmt::format("{}.tmp-{:d}", path.string(), ::getpid());
  try {
    const Descriptor file = create(temporary, path);
    write_all(file, path, bytes);
    sync_file(file, path);
    if (retried([&] { return ::rename(temporary.c_str(), path.c_str()); }) != 0) {
      fail_write(path, "cannot replace", errno);
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  fsync_directory(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

MappedFile::MappedFile(const fs::path& path, ExitCode code) : path_(path) {
  const Descriptor file(open_for_reading(path, code));
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) { fail_read(code, path, "cannot read: " + reason(errno)); }
  if (!S_ISREG(info.st_mode)) {
    fail_read(code, path, S_ISDIR(info.st_mode) ? "found a folder, expected a file" : "expected a regular file");
  }
  size_ = static_cast<uint64_t>(info.st_size);
  if (size_ == 0) {
    return;  // mmap refuses empty files
  }
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd(), 0);  // keeps the file open by itself
  if (map == MAP_FAILED) { fail_read(code, path, "cannot map into memory: " + reason(errno)); }
  data_ = static_cast<const uint8_t*>(map);
  note_map(data_, size_, path.string(), code, file.fd());
  sign_of_life();
  refuse_pointer(code, path, {static_cast<const char*>(map), size_});
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) { return; }
  forget_map(data_);
  ::munmap(const_cast<uint8_t*>(data_), size_);
}

FileWriter::FileWriter(const fs::path& path) : path_(path), file_(create(path, path)) { buffer_.reserve(kBufferBytes); }

void FileWriter::write(const void* bytes, size_t size) {
  HEBB_ASSERT(file_.is_open());
  sign_of_life();
  const char* begin = static_cast<const char*>(bytes);
  written_ += size;
  if (buffer_.size() + size > kBufferBytes) { flush(); }
  if (size >= kBufferBytes) {
    write_all(file_, path_, {begin, size});
  } else {
    buffer_.insert(buffer_.end(), begin, begin + size);
  }
}

void FileWriter::flush() {
  write_all(file_, path_, {buffer_.data(), buffer_.size()});
  buffer_.clear();
}

void FileWriter::close() {
  if (!file_.is_open()) { return; }
  flush();
  sync_file(file_, path_);
  if (!file_.close()) { fail_write(path_, "cannot close", errno); }
}

void fsync_directory(const fs::path& folder_path) {
  std::error_code error;
  const fs::path path = folder_path == "." ? fs::current_path(error) : folder_path;  // a name for messages
  const Descriptor folder(retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!folder.is_open()) { fail_write(path, "cannot open the folder", errno); }
  sync_file(folder, path);
}

}  // namespace hebb
