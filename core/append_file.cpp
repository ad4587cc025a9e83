#include "core/append_file.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

namespace hebb {

AppendFile::AppendFile(const fs::path& path)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (!file_.is_open()) { throw CheckpointError(path.string(), std::string("cannot open: ") + std::strerror(errno)); }
}

}  // namespace hebb
