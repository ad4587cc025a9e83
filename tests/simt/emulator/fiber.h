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
};

/// Stacks of one worker, reused. Under the thread sanitizer each one is mapped anew instead: reuse would either look like a race
/// or order the successive owners.
class StackPool {
 public:
  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;
  Stack take();
  void give(Stack stack);

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
  void* fake_stack = nullptr;         // address sanitizer
  const void* stack_base = nullptr;
  size_t stack_bytes = 0;
  void* tsan_fiber = nullptr;         // thread sanitizer
};

/// Prepares `context` so that the first switch to it calls entry(), which must not return. Owns no memory.
void prepare(Context& context, Stack stack, void (*entry)());

/// Leaves `from`, continues `to`. `from_ends` says that `from` is never continued.
void switch_context(Context& from, Context& to, bool from_ends);

/// First statement of a fiber's entry function.
void entered(Context& self, Context& from);

/// Makes `context` stand for the calling OS thread.
void adopt_thread(Context& context);

/// Forgets a fiber: its stack may be reused afterwards. `finished`: its entry function came to its end.
void discard(Context& context, Stack stack, bool finished);

}  // namespace simt
