#include "tools/line_output.h"

#include <fmt/core.h>

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "core/error.h"

namespace hebb {

LineOutput::LineOutput(const std::string& path) : path_(path) {
  if (path != "-") {
    temporary_ = is_special_file(path) ? fs::path() : fs::path(fmt::format("{}.tmp-{:d}", path, ::getpid()));
    if (!temporary_.empty()) { cleanup_.emplace(std::vector{temporary_}); }
    file_ = std::make_unique<FileWriter>(temporary_.empty() ? path_ : temporary_);
  }
}

LineOutput::~LineOutput() {
  if (file_) {
    file_.reset();
    std::error_code ignored;
    if (!temporary_.empty()) { fs::remove(temporary_, ignored); }
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
  if (temporary_.empty()) { return; }
  std::error_code error;
  fs::rename(temporary_, path_, error);
  cleanup_.reset();
  if (error) { throw CheckpointError(path_.string(), "cannot rename the finished file: " + error.message()); }
}

}  // namespace hebb
