#include "core/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace hebb {

AppendFile::AppendFile(const fs::path& path)
    : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (fd_ < 0) { throw CheckpointError(path.string(), std::string("cannot open: ") + std::strerror(errno)); }
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) { continue; }
    if (n < 0) { throw CheckpointError(path_.string(), std::string("cannot write: ") + std::strerror(errno)); }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace hebb
