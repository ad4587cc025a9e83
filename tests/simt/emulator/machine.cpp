// Scheduler: runs the blocks of a launch on a few OS threads, and the threads of a block as fibers.
#include <map>
#include <mutex>
#include <thread>

#include "block.h"
#include "device_model.h"

namespace simt {

thread_local Self* self = nullptr;
thread_local Worker* current_worker = nullptr;

namespace {

#ifdef SIMT_ONE_THREAD
constexpr bool kOneThread = true;
#else
constexpr bool kOneThread = false;
#endif

thread_local Settings current_settings;

std::mutex workers_mutex;
std::vector<std::unique_ptr<Worker>>& idle_workers() {
  static std::vector<std::unique_ptr<Worker>> workers;
  return workers;
}

std::mutex runs_mutex;
std::map<std::string, int64_t>& runs() {
  static std::map<std::string, int64_t> counts;
  return counts;
}

std::vector<std::unique_ptr<Worker>> take_workers(int wanted) {
  const std::lock_guard lock(workers_mutex);
  auto& idle = idle_workers();
  std::vector<std::unique_ptr<Worker>> taken;
  for (int i = 0; i < wanted; ++i) {
    if (idle.empty()) { idle.push_back(std::make_unique<Worker>()); }
    taken.push_back(std::move(idle.back()));
    idle.pop_back();
  }
  return taken;
}

void give_workers(std::vector<std::unique_ptr<Worker>> workers) {
  for (const auto& worker : workers) { worker->end_launch(); }
  const std::lock_guard lock(workers_mutex);
  std::move(workers.begin(), workers.end(), std::back_inserter(idle_workers()));
}

Index unravel(int64_t number, dim3 extent) {
  return {static_cast<unsigned>(number % extent.x), static_cast<unsigned>(number / extent.x % extent.y),
          static_cast<unsigned>(number / extent.x / extent.y)};
}

int64_t count(dim3 extent) { return static_cast<int64_t>(extent.x) * extent.y * extent.z; }

std::string text(Index i) {
  return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}

void check_launch(const Grid& grid) {
  const std::string where = grid.kernel + ": ";
  if (count(grid.blocks) < 1 || grid.blocks.x > 0x7fffffffu || grid.blocks.y > 65535 || grid.blocks.z > 65535) {
    throw Fault(where + "invalid grid " + text({grid.blocks.x, grid.blocks.y, grid.blocks.z}));
  }
  const int64_t threads = count(grid.threads);
  if (threads < 32 || threads > kMaxThreads || threads % 32 != 0) {
    throw Fault(where + "block of " + std::to_string(threads) + " threads; expected a multiple of 32 up to 1024");
  }
  if (grid.shared_bytes < 0 || grid.shared_bytes > device_model().shared_bytes) {
    throw Fault(where + std::to_string(grid.shared_bytes) + " bytes of shared memory; the limit is " +
                std::to_string(device_model().shared_bytes));
  }
}

}  // namespace

Settings settings() { return current_settings; }

ScopedSettings::ScopedSettings(Settings settings) : previous_(current_settings) { current_settings = settings; }
ScopedSettings::~ScopedSettings() { current_settings = previous_; }

SIMT_NO_TSAN void enter_kernel(const void* frame) { self->entry = static_cast<const Frame*>(frame); }

std::string describe(const Thread& thread, const std::string& kernel) {
  return kernel + ": block " + text(thread.self.block) + " thread " + text(thread.self.thread);
}

int64_t runs_of(const std::string& part) {
  const std::lock_guard lock(runs_mutex);
  int64_t sum = 0;
  for (const auto& [kernel, count] : runs()) { sum += kernel.find(part) != std::string::npos ? count : 0; }
  return sum;
}

void run_grid(const Grid& grid_as_written, const Settings& settings, const std::function<void()>& body) {
  Grid grid = grid_as_written;
  std::erase_if(grid.kernel, [](char c) { return c == '(' || c == ')'; });
  check_launch(grid);
  {
    const std::lock_guard lock(runs_mutex);
    ++runs()[grid.kernel];
  }
  Launch launch{.grid = grid, .settings = settings, .body = body};
  const int64_t most = kOneThread ? 1 : std::max(1, settings.workers);
  const int workers = static_cast<int>(std::min(count(grid.blocks), most));
  happens_before(&launch.begin_tag);

  // Each for the whole launch, also if it finds no block left: no stack may be used twice in one launch (see
  // StackPool).
  std::vector<std::unique_ptr<Worker>> crew = take_workers(workers);
  std::vector<Worker::Outcome> outcomes(static_cast<size_t>(workers));
  auto work = [&](int index) { outcomes[static_cast<size_t>(index)] = crew[static_cast<size_t>(index)]->run(launch); };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < workers; ++i) { helpers.emplace_back(work, i); }
    work(0);
  }
  give_workers(std::move(crew));
  happens_after(&launch.end_tag);

  const Worker::Outcome* first = nullptr;
  for (const Worker::Outcome& outcome : outcomes) {
    if (outcome.fault && (first == nullptr || outcome.block < first->block)) { first = &outcome; }
  }
  if (first != nullptr) { std::rethrow_exception(first->fault); }
}

Worker::Outcome Worker::run(Launch& launch) {
  Worker* const previous_worker = current_worker;
  Self* const previous_self = self;
  current_worker = this;
  launch_ = &launch;
  happens_before(&launch_);
  adopt_thread(scheduler_);
  Outcome outcome;
  const int64_t blocks = count(launch.grid.blocks);
  while (!launch.stopped) {
    const int64_t ticket = launch.next_block++;
    if (ticket >= blocks) { break; }
    const int64_t block = launch.settings.order == Order::forward ? ticket : blocks - 1 - ticket;
    try {
      run_block(block);
    } catch (...) {
      outcome = {ticket, std::current_exception()};
      launch.stopped = true;
    }
  }
  current_worker = previous_worker;
  self = previous_self;
  return outcome;
}

void Worker::begin_block(int64_t block) {
  const Grid& grid = launch_->grid;
  threads_in_block_ = static_cast<int>(count(grid.threads));
  if (threads_.size() < static_cast<size_t>(threads_in_block_)) {
    threads_.resize(static_cast<size_t>(threads_in_block_));
    last_copies_.resize(static_cast<size_t>(threads_in_block_));
    warps_.resize(static_cast<size_t>(threads_in_block_) / 32);
  }
  for (int i = 0; i < threads_in_block_; ++i) {
    Thread& thread = threads_[static_cast<size_t>(i)];
    thread.self = {unravel(i, grid.threads), unravel(block, grid.blocks), grid.threads, grid.blocks};
    thread.state = State::ready;
    thread.started = false;
    thread.number = i;
    thread.copies.clear();
    thread.group_ends.clear();
  }
  for (Warp& warp : warps_) { warp.pending.clear(); }
  const bool is_forward = launch_->settings.order == Order::forward;
  first_ = is_forward ? 0 : threads_in_block_ - 1;
  step_ = is_forward ? 1 : -1;
  finished_ = at_barrier_ = 0;
  fault_ = nullptr;
  shared_.begin_block(grid.shared_bytes, device_model().shared_bytes);
}

void Worker::run_block(int64_t block) {
  const Unwatched unwatched;
  begin_block(block);
  while (finished_ < threads_in_block_) { run_pass(); }
  if (const char* name = shared_.damaged(); name != nullptr) {
    throw Fault(describe(threads_[0], launch_->grid.kernel) + ": something was written past the end of shared " + name);
  }
}

void Worker::run_pass() {
  bool ran = false;
  for (position_ = 0; position_ < threads_in_block_; ++position_) {
    Thread& thread = thread_at(position_);
    if (thread.state == State::ready) {
      resume(thread);  // and threads after it: position_ moves
      if (fault_) {
        abandon_block();
        std::rethrow_exception(fault_);
      }
      ran = true;
    }
  }
  if (!ran) { report_deadlock(); }
}

SIMT_NO_TSAN void Worker::resume(Thread& thread) {
  if (!thread.started) {
    thread.started = true;
    thread.stack = stacks_.take();
    prepare(thread.context, thread.stack, &Worker::thread_entry);
  }
  running_ = &thread;
  self = &thread.self;
  switch_context(scheduler_, thread.context, false);
  Thread& last = *running_;  // threads that wait hand over to the next by themselves
  if (last.state == State::finished) { stacks_.give(last.stack, true); }
}

SIMT_NO_TSAN void Worker::thread_entry() {
  Worker& worker = *current_worker;
  Thread& thread = *worker.running_;
  entered(thread.context, worker.scheduler_);
  happens_after(&worker.launch_);
  worker.run_thread(thread);
  switch_context(thread.context, worker.scheduler_, true);
}

void Worker::run_thread(Thread& thread) {
  try {
    happens_after(&launch_->begin_tag);
    launch_->body();
    happens_before(&launch_->end_tag);
    const Unwatched unwatched;
    finish(thread);
  } catch (...) {
    const Unwatched unwatched;
    fault_ = std::current_exception();
  }
  const Unwatched unwatched;
  thread.state = State::finished;
}

void Worker::finish(Thread& thread) {
  if (!thread.copies.empty()) { fault("returns with a cp.async that was not waited for", last_copy(thread)); }
  for (const Pending& pending : warp_of(thread).pending) {
    if ((pending.mask >> (thread.number & 31) & 1u) != 0) {
      fault(std::string("returns while other lanes wait for it in ") + pending.name, pending.place);
    }
  }
  if (at_barrier_ > 0) {
    fault("returns while " + std::to_string(at_barrier_) + " threads wait for it at the barrier", barrier_place_);
  }
  ++finished_;
}

void Worker::abandon_block() {
  for (int i = 0; i < threads_in_block_; ++i) {
    Thread& thread = threads_[static_cast<size_t>(i)];
    if (thread.started && thread.state != State::finished) { stacks_.give(thread.stack, false); }
    thread.started = false;
  }
}

void Worker::report_deadlock() {
  std::string what = "deadlock:";
  int returned = 0;
  std::vector<const Thread*> seen;
  const auto place_of = [](const Thread& thread) { return Place({thread.frame, thread.self.entry}); };
  for (int i = 0; i < threads_in_block_; ++i) {
    const Thread& thread = threads_[static_cast<size_t>(i)];
    if (thread.state == State::finished) {
      ++returned;
      continue;
    }
    const auto same = [&](const Thread* other) {
      return place_of(*other) == place_of(thread) && std::string_view(other->waits_in) == thread.waits_in;
    };
    if (std::find_if(seen.begin(), seen.end(), same) == seen.end()) {
      seen.push_back(&thread);
      what += " thread " + text(thread.self.thread) + " waits in " + thread.waits_in + " at " +
              place_of(thread).text() + ";";
    }
  }
  const Thread& first = seen.empty() ? threads_[0] : *seen[0];
  const std::string message = launch_->grid.kernel + ": block " + text(first.self.block) + ": " + what + " " +
                              std::to_string(returned) + " of " + std::to_string(threads_in_block_) +
                              " threads returned";
  abandon_block();
  throw Fault(message);
}

void Worker::suspend(State state, const char* waits_in, const Frame* frame) {
  Thread& thread = *running_;
  thread.state = state;
  thread.waits_in = waits_in;
  thread.frame = frame;
  Thread* const next = next_waiting();
  if (next == nullptr) {
    switch_context(thread.context, scheduler_, false);
  } else {
    running_ = next;
    self = &next->self;
    switch_context(thread.context, next->context, false);
  }
}

// The next thread of the pass, if it only has to be continued; whatever needs more care is the scheduler's. A switch
// costs as much as most of what kernels do between two of them, and the way over the scheduler would be two.
Thread* Worker::next_waiting() {
  for (int position = position_ + 1; position < threads_in_block_; ++position) {
    Thread& thread = thread_at(position);
    if (thread.state == State::ready) {
      if (!thread.started) { return nullptr; }
      position_ = position;
      return &thread;
    }
  }
  return nullptr;
}

void Worker::barrier(const Frame* frame, bool of_roles) {
  const Standing here = at(frame);
  if (finished_ > 0) {
    fault("reaches a barrier after " + std::to_string(finished_) + " threads of the block have returned", here);
  }
  if (at_barrier_ == 0) {
    barrier_place_.note(here);
    barrier_of_roles_ = of_roles;
  } else if (of_roles != barrier_of_roles_ || (!of_roles && !barrier_place_.is_of(here))) {
    fault("reaches the barrier at " + Place(here).text() + " while others wait at the barrier", barrier_place_);
  }
  char* const tag = &barrier_tags_[barrier_generation_ & 1];
  happens_before(tag);
  if (++at_barrier_ < threads_in_block_) {
    suspend(State::at_barrier, "__syncthreads", frame);
  } else {
    at_barrier_ = 0;
    ++barrier_generation_;
    for (int i = 0; i < threads_in_block_; ++i) { threads_[static_cast<size_t>(i)].state = State::ready; }
    if (const char* name = shared_.damaged(); name != nullptr) {
      fault(std::string("something was written past the end of shared ") + name + " before", here);
    }
  }
  happens_after(tag);
}

}  // namespace simt
