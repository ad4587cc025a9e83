#include "core/files.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace hebb {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail_read(ExitCode code, const fs::path& path, const std::string& what) {
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

Descriptor open_for_reading(const fs::path& path, ExitCode code) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.is_open()) { return file; }
  const int error = errno;
  const std::string what = "cannot open: " + reason(error);
  if (error == ENOENT && code == ExitCode::kData) { throw MissingFileError(path.string(), what); }
  fail_read(code, path, what);
}

/// An empty file; `path` is what messages name.
Descriptor create(const fs::path& file, const fs::path& path) {
  Descriptor created(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!created.is_open()) { fail_write(path, "cannot create", errno); }
  return created;
}

void sync_file(const Descriptor& file, const fs::path& path) {
  // Pipes, devices and some network file systems cannot sync; they say EINVAL or ENOTSUP.
  if (::fsync(file.fd()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail_write(path, "cannot flush to disk", errno);
  }
}

/// Calls visit(entry) for each entry of a folder whose name has no leading dot.
template <class Visit> void each_visible(const fs::path& folder, Visit&& visit) {
  std::error_code error;
  fs::directory_iterator it(folder, error), end;
  for (; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with('.')) { visit(*it); }
  }
  if (error) { throw DataError(folder.string(), "cannot list the folder: " + error.message()); }
}

void append_files(const fs::path& path, std::vector<fs::path>& files) {
  std::error_code error;
  if (!fs::is_directory(path, error)) { return files.push_back(path); }
  each_visible(path, [&](const fs::directory_entry& entry) {
    if (!fs::is_directory(entry.path())) { files.push_back(entry.path()); }
  });
}

std::vector<fs::path> glob_paths(const std::string& pattern) {
  glob_t matches{};
  const int status = ::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT | GLOB_NOESCAPE, nullptr, &matches);
  const int error = errno;
  std::vector<fs::path> paths(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  if (status == GLOB_ABORTED && (error == ENOENT || error == ENOTDIR)) {
    return {};  // a folder of the pattern does not exist: nothing matches
  }
  if (status == GLOB_ABORTED) { throw DataError(pattern, "cannot list a folder: " + reason(error)); }
  if (status == GLOB_NOSPACE) { throw MemoryError(pattern, "not enough memory to list files"); }
  return paths;
}

/// `folder` and all folders below it, but hidden ones and links.
std::vector<fs::path> folders_below(const fs::path& folder) {
  std::vector<fs::path> folders{folder};
  for (size_t i = 0; i < folders.size(); ++i) {
    each_visible(fs::path(folders[i]), [&](const fs::directory_entry& entry) {
      if (fs::is_directory(entry.symlink_status())) { folders.push_back(entry.path()); }
    });
  }
  return folders;
}

/// What a pattern matches; a first component ** stands for any number of folders.
std::vector<fs::path> match_paths(const std::string& pattern) {
  const std::string mark = "/**/", whole = pattern.starts_with("**/") ? "./" + pattern : pattern;
  const size_t at = whole.find(mark);
  if (at == std::string::npos) { return glob_paths(pattern); }
  const fs::path root = at == 0 ? "/" : whole.substr(0, at);
  std::error_code error;
  std::vector<fs::path> found;
  for (const fs::path& start : fs::exists(root, error) ? std::vector{root} : glob_paths(root.string())) {
    if (!fs::is_directory(start, error)) { continue; }
    for (const fs::path& folder : folders_below(start)) {
      for (const fs::path& path : match_paths((folder / whole.substr(at + mark.size())).string())) {
        if (!fs::is_directory(path, error)) { found.push_back(path); }
      }
    }
  }
  std::sort(found.begin(), found.end());  // of several ** each may find the same file
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
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
    const ssize_t n = ::write(file.fd(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) { continue; }
    if (n < 0) { fail_write(path, "cannot write", errno); }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

std::string read_file(const fs::path& path, ExitCode code) {
  const Descriptor file(open_for_reading(path, code));
  struct stat info {};
  std::string bytes;
  size_t used = 0;
  if (::fstat(file.fd(), &info) == 0 && S_ISREG(info.st_mode)) {
    bytes.resize(static_cast<size_t>(info.st_size) + 1);  // one more, so that the end shows in one pass
  }
  for (;;) {
    if (used == bytes.size()) { bytes.resize(std::max<size_t>(2 * used, 65536)); }
    const ssize_t n = ::read(file.fd(), bytes.data() + used, bytes.size() - used);
    if (n == 0) {
      bytes.resize(used);
      return bytes;
    }
    if (n > 0) {
      used += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      fail_read(code, path, "cannot read: " + reason(errno));
    }
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
    if (::rename(temporary.c_str(), path.c_str()) != 0) { fail_write(path, "cannot replace", errno); }
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
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) { ::munmap(const_cast<uint8_t*>(data_), size_); }
}

FileWriter::FileWriter(const fs::path& path) : path_(path), file_(create(path, path)) { buffer_.reserve(kBufferBytes); }

void FileWriter::write(const void* bytes, size_t size) {
  HEBB_ASSERT(file_.is_open());
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

void fsync_directory(const fs::path& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) { fail_write(path, "cannot open the folder", errno); }
  sync_file(folder, path);
}

std::vector<fs::path> expand_paths(const std::string& pattern) {
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::exists(pattern, error)) {  // also a file whose own name holds *, ? or [
    append_files(pattern, files);
  } else {
    for (const fs::path& path : match_paths(pattern)) { append_files(path, files); }
  }
  if (files.empty()) {
    throw MissingFileError(pattern,
                           "no file matches; expected a file, a folder with files, or a pattern (*, ?, [..], **)");
  }
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return files;
}

}  // namespace hebb
