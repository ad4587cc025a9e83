#pragma once
// The emulator's host side: settings, launches, device memory, streams and events.
#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace simt {

/// A rule of CUDA that a kernel or its host code broke. The message names kernel, block, thread, file and line as far
/// as known.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The order in which threads of a block, and blocks of a grid, run where the kernel leaves it open.
enum class Order { forward, reverse };

/// When asynchronous work happens: at the latest moment that its waits allow (which exposes a missing wait), or at once
/// (which exposes a missing barrier before the destination is written again). Concerns cp.async and work on streams.
enum class Timing { late, early };

struct Settings {
  Order order = Order::forward;
  Timing timing = Timing::late;
  int workers = 2;          // OS threads among which the blocks of a launch are divided
  int multiprocessors = 1;  // that the device says it has: host code may choose kernels by them
};

Settings settings();

/// Settings for the duration of a scope, for launches from the calling thread.
class ScopedSettings {
 public:
  explicit ScopedSettings(Settings settings);
  ~ScopedSettings();
  ScopedSettings(const ScopedSettings&) = delete;
  ScopedSettings& operator=(const ScopedSettings&) = delete;

 private:
  Settings previous_;
};

struct Grid {
  std::string kernel;
  dim3 blocks, threads;
  int64_t shared_bytes = 0;
};

/// Runs body() once for every thread of the grid and returns when all are done. Throws the fault of the first block
/// that had one.
void run_grid(const Grid& grid, const Settings& settings, const std::function<void()>& body);

/// How many grids have run whose kernel's name contains `part`: which kernel a dispatch chose.
int64_t runs_of(const std::string& part);

// ---- device memory: host memory with guard zones, filled with 0xFF (NaN, -1) when allocated

void* allocate(int64_t bytes);
void release(
    void* memory);    // waits for all streams; a fault if the memory is unknown or something was written beside it
void check_guards();  // the same check for everything that is allocated
int64_t allocated_bytes();  // 0 in the end: nothing leaked

// ---- streams and events. A stream is a queue; with Timing::late its work happens when somebody waits for it. Each
// thread has streams of its own.

class Stream;
struct Event {
  Stream* stream = nullptr;
  int64_t position = 0;  // number of operations of the stream that the event comes after
  std::shared_ptr<std::chrono::steady_clock::time_point> time{};  // when it happened
};
/// Milliseconds of the host's clock between two events that have happened.
double elapsed_ms(const Event& begin, const Event& end);

Stream* create_stream();
void destroy_stream(Stream* stream);
void enqueue(Stream* stream, std::function<void()> operation);  // null: the default stream
void synchronize(Stream* stream);
void synchronize_all();
void record(Event& event, Stream* stream);
void wait(Stream* stream, const Event& event);  // later work of `stream` happens after the event
void synchronize(const Event& event);
bool has_happened(const Event& event);
void copy_async(void* to, const void* from, int64_t bytes, Stream* stream);
/// From here to end_capture nothing that `stream` is given happens; end_capture returns it, to be enqueued any number
/// of times. In between, waiting for the device, events, and allocating and releasing its memory are faults, as CUDA
/// refuses them.
void begin_capture(Stream* stream);
std::vector<std::function<void()>> end_capture(Stream* stream);
void fill_async(void* to, int byte, int64_t bytes, Stream* stream);

/// The calling thread calls a kernel from the function of this frame.
void enter_kernel(const void* frame);

/// What HEBB_LAUNCH does here. As on the device, arguments are converted to the kernel's parameters and copied at the
/// call.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 blocks, dim3 threads, int64_t shared_bytes,
            Stream* stream, Arguments&&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "kernel parameters are copied as bytes");
  static_assert((sizeof(Parameters) + ... + 0) <= 4096, "kernel parameters are limited to 4096 bytes");
  enqueue(stream, [grid = Grid{name, blocks, threads, shared_bytes}, now = settings(), kernel,
                   parameters = std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)] {
    run_grid(grid, now, [&] {
      std::apply(
          [&](const Parameters&... parameter) {
            enter_kernel(__builtin_frame_address(0));
            kernel(parameter...);
          },
          parameters);
    });
  });
}

}  // namespace simt
