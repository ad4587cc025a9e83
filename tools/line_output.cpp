#include "tools/line_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"

namespace hebb {

LineOutput::LineOutput(const std::string& path) : path_(path) {
  if (path != "-") {
    if (!is_special_file(path)) { lock_.emplace(path); }
    file_ = std::make_unique<FileWriter>(lock_ ? lock_->temporary() : path_);
  }
}

void LineOutput::line(std::string_view text) {
  if (file_) {
    file_->write(text.data(), text.size());
    file_->write("\n", 1);
  } else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fputc('\n', stdout) == EOF) {
    throw CheckpointError("standard output", std::string("cannot write: ") + std::strerror(errno));
  }
}

void LineOutput::finish() {
  if (!file_) {
    if (std::fflush(stdout) != 0) {
      throw CheckpointError("standard output", std::string("cannot write: ") + std::strerror(errno));
    }
    return;
  }
  file_->close();
  file_.reset();
  if (!lock_) { return; }
  lock_->publish();
  lock_.reset();
}

}  // namespace hebb
