#include "comm/thread_communicator.h"

#include <fmt/core.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "core/error.h"
#ifdef HEBB_HAVE_CUDA
#include "core/cuda_device.h"
#endif

namespace hebb {
namespace {

/// Ranks do not see each other's streams: what a rank has been told to do happens before it meets the others.
void wait_for_device([[maybe_unused]] Stream& stream) {
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) { cuda::synchronize(stream); }
#endif
}

/// Where the ranks meet. What a rank writes before it enters a meeting, all read after it.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}

  /// Errors: CommError where a rank has failed or ended.
  void wait(int rank) {
    std::unique_lock lock(mutex_);
    const uint64_t round = round_;
    if (gone_ == 0 && ++here_ == size_) {
      here_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return round_ != round || gone_ > 0; });
    if (round_ == round) { throw CommError(fmt::format("rank {:d}", rank), "waits for others, but " + why_); }
  }

  /// A rank comes no more; error: why, or null.
  void leave(int rank, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (gone_++ == 0) { why_ = fmt::format("rank {:d}{}", rank, error ? " has failed" : " has ended"); }
    if (error && !first_error_) { first_error_ = error; }
    changed_.notify_all();
  }

  std::exception_ptr first_error() const { return first_error_; }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int here_ = 0, gone_ = 0;
  uint64_t round_ = 0;
  std::string why_;
  std::exception_ptr first_error_;
};

}  // namespace

/// Each rank publishes what it gives in its own place, meets the others, takes from theirs, and meets them again before
/// it changes anything.
class ThreadCommunicator final : public Communicator {
 public:
  struct Call {
    std::string_view kind;
    int64_t bytes = 0;  // must agree; -1: by pieces
    std::vector<Piece> pieces;
    const void* data = nullptr;
  };
  struct Shared {
    explicit Shared(int size) : meeting(size), calls(static_cast<size_t>(size)) {}
    Meeting meeting;
    std::vector<Call> calls;
  };

  ThreadCommunicator(Shared& shared, int rank, int size) : Communicator(rank, size), shared_(&shared) {}
  const char* engine() const override { return "threads"; }

 private:
  const Call& call(int rank) const { return shared_->calls[static_cast<size_t>(rank)]; }

  void begin(Stream& stream, Call own) {
    wait_for_device(stream);
    shared_->calls[static_cast<size_t>(rank())] = std::move(own);
    shared_->meeting.wait(rank());
    const Call& mine = call(rank());
    for (int p = 0; p < size(); ++p) {
      const Call& other = call(p);
      if (other.kind != mine.kind || other.bytes != mine.bytes) {
        const auto describe = [](const Call& c) { return fmt::format("{} of {:d}", c.kind, c.bytes); };
        throw CommError(fmt::format("rank {:d}", rank()),
                        fmt::format("collectives differ: {}, rank {:d}: {}", describe(mine), p, describe(other)));
      }
    }
  }
  void end(Stream& stream) {
    wait_for_device(stream);
    shared_->meeting.wait(rank());
  }

  /// All ranks check the pieces of all, so that all stop before one reads what another has given up.
  void check_pieces() const {
    for (int from = 0; from < size(); ++from) {
      for (int to = 0; to < size(); ++to) {
        const int64_t sent = call(from).pieces[static_cast<size_t>(to)].send_bytes,
                      expected = call(to).pieces[static_cast<size_t>(from)].receive_bytes;
        if (sent != expected) {
          throw CommError(fmt::format("rank {:d}", to),
                          fmt::format("expects {:d} bytes from rank {:d}, which sends {:d}", expected, from, sent));
        }
      }
    }
  }

  void do_exchange(Stream& stream, std::span<const Piece> pieces) override {
    begin(stream, {.kind = "exchange", .bytes = -1, .pieces = {pieces.begin(), pieces.end()}});
    check_pieces();
    for (int p = 0; p < size(); ++p) {
      const Piece& to = pieces[static_cast<size_t>(p)];
      copy_bytes(stream, to.receive, call(p).pieces[static_cast<size_t>(rank())].send, to.receive_bytes);
    }
    end(stream);
  }

  void do_broadcast(Stream& stream, void* data, int64_t bytes, int root) override {
    begin(stream, {.kind = "broadcast", .bytes = bytes, .pieces = {}, .data = data});
    copy_bytes(stream, data, call(root).data, bytes);
    end(stream);
  }

  /// values [n] = combine over ranks, of what the host has of each.
  template <class T, class F> void all_reduce(Stream& stream, const char* kind, const Tensor& values, F&& combine) {
    std::vector<T> own(static_cast<size_t>(values.numel())), result(own.size());
    copy_to_host(stream, own.data(), values);
    begin(stream, {.kind = kind, .bytes = values.bytes(), .pieces = {}, .data = own.data()});
    for (int p = 0; p < size(); ++p) {
      const T* other = static_cast<const T*>(call(p).data);
      for (size_t i = 0; i < result.size(); ++i) { result[i] = combine(result[i], other[i]); }
    }
    end(stream);
    copy_to_device(stream, values, result.data());
  }

  void do_sum(Stream& stream, int64_t* values, int64_t count) override {
    all_reduce<int64_t>(stream, "sum", {values, DType::i64, {count}}, [](int64_t a, int64_t b) { return a + b; });
  }
  void do_any(Stream& stream, uint8_t* flags, int64_t count) override {
    all_reduce<uint8_t>(stream, "any", {flags, DType::u8, {count}},
                        [](uint8_t a, uint8_t b) { return std::max(a, b); });
  }
  void do_barrier(Stream& stream) override {
    begin(stream, {.kind = "barrier", .bytes = 0, .pieces = {}});
    end(stream);
  }

  Shared* shared_;
};

void run_ranks(int size, const std::function<void(Communicator&)>& body) {
  ThreadCommunicator::Shared shared(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&shared, &body, rank, size] {
      std::exception_ptr error;
      try {
        ThreadCommunicator communicator(shared, rank, size);
        body(communicator);
      } catch (...) { error = std::current_exception(); }
      shared.meeting.leave(rank, error);
    });
  }
  for (std::thread& thread : threads) { thread.join(); }
  if (shared.meeting.first_error()) { std::rethrow_exception(shared.meeting.first_error()); }
}

}  // namespace hebb
