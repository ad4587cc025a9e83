#pragma once
// What the header of an operation says about its kernels. Their contract is an args struct: tensors (outputs first),
// sizes, flags. Callers say run(stream, Args{...}), or run(workspace, Args{...}) where kernels take scratch memory.
//
//   HEBB_KERNEL(Args)               declares cpu::run and cuda::run, and defines run
//   HEBB_KERNEL_CPU(Args)           the same without CUDA code: on a GPU it stops with an error
//   HEBB_KERNEL_WITH_SCRATCH(Args)  declares the same with a struct ArgsScratch, private to the operation's folder, and
//     ArgsScratch plan(Workspace&, const Args&), the one place that knows how a device divides the work
//   HEBB_KERNEL_PLANNED(Args)       stands behind plan() in a .cpp file of the folder, and defines run
//
// The CPU computes bf16 operands in fp32. The emulator (docs/emulator.md) has kernels in a namespace of its own.
#include "core/fp32_operands.h"
#include "core/launch_profile.h"
#include "core/workspace.h"

namespace hebb {

/// Raised when a kernel without CUDA code is asked to run there.
[[noreturn]] void no_cuda_kernel(const char* name);

/// For a profile of the stream. An operation whose FLOPs follow from its args says more before HEBB_KERNEL.
template <class Args> LaunchWork work_of(const Args&) { return {}; }

namespace detail {
template <class Args> double operand_bytes(const Args& args) {
  struct {
    double bytes = 0;
    void operator()(const Tensor& tensor) { bytes += tensor.defined() ? static_cast<double>(tensor.bytes()) : 0; }
    void operator()(DType) {}
  } sum;
  for_each_operand(args, sum);
  return sum.bytes;
}

template <class Args> bool launch(Stream& stream, const char* name, const Args& args) {
  stream.last_kernel = name;
  ++stream.launches;
  if (stream.profile != nullptr) {
    LaunchWork work = work_of(args);
    if (work.name.empty()) { work.name = name; }
    work.bytes = operand_bytes(args);
    stream.profile->begin(stream, work);
  }
  return !stream.counting();
}
}  // namespace detail

/// What a kernel does on the counting device: nothing, unless its header says otherwise before HEBB_KERNEL.
template <class Args> void count(Stream&, const Args&) {}

#ifdef HEBB_HAVE_CUDA
#define HEBB_KERNEL(Args)                     \
  namespace cuda {                            \
  void run(Stream& stream, const Args& args); \
  }                                           \
  HEBB_KERNEL_RUN(Args, cuda::run(stream, args))
#define HEBB_RUN_PLANNED_ON_GPU(Args) cuda::run(stream, operands, scratch)
#else
#define HEBB_KERNEL(Args) HEBB_KERNEL_CPU(Args)
#define HEBB_RUN_PLANNED_ON_GPU(Args) (void)operands, (void)scratch, no_cuda_kernel(#Args)
#endif

#if defined(HEBB_SIMT) && defined(HEBB_DEVICE)
#define HEBB_ON_EMULATOR(declaration) \
  namespace HEBB_DEVICE {             \
  declaration;                        \
  }
#else
#define HEBB_ON_EMULATOR(declaration)
#endif

#define HEBB_KERNEL_CPU(Args) HEBB_KERNEL_RUN(Args, no_cuda_kernel(#Args))

#define HEBB_KERNEL_RUN(Args, on_gpu)                                                   \
  HEBB_ON_EMULATOR(void run(Stream& stream, const Args& args))                          \
  namespace cpu {                                                                       \
  void run(Stream& stream, const Args& args);                                           \
  }                                                                                     \
  inline void run(Stream& stream, const Args& args) {                                   \
    if (!detail::launch(stream, #Args, args)) { return count(stream, args); }           \
    if (stream.device == DeviceKind::cuda) { return on_gpu; }                           \
    with_fp32_operands(args, false, [&](const auto& wide) { cpu::run(stream, wide); }); \
  }

#define HEBB_KERNEL_WITH_SCRATCH(Args)                                                       \
  struct Args##Scratch;                                                                      \
  HEBB_ON_EMULATOR(void run(Stream& stream, const Args& args, const Args##Scratch& scratch)) \
  namespace cpu {                                                                            \
  void run(Stream& stream, const Args& args, const Args##Scratch& scratch);                  \
  }                                                                                          \
  namespace cuda {                                                                           \
  void run(Stream& stream, const Args& args, const Args##Scratch& scratch);                  \
  }                                                                                          \
  Args##Scratch plan(Workspace& workspace, const Args& args);                                \
  void run(Workspace workspace, const Args& args);

#define HEBB_KERNEL_PLANNED(Args)                                                                               \
  void run(Workspace workspace, const Args& args) {                                                             \
    Stream& stream = workspace.stream();                                                                        \
    const auto planned = [&](const Args& operands, auto&& launch) {                                             \
      const Args##Scratch scratch = plan(workspace, operands);                                                  \
      if (detail::launch(stream, #Args, args)) { launch(operands, scratch); }                                   \
    };                                                                                                          \
    if (workspace.on_gpu()) {                                                                                   \
      planned(args, [&](const auto& operands, const auto& scratch) { HEBB_RUN_PLANNED_ON_GPU(Args); });         \
    } else {                                                                                                    \
      with_fp32_operands(args, stream.counting(), [&](const Args& wide) {                                       \
        planned(wide, [&](const auto& operands, const auto& scratch) { cpu::run(stream, operands, scratch); }); \
      });                                                                                                       \
    }                                                                                                           \
  }

}  // namespace hebb
