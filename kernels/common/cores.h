#pragma once
#include <string>
#include <vector>

#include "core/stream.h"

namespace hebb {

/// The cores of a GPU that an operation takes. Its plan() decides, once for all its kernels.
struct Cores {
  bool tensor = false;
  std::string obstacle;  // of an operation in bf16 that takes the plain ones: "heads of 160 and 160 channels (...)"
};

/// Whether `operation` takes the tensor cores of the stream's device. Where something is in the way it tells the log.
bool takes_tensor_cores(const Stream& stream, const char* operation, const Cores& cores);

/// Collects the operations that fell back from tensor cores to plain cores on this thread while it lives, those of
/// counting runs included: "attention: heads of ...", each once, in the order in which they came.
class FallbackLog {
 public:
  FallbackLog();
  ~FallbackLog();
  FallbackLog(const FallbackLog&) = delete;
  FallbackLog& operator=(const FallbackLog&) = delete;

  const std::vector<std::string>& lines() const { return lines_; }
  void add(const std::string& line);

 private:
  std::vector<std::string> lines_;
  FallbackLog* outer_;
};

/// Shared memory that a block may have [bytes]: gpu_shared_bytes(), or that of the GPU that is planned for.
int64_t block_shared_bytes();

/// Within its C++ scope block_shared_bytes() is that of another GPU.
class PlannedSharedMemory {
 public:
  explicit PlannedSharedMemory(int64_t bytes);
  ~PlannedSharedMemory();
  PlannedSharedMemory(const PlannedSharedMemory&) = delete;
  PlannedSharedMemory& operator=(const PlannedSharedMemory&) = delete;

 private:
  int64_t outer_;
};

/// Obstacles that several operations have.
std::string shared_memory_obstacle(int64_t needed_bytes);
inline constexpr const char* kAddressObstacle = "tensors at addresses that are not multiples of 16 bytes";

/// Whether all begin at a multiple of 16 bytes; undefined ones do.
bool all_aligned(const std::vector<Tensor>& tensors);

}  // namespace hebb
