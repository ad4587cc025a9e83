#pragma once
#include <stdexcept>
#include <string>
#include <string_view>

namespace hebb {

/// Process exit codes (docs/verbs/train.md, Exit codes).
enum class ExitCode : int {
  kDone = 0,
  kOther = 1,
  kUsage = 2,
  kData = 3,
  kCheckpoint = 4,
  kMemory = 5,
  kNumeric = 6,
  kComm = 14,
  kStopped = 75,
};

/// Base of every error that a user can cause or meet. `what()` is the one line that follows
/// "error: " on stderr: `WHERE: WHAT (found ..., expected ...)`.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string message) : std::runtime_error(std::move(message)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Configuration or command line; exit code 2.
/// where: "FILE:LINE:COLUMN: key.path" (as much of it as is known).
class ConfigError : public Error {
 public:
  ConfigError(std::string_view where, std::string_view found, std::string_view expected);
  ConfigError(std::string_view where, std::string_view what);
};

/// Input text, shards, indexes, tokenizers; exit code 3.
class DataError : public Error {
 public:
  DataError(std::string_view where, std::string_view what);
  DataError(std::string_view where, std::string_view what, std::string_view found, std::string_view expected);
};

/// Input that does not exist, as opposed to input that cannot be used; exit code 3.
class MissingFileError : public DataError {
 public:
  using DataError::DataError;
};

/// Checkpoints and run folders (unwritable, in use, disk full, damaged); exit code 4.
class CheckpointError : public Error {
 public:
  CheckpointError(std::string_view where, std::string_view what);
  CheckpointError(std::string_view where, std::string_view what, std::string_view found, std::string_view expected);
};

/// Not enough memory; exit code 5.
class MemoryError : public Error {
 public:
  MemoryError(std::string_view where, std::string_view what);
};

/// Non-finite losses, gradients or states; exit code 6.
class NumericError : public Error {
 public:
  NumericError(std::string_view where, std::string_view what);
};

/// Communication between ranks; exit code 14.
class CommError : public Error {
 public:
  CommError(std::string_view where, std::string_view what);
};

/// "WHERE: WHAT"; one of them where the other is empty.
std::string located(std::string_view where, std::string_view what);

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

/// Programmer errors only; on in every build, kept out of inner loops.
#define HEBB_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::hebb::assertion_failed(#condition, __FILE__, __LINE__))

}  // namespace hebb
