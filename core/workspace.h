#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/arena.h"

namespace hebb {

/// Where an operation runs and takes its scratch memory from. An operation asks for scratch itself, by the same code on
/// every device, the counting one included, so that memory plans are exact in builds without CUDA.
///
///   run(tape.workspace(), NormBackward{.d_h = ..., .h = ...});
///
/// The memory is released when the operation has been enqueued: later kernels on the stream come after it.
class Workspace {
 public:
  /// `scope` is the prefix of the names that memory plans show.
  Workspace(Stream& stream, Arena& arena, std::string scope = "")
      : stream_(&stream), arena_(&arena), scope_(std::move(scope)) {}
  Workspace(Workspace&&) = default;
  Workspace& operator=(Workspace&&) = default;
  virtual ~Workspace() = default;

  Stream& stream() const { return *stream_; }
  bool on_gpu() const { return stream_->on_gpu(); }
  /// Uninitialised memory that lives as long as the workspace. Throws MemoryError.
  virtual Tensor tensor(Shape shape, DType dtype, std::string_view name) {
    const bool named = arena_->device() == DeviceKind::count && !scope_.empty();
    buffers_.emplace_back(*arena_, shape, dtype, named ? scope_ + "/" + std::string(name) : std::string(name));
    return buffers_.back();
  }

 protected:
  /// For tests that bring memory of their own.
  explicit Workspace(Stream& stream) : stream_(&stream), arena_(nullptr) {}

 private:
  Stream* stream_;
  Arena* arena_;
  std::string scope_;
  std::vector<Buffer> buffers_;
};

// Kernels with scratch. The header of the operation says HEBB_KERNEL_WITH_SCRATCH(Args): it declares
//   void run(Workspace, const Args&)                                    what callers use;
//   struct ArgsScratch                                                  private to the operation's folder;
//   void cpu::run(Stream&, const Args&, const ArgsScratch&)             the code, on each device.
// One .cpp file of the folder defines ArgsScratch plan(Workspace&, const Args&), the one place that knows how a device
// divides the work, and says HEBB_KERNEL_PLANNED(Args) behind it, which defines run().
#if defined(HEBB_SIMT) && defined(HEBB_DEVICE)
#define HEBB_KERNEL_EMULATED_SCRATCH(Args)                                  \
  namespace HEBB_DEVICE {                                                   \
  void run(Stream& stream, const Args& args, const Args##Scratch& scratch); \
  }
#else
#define HEBB_KERNEL_EMULATED_SCRATCH(Args)
#endif
#define HEBB_KERNEL_WITH_SCRATCH(Args)                                      \
  struct Args##Scratch;                                                     \
  HEBB_KERNEL_EMULATED_SCRATCH(Args)                                        \
  namespace cpu {                                                           \
  void run(Stream& stream, const Args& args, const Args##Scratch& scratch); \
  }                                                                         \
  namespace cuda {                                                          \
  void run(Stream& stream, const Args& args, const Args##Scratch& scratch); \
  }                                                                         \
  Args##Scratch plan(Workspace& workspace, const Args& args);               \
  void run(Workspace workspace, const Args& args);
#ifdef HEBB_HAVE_CUDA
#define HEBB_RUN_ON_GPU(Args) cuda::run(stream, operands, scratch)
#else
#define HEBB_RUN_ON_GPU(Args) (void)operands, (void)scratch, no_cuda_kernel(#Args)
#endif
#define HEBB_KERNEL_PLANNED(Args)                                                                               \
  void run(Workspace workspace, const Args& args) {                                                             \
    Stream& stream = workspace.stream();                                                                        \
    const auto planned = [&](const Args& operands, auto&& launch) {                                             \
      const Args##Scratch scratch = plan(workspace, operands);                                                  \
      if (detail::launch(stream, #Args, args)) { launch(operands, scratch); }                                   \
    };                                                                                                          \
    if (workspace.on_gpu()) {                                                                                   \
      planned(args, [&](const auto& operands, const auto& scratch) { HEBB_RUN_ON_GPU(Args); });                 \
    } else {                                                                                                    \
      with_fp32_operands(args, stream.counting(), [&](const Args& wide) {                                       \
        planned(wide, [&](const auto& operands, const auto& scratch) { cpu::run(stream, operands, scratch); }); \
      });                                                                                                       \
    }                                                                                                           \
  }

}  // namespace hebb
