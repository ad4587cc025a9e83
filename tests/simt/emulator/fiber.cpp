#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

#if !defined(SIMT_UCONTEXT)
// void simt_switch(void** save, void* load): saves the callee-saved registers and the stack pointer, loads the other's.
// swapcontext does the same 20 times slower, because it also saves the signal mask with a system call.
asm(R"(
.text
.type simt_switch, @function
.globl simt_switch
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch, .-simt_switch
)");
extern "C" void simt_switch(void** save, void* load);
#endif

namespace simt {
namespace {

constexpr size_t kPage = 4096;
#if defined(SIMT_TSAN)
constexpr size_t kStackBytes = 256 * 1024;
#elif defined(SIMT_ASAN)
constexpr size_t kStackBytes = 128 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif

Stack map_stack() {
  const Unwatched unwatched;  // otherwise the mapping counts as a write by the scheduler
  void* memory =
      mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) { throw std::bad_alloc(); }
  mprotect(memory, kPage, PROT_NONE);
  // Threads run to the same depth one after the other. Were their stacks' ends alike within a page, what they use would
  // share a few lines of the cache.
  static std::atomic<size_t> number{0};
  return {static_cast<char*>(memory) + kPage, kStackBytes - number++ % 16 * 256};
}

void unmap_stack(Stack stack) {
  ASAN_UNPOISON_MEMORY_REGION(stack.base, stack.bytes);
  const Unwatched unwatched;
  munmap(stack.base - kPage, kPage + stack.bytes);
}

#ifdef SIMT_TSAN
constexpr int kFibersKept = 2048;  // each holds a megabyte and some mappings, and the sanitizer knows 8,000

/// Stacks between launches. Their memory ends with the program.
struct Reserve {
  std::mutex mutex;
  std::vector<Stack> stacks;
  int alive = 0;  // here and in use
};

Reserve& reserve() {
  static auto* const all = new Reserve;
  return *all;
}
#endif

}  // namespace

#ifdef SIMT_TSAN

StackPool::~StackPool() { end_launch(); }

Stack StackPool::take() {
  const std::lock_guard lock(reserve().mutex);
  if (auto& stacks = reserve().stacks; !stacks.empty()) {
    const Stack stack = stacks.back();
    stacks.pop_back();
    return stack;
  }
  ++reserve().alive;
  Stack stack = map_stack();
  stack.tsan_fiber = __tsan_create_fiber(0);
  return stack;
}

void StackPool::give(Stack stack, bool finished) {
  const std::lock_guard lock(reserve().mutex);
  if (finished && reserve().alive <= kFibersKept) {
    free_.push_back(stack);
    return;
  }
  --reserve().alive;
  if (finished) {  // a fiber left inside the emulator still ignores accesses, which its destruction would report
    __tsan_destroy_fiber(stack.tsan_fiber);
  }
  unmap_stack(stack);
}

void StackPool::end_launch() {
  const std::lock_guard lock(reserve().mutex);
  reserve().stacks.insert(reserve().stacks.end(), free_.begin(), free_.end());
  free_.clear();
}

#else

StackPool::~StackPool() {
  for (const Stack& stack : free_) { unmap_stack(stack); }
}

Stack StackPool::take() {
  if (free_.empty()) { return map_stack(); }
  const Stack stack = free_.back();
  free_.pop_back();
  return stack;
}

void StackPool::give(Stack stack, bool finished) {
  if (!finished) { ASAN_UNPOISON_MEMORY_REGION(stack.base, stack.bytes); }
  free_.push_back(stack);
}

void StackPool::end_launch() {}

#endif

SIMT_NO_TSAN void prepare(Context& context, const Stack& stack, void (*entry)()) {
  context.fake_stack = nullptr;
  context.stack_base = stack.base;
  context.stack_bytes = stack.bytes;
  context.tsan_fiber = stack.tsan_fiber;
#ifdef SIMT_UCONTEXT
  getcontext(&context.machine);
  context.machine.uc_stack.ss_sp = stack.base;
  context.machine.uc_stack.ss_size = stack.bytes;
  context.machine.uc_link = nullptr;
  makecontext(&context.machine, entry, 0);
#else
  // Six saved registers, then the address to "return" to, then a zero at which unwinders stop. The entry function must
  // see a stack pointer that is 8 more than a multiple of 16, as after a call.
  void** top = reinterpret_cast<void**>(stack.base + stack.bytes) - 1;
  top[0] = nullptr;
  top[-1] = reinterpret_cast<void*>(entry);
  for (int i = 2; i <= 7; ++i) { top[-i] = nullptr; }
  context.stack_pointer = top - 7;
#endif
}

SIMT_NO_TSAN void switch_context(Context& from, Context& to, bool from_ends) {
#ifdef SIMT_ASAN
  __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.fake_stack, to.stack_base, to.stack_bytes);
#endif
#ifdef SIMT_TSAN
  // No synchronisation: order between the threads of a kernel comes from its barriers alone.
  __tsan_switch_to_fiber(to.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef SIMT_UCONTEXT
  swapcontext(&from.machine, &to.machine);
#else
  simt_switch(&from.stack_pointer, to.stack_pointer);
#endif
#ifdef SIMT_ASAN
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
  static_cast<void>(from_ends);
}

SIMT_NO_TSAN void entered([[maybe_unused]] Context& self, [[maybe_unused]] Context& from) {
#ifdef SIMT_ASAN
  __sanitizer_finish_switch_fiber(self.fake_stack, &from.stack_base, &from.stack_bytes);
#endif
}

SIMT_NO_TSAN void adopt_thread([[maybe_unused]] Context& context) {
#ifdef SIMT_TSAN
  context.tsan_fiber = __tsan_get_current_fiber();
#endif
}

}  // namespace simt
