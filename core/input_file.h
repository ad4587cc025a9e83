#pragma once
#include <sys/types.h>

#include <string>

#include "core/files.h"

namespace hebb {

/// A file, pipe or terminal that is read from its beginning to its end. A named pipe is waited for until somebody opens
/// it for writing.
class InputFile {
 public:
  /// `wait_seconds`: how long nobody may have a named pipe open for writing.
  explicit InputFile(const fs::path& path, double wait_seconds = 60);
  /// Up to `size` bytes; 0 at the end, -1 where problem() says why.
  ssize_t read(char* out, size_t size);
  /// Empty, or why it cannot be opened or read.
  const std::string& problem() const { return problem_; }
  bool is_missing() const { return is_missing_; }
  /// What a plain file holds; 0 of others.
  size_t size() const { return size_; }
  int fd() const { return file_.fd(); }

 private:
  Descriptor file_;
  double wait_seconds_;
  std::string problem_;
  bool is_missing_ = false, is_pipe_ = false, has_writer_ = false;
  size_t size_ = 0;
};

}  // namespace hebb
