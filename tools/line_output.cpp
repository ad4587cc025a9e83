#include "tools/line_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "core/error.h"
#include "core/retry.h"

namespace hebb {

LineOutput::LineOutput(const std::string& path) : path_(path) {
  if (path != "-") {
    if (!is_special_file(path)) { lock_.emplace(path); }
    file_ = std::make_unique<FileWriter>(lock_ ? lock_->temporary() : path_);
  }
}

LineOutput::~LineOutput() {
  if (file_) {
    file_.reset();
    std::error_code ignored;
    if (lock_) { fs::remove(lock_->temporary(), ignored); }
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
  std::error_code error;
  retried(error, [&] { fs::rename(lock_->temporary(), path_, error); });
  if (error) {
    const std::string reason = error.message();
    fs::remove(lock_->temporary(), error);
    throw CheckpointError(path_.string(), "cannot rename the finished file: " + reason);
  }
  fsync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
  lock_.reset();
}

}  // namespace hebb
