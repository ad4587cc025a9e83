#pragma once
#include <cstddef>
#include <vector>

#include "sanitizer.h"

#if !defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT 1  // the hand-written switch knows x86-64 only
#endif
#ifdef SIMT_UCONTEXT
#include <ucontext.h>
#endif

namespace simt {

/// Memory of one fiber: `bytes` from `base`, with a guard page below.
struct Stack {
  char* base = nullptr;
  size_t bytes = 0;
  void* tsan_fiber = nullptr;  // thread sanitizer: the fiber whose accesses to this memory are in order
};

/// Stacks of one worker, reused; under the thread sanitizer by all workers, no sooner than in the next launch, and with
/// the sanitizer's fiber: to it the owners of one stack are one thread, which threads of successive launches may be and
/// those of one launch must not. (A new stack and a new fiber for each thread cost half a millisecond.)
class StackPool {
 public:
  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;
  Stack take();
  /// `finished`: the fiber's entry function came to its end.
  void give(Stack stack, bool finished);
  /// No worker takes stacks for the launch any more.
  void end_launch();

 private:
  std::vector<Stack> free_;
};

/// The point at which a fiber, or the scheduler on the OS thread's own stack, has been left.
struct Context {
#ifdef SIMT_UCONTEXT
  ucontext_t machine;
#else
  void* stack_pointer = nullptr;
#endif
  void* fake_stack = nullptr;  // address sanitizer
  const void* stack_base = nullptr;
  size_t stack_bytes = 0;
  void* tsan_fiber = nullptr;  // thread sanitizer
};

/// Prepares `context` so that the first switch to it calls entry(), which must not return. Owns no memory.
void prepare(Context& context, const Stack& stack, void (*entry)());

/// Leaves `from`, continues `to`. `from_ends` says that `from` is never continued.
void switch_context(Context& from, Context& to, bool from_ends);

/// First statement of a fiber's entry function.
void entered(Context& self, Context& from);

/// Makes `context` stand for the calling OS thread.
void adopt_thread(Context& context);

}  // namespace simt
