#include "kernels/common/cores.h"

#include <fmt/core.h>

#include <algorithm>

namespace hebb {
namespace {

thread_local FallbackLog* current_log = nullptr;
thread_local int64_t planned_bytes = 0;  // 0: those of the GPU

}  // namespace

bool takes_tensor_cores(const Stream& stream, const char* operation, const Cores& cores) {
  if (!stream.on_gpu()) { return false; }
  if (!cores.obstacle.empty() && current_log != nullptr) {
    current_log->add(std::string(operation) + ": " + cores.obstacle);
  }
  return cores.tensor;
}

FallbackLog::FallbackLog() : outer_(current_log) { current_log = this; }
FallbackLog::~FallbackLog() { current_log = outer_; }
void FallbackLog::add(const std::string& line) {
  if (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) { lines_.push_back(line); }
}

int64_t block_shared_bytes() { return planned_bytes > 0 ? planned_bytes : gpu_shared_bytes(); }
PlannedSharedMemory::PlannedSharedMemory(int64_t bytes) : outer_(planned_bytes) { planned_bytes = bytes; }
PlannedSharedMemory::~PlannedSharedMemory() { planned_bytes = outer_; }

std::string shared_memory_obstacle(int64_t needed_bytes) {
  return fmt::format("a block needs {:d} KB of shared memory, the GPU has {:d} KB", needed_bytes / 1024,
                     block_shared_bytes() / 1024);
}

bool all_aligned(const std::vector<Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; });
}

}  // namespace hebb
