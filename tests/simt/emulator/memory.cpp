// Device memory, streams and events of the emulator.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "host.h"
#include "sanitizer.h"

namespace simt {

// Operations numbered from 0 in the order in which they were enqueued; `done` of them have been performed.
class Stream {
 public:
  std::unique_ptr<std::vector<std::function<void()>>> recording;  // while captured

  void add(std::function<void()> operation) {
    operations_.push_back(std::move(operation));
    ++added_;
  }
  int64_t added() const { return added_; }
  int64_t done() const { return done_; }

  /// Performs the operations before `position`.
  void advance(int64_t position) {
    while (done_ < position && !operations_.empty()) {
      const std::function<void()> operation = std::move(operations_.front());
      operations_.pop_front();
      ++done_;
      operation();
    }
  }

 private:
  std::deque<std::function<void()>> operations_;
  int64_t added_ = 0, done_ = 0;
};

namespace {

constexpr int64_t kGuardBytes = 64;
constexpr unsigned char kGuardByte = 0xA5;

struct Allocations {
  std::mutex mutex;
  std::map<void*, int64_t> bytes;
  int64_t total = 0;
};
Allocations& allocations() {
  static Allocations all;
  return all;
}

/// Those of this thread: each thread of the host has a device of its own.
std::vector<std::unique_ptr<Stream>>& streams() {
  thread_local auto* const all = [] {
    auto* const initial = new std::vector<std::unique_ptr<Stream>>;  // never deleted: memory is released late
    initial->push_back(std::make_unique<Stream>());                  // the default stream
    return initial;
  }();
  return *all;
}

Stream& resolve(Stream* stream) { return stream == nullptr ? *streams().front() : *stream; }

void forbid_while_capturing(const char* what) {
  for (const auto& stream : streams()) {
    if (stream->recording != nullptr) {
      throw Fault(std::string("stream capture: ") + what + " while a stream is captured");
    }
  }
}

void check_guard([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#ifndef SIMT_ASAN  // which reports the access itself
  const auto* guard = static_cast<const unsigned char*>(memory) + bytes;
  for (int64_t i = 0; i < kGuardBytes; ++i) {
    if (guard[i] != kGuardByte) {
      throw Fault("device memory: byte " + std::to_string(i) + " past an allocation of " + std::to_string(bytes) +
                  " bytes was written");
    }
  }
#endif
}

}  // namespace

void* allocate(int64_t bytes) {
  forbid_while_capturing("device memory is allocated");
  void* memory = nullptr;
  // Without a sanitizer: a guard zone. With the address sanitizer: exactly the bytes asked for.
#ifdef SIMT_ASAN
  const int64_t guard = 0;
#else
  const int64_t guard = kGuardBytes;
#endif
  if (bytes < 0 || posix_memalign(&memory, 256, static_cast<size_t>(bytes + guard)) != 0) { throw std::bad_alloc(); }
  std::memset(memory, 0xFF, static_cast<size_t>(bytes));
  std::memset(static_cast<char*>(memory) + bytes, kGuardByte, static_cast<size_t>(guard));
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  all.bytes.emplace(memory, bytes);
  all.total += bytes;
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) { return; }
  forbid_while_capturing("device memory is released");
  synchronize_all();
  Allocations& all = allocations();
  int64_t bytes = 0;
  {
    const std::lock_guard lock(all.mutex);
    const auto entry = all.bytes.find(memory);
    if (entry == all.bytes.end()) { throw Fault("device memory: release of an address that is not allocated"); }
    bytes = entry->second;
    all.total -= bytes;
    all.bytes.erase(entry);
  }
  const std::unique_ptr<void, decltype(&std::free)> owner(memory, &std::free);
  check_guard(memory, bytes);
}

void check_guards() {
  synchronize_all();
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  for (const auto& [memory, bytes] : all.bytes) { check_guard(memory, bytes); }
}

int64_t allocated_bytes() {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  return all.total;
}

Stream* create_stream() { return streams().emplace_back(std::make_unique<Stream>()).get(); }

void destroy_stream(Stream* stream) {
  synchronize(stream);
  std::erase_if(streams(), [stream](const auto& owner) { return owner.get() == stream; });
}

void enqueue(Stream* stream, std::function<void()> operation) {
  Stream& queue = resolve(stream);
  if (queue.recording != nullptr) {
    queue.recording->push_back(std::move(operation));
    return;
  }
  queue.add(std::move(operation));
  if (settings().timing == Timing::early) { queue.advance(queue.added()); }
}

void begin_capture(Stream* stream) {
  forbid_while_capturing("another capture begins");
  resolve(stream).recording = std::make_unique<std::vector<std::function<void()>>>();
}

std::vector<std::function<void()>> end_capture(Stream* stream) {
  Stream& queue = resolve(stream);
  if (queue.recording == nullptr) { throw Fault("stream capture: ends without having begun"); }
  return std::move(*std::exchange(queue.recording, nullptr));
}

void synchronize(Stream* stream) {
  forbid_while_capturing("the host waits for the device");
  Stream& queue = resolve(stream);
  queue.advance(queue.added());
}

void synchronize_all() {
  // By index: an operation may be a wait, but creates no stream.
  for (size_t i = 0; i < streams().size(); ++i) { synchronize(streams()[i].get()); }
}

void record(Event& event, Stream* stream) {
  forbid_while_capturing("an event is recorded");
  const auto time = std::make_shared<std::chrono::steady_clock::time_point>();
  enqueue(stream, [time] { *time = std::chrono::steady_clock::now(); });
  event = {&resolve(stream), resolve(stream).added(), time};
}

double elapsed_ms(const Event& begin, const Event& end) {
  if (!has_happened(begin) || !has_happened(end)) { throw Fault("cudaEventElapsedTime: an event has not happened"); }
  return std::chrono::duration<double, std::milli>(*end.time - *begin.time).count();
}

void synchronize(const Event& event) {
  forbid_while_capturing("the host waits for an event");
  if (event.stream != nullptr) { event.stream->advance(event.position); }
}

bool has_happened(const Event& event) { return event.stream == nullptr || event.stream->done() >= event.position; }

void wait(Stream* stream, const Event& event) {
  enqueue(stream, [event] { synchronize(event); });
}

void copy_async(void* to, const void* from, int64_t bytes, Stream* stream) {
  enqueue(stream, [=] { std::memmove(to, from, static_cast<size_t>(bytes)); });
}

void fill_async(void* to, int byte, int64_t bytes, Stream* stream) {
  enqueue(stream, [=] { std::memset(to, byte, static_cast<size_t>(bytes)); });
}

}  // namespace simt
