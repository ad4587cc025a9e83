#pragma once
// The emulator's inside: one block of threads, run by one worker.
#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "fiber.h"
#include "place.h"
#include "simt.h"

namespace simt {

constexpr int kMaxThreads = 1024;
constexpr int64_t kSharedLimit = 227 * 1024;  // what one block of an sm_90 device may use: a DeviceModel can say less
constexpr int64_t kZoneBytes = 64;            // guard zone after each array in shared memory
constexpr unsigned char kZoneByte = 0xC5;

enum class State : unsigned char { ready, at_barrier, in_collective, finished };

struct AsyncCopy {
  void* to;
  const void* from;
  int bytes, from_bytes;
};

struct Thread {
  Self self;
  Context context;
  Stack stack;
  State state = State::ready;
  bool started = false;
  int number = 0;
  const char* waits_in = "";
  const Frame* frame = nullptr;   // of what it waits in
  std::vector<AsyncCopy> copies;  // issued, not yet waited for
  Place last_copy;
  std::vector<size_t> group_ends;  // in copies
};

/// Lanes that have reached a warp operation and wait for the rest of its mask.
struct Pending {
  unsigned mask = 0, arrived = 0;
  const char* name = "";
  Place place;
  std::array<void*, 32> arguments{};
};

struct Warp {
  std::vector<Pending> pending;
  // Happens-before tags of __syncwarp by lowest lane of the mask, in two alternating generations: with a single tag,
  // lanes that run ahead would hide races.
  std::array<std::array<char, 2>, 32> tags;
  std::array<unsigned char, 32> generation{};
};

struct SharedArray {
  const void* key;
  const char* name;
  int64_t begin, bytes;
};

/// Shared memory of the block that a worker runs: the dynamic part, then static arrays, each followed by a guard zone.
class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void begin_block(int64_t dynamic_bytes, int64_t limit);
  /// The array of `key`; null if it does not fit.
  void* array(const void* key, int64_t bytes, const char* name);
  unsigned char* dynamic() const { return base_; }
  bool holds(const void* address, int64_t bytes) const;
  /// Name of an array beside which something was written, or null.
  const char* damaged() const;

 private:
  void* append(const void* key, int64_t bytes, const char* name);
  void map();

  unsigned char* base_ = nullptr;
  int64_t end_ = 0, limit_ = kSharedLimit;
  std::vector<SharedArray> arrays_;
};

struct Launch {
  const Grid& grid;
  const Settings& settings;
  const std::function<void()>& body;
  std::atomic<int64_t> next_block{0};
  std::atomic<bool> stopped{false};
  char begin_tag = 0, end_tag = 0;  // happens-before: host -> threads -> host
};

/// Runs the blocks of a launch that it is handed, one after the other. Reused between launches.
class Worker {
 public:
  /// Number and exception of the first faulty block, if any.
  struct Outcome {
    int64_t block = -1;
    std::exception_ptr fault;
  };
  Outcome run(Launch& launch);
  void end_launch() { stacks_.end_launch(); }

  // For the instructions, which run in a thread of the block.
  Thread& running() { return *running_; }
  Warp& warp_of(const Thread& thread) { return warps_[static_cast<size_t>(thread.number) / 32]; }
  Thread& lane_of(const Thread& thread, int lane) {
    return threads_[static_cast<size_t>(thread.number / 32 * 32 + lane)];
  }
  /// The running thread in the instruction of this frame.
  Standing at(const Frame* frame) const { return {frame, running_->self.entry}; }
  /// Where a thread said its newest cp.async.
  Place& last_copy(const Thread& thread) { return last_copies_[static_cast<size_t>(thread.number)]; }
  void suspend(State state, const char* waits_in, const Frame* frame);
  void barrier(const Frame* frame, bool of_roles);
  bool has_finished_threads() const { return finished_ > 0; }
  const Launch& launch() const { return *launch_; }
  SharedMemory& shared() { return shared_; }

 private:
  static void thread_entry();
  void run_block(int64_t block);
  void begin_block(int64_t block);
  void run_pass();
  Thread& thread_at(int position) { return threads_[static_cast<size_t>(first_ + step_ * position)]; }
  Thread* next_waiting();
  void resume(Thread& thread);
  void finish(Thread& thread);
  void abandon_block();
  void run_thread(Thread& thread);
  [[noreturn]] void report_deadlock();

  Launch* launch_ = nullptr;
  Thread* running_ = nullptr;
  Context scheduler_;
  StackPool stacks_;
  SharedMemory shared_;
  std::vector<Thread> threads_;
  std::vector<Place> last_copies_;  // apart, for the scheduler reads the threads' states one after the other
  std::vector<Warp> warps_;
  int threads_in_block_ = 0, finished_ = 0, at_barrier_ = 0;
  int first_ = 0, step_ = 1;  // the order of threads: number first_ + step_ * position
  int position_ = 0;          // of the running thread
  Place barrier_place_;
  bool barrier_of_roles_ = false;
  std::array<char, 2> barrier_tags_;
  unsigned char barrier_generation_ = 0;
  std::exception_ptr fault_;
};

extern thread_local Worker* current_worker __attribute__((tls_model("initial-exec")));
SIMT_NO_TSAN inline Worker& worker() { return *current_worker; }
[[noreturn]] void fault(const std::string& what, const Place& place);
[[noreturn]] inline void fault(const std::string& what, const Standing& at) { fault(what, Place(at)); }
std::string describe(const Thread& thread, const std::string& kernel);

}  // namespace simt
