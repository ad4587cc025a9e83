#pragma once
// Where in a kernel a thread is: the calls that it is in, read from its stack.
#include <array>
#include <cstdint>
#include <string>

namespace simt {

/// What a function that keeps a frame pointer leaves on the stack, on x86-64 and on AArch64. Kernels and the emulator
/// are compiled so (tests/simt/CMakeLists.txt).
struct Frame {
  const Frame* caller;
  const char* return_address;
};

/// The frame of the function that says it.
#define SIMT_FRAME static_cast<const ::simt::Frame*>(__builtin_frame_address(0))

/// A thread inside an instruction of the emulator.
struct Standing {
  const Frame* frame = nullptr;  // of the instruction
  const Frame* entry = nullptr;  // of what called the kernel
};

/// The calls that lead from a kernel to an instruction.
class Place {
 public:
  Place() {}
  explicit Place(const Standing& at) { note(at); }
  void note(const Standing& at);

  /// Whether a thread came here by the same calls, which may stand several times in the machine code.
  bool is_of(const Standing& at) const {
    // Calls from the same addresses leave frames of the same size. So where to look is known, and the look is short: it
    // happens in every warp operation of every lane.
    const auto* const end = reinterpret_cast<const char*>(at.entry);
    bool is_same = end - reinterpret_cast<const char*>(at.frame) == depth_;
    for (int i = 0; is_same && i < count_; ++i) {
      const auto call = static_cast<size_t>(i);
      is_same = *reinterpret_cast<const char* const*>(end - below_entry_[call]) == calls_[call];
    }
    return is_same || *this == Place(at);
  }
  bool operator==(const Place& other) const;

  /// "norm.cu:80 > reduce.cuh:21": the line of the kernel, then those of the functions that it is in.
  std::string text() const;

 private:
  static constexpr int kMost = 16;  // calls of the deepest kernel: 5; what is further out is not seen
  int count_ = 0;
  int64_t depth_ = 0;                       // bytes of stack from the entry to the instruction
  std::array<const char*, kMost> calls_;    // addresses behind calls, innermost first
  std::array<int32_t, kMost> below_entry_;  // and where on the stack they lie
};

}  // namespace simt
