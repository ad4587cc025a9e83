#pragma once
// What the address and thread sanitizers need to know about fibers; nothing without them.
#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define SIMT_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define SIMT_TSAN 1
#endif

#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

#ifdef SIMT_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#define SIMT_NO_TSAN __attribute__((no_sanitize("thread")))
#else
#define SIMT_NO_TSAN
#endif

namespace simt {

/// Accesses of the emulator itself, made while this object lives, are no part of the kernel's and are not checked for
/// races.
class Unwatched {
 public:
  Unwatched() {
#ifdef SIMT_TSAN
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~Unwatched() {
#ifdef SIMT_TSAN
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

/// Everything before happens_before(tag) in one thread is ordered before what follows happens_after(tag) in another.
inline void happens_before([[maybe_unused]] void* tag) {
#ifdef SIMT_TSAN
  __tsan_release(tag);
#endif
}
inline void happens_after([[maybe_unused]] void* tag) {
#ifdef SIMT_TSAN
  __tsan_acquire(tag);
#endif
}

/// Accesses that an instruction makes on behalf of the calling thread, for the race detector.
inline void report_read([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
#ifdef SIMT_TSAN
  __tsan_read_range(const_cast<void*>(address), bytes);
#endif
}
inline void report_write([[maybe_unused]] void* address, [[maybe_unused]] size_t bytes) {
#ifdef SIMT_TSAN
  __tsan_write_range(address, bytes);
#endif
}

}  // namespace simt

#ifdef SIMT_ASAN
// asan_interface.h makes these empty in sources that are not instrumented themselves, as the emulator's are not.
#undef ASAN_POISON_MEMORY_REGION
#undef ASAN_UNPOISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(address, bytes) __asan_poison_memory_region((address), static_cast<size_t>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) __asan_unpoison_memory_region((address), static_cast<size_t>(bytes))
#endif
