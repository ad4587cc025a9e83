#pragma once
#include <cstdint>
#include <span>

#include "comm/flight_log.h"
#include "core/stream.h"

namespace hebb {

/// What a rank has sent to others, each byte counted once for every rank that gets it, and how long it was in
/// collectives. On a GPU these are enqueued only: the seconds are the host's.
struct CommCounts {
  int64_t exchanged_bytes = 0;  // by all_to_all
  int64_t gathered_bytes = 0;   // by all_gather
  int64_t other_bytes = 0;      // by broadcast, sum and any
  double seconds = 0;

  int64_t sent_bytes() const { return exchanged_bytes + gathered_bytes + other_bytes; }
};

/// Moves bytes between the ranks of a run. Every rank calls the same collectives in the same order, from one thread.
/// Tensors lie on the device of the stream: a CPU engine returns when the collective is complete for this rank; a GPU
/// engine enqueues it. No engine adds floating-point numbers: their order is hebb's own (comm/ordered_reduce.h).
/// On the counting device nothing happens. Errors: CommError where ranks disagree, or another rank or the library
/// failed; the communicator is of no use after that.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual const char* engine() const = 0;  // "self", "threads", "mpi", "nccl"

  /// Part p of `send` goes to rank p; part p of `receive` comes from rank p. Both are [size * n] bytes in equal parts
  /// and do not overlap.
  void all_to_all(Stream& stream, const Tensor& receive, const Tensor& send);
  /// With parts of given lengths, one after the other; send_bytes[p] here is receive_bytes[rank()] on rank p.
  void all_to_all(Stream& stream, const Tensor& receive, std::span<const int64_t> receive_bytes, const Tensor& send,
                  std::span<const int64_t> send_bytes);
  /// receive = the `send` of all ranks, in order of ranks: size times its bytes. `send` may be its own place in
  /// `receive`.
  void all_gather(Stream& stream, const Tensor& receive, const Tensor& send);
  /// With parts of given lengths, one after the other: that of rank p is bytes[p], alike on all ranks.
  void all_gather(Stream& stream, const Tensor& receive, std::span<const int64_t> bytes, const Tensor& send);
  /// data = that of rank `root`.
  void broadcast(Stream& stream, const Tensor& data, int root);
  /// values [n] i64 = their sums over ranks.
  void sum(Stream& stream, const Tensor& values);
  /// flags [n] u8, each 0 or 1 = 1 where any rank has 1.
  void any(Stream& stream, const Tensor& flags);
  /// No rank goes on before all have come.
  void barrier(Stream& stream);

  /// A hash of the collectives that this rank has called, of their kinds, order and sizes where these are equal on all
  /// ranks: ranks that did the same have the same.
  uint64_t history() const { return history_; }
  /// Since the beginning. The counting device counts bytes, too.
  const CommCounts& counts() const { return counts_; }
  /// Collectives are written down here from now on; null: nowhere. The log outlives the communicator.
  void record_in(FlightLog* log) { log_ = log; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) { HEBB_ASSERT(rank >= 0 && rank < size); }

  /// What goes to one rank and what comes from it. Engines copy the piece of the own rank.
  struct Piece {
    const void* send;
    int64_t send_bytes;
    void* receive;
    int64_t receive_bytes;
  };
  virtual void do_exchange(Stream& stream, std::span<const Piece> pieces) = 0;  // one a rank
  virtual void do_gather(Stream& stream, void* receive, std::span<const int64_t> bytes, const void* send);
  virtual void do_broadcast(Stream& stream, void* data, int64_t bytes, int root) = 0;
  virtual void do_sum(Stream& stream, int64_t* values, int64_t count) = 0;
  virtual void do_any(Stream& stream, uint8_t* flags, int64_t count) = 0;
  virtual void do_barrier(Stream& stream) = 0;

 private:
  enum class Kind { exchange = 1, gather, broadcast, sum, any, barrier };
  struct Sizes {
    int64_t common, own, sent;  // bytes: what all ranks have alike; of this rank; to other ranks
  };
  /// One collective: notes it, and runs it unless the stream only counts.
  template <class F> void call(Stream& stream, Kind kind, const Sizes& bytes, F&& run);

  int rank_, size_;
  uint64_t history_ = 0;
  CommCounts counts_;
  FlightLog* log_ = nullptr;
};

/// Copies bytes on the stream's device unless both are the same place.
void copy_bytes(Stream& stream, void* to, const void* from, int64_t bytes);

/// One of several ranks that are not there, for the counting device: nothing moves.
class PlannedCommunicator final : public Communicator {
 public:
  PlannedCommunicator(int rank, int size) : Communicator(rank, size) {}
  const char* engine() const override { return "planned"; }

 private:
  void do_exchange(Stream&, std::span<const Piece>) override { HEBB_ASSERT(false); }
  void do_broadcast(Stream&, void*, int64_t, int) override { HEBB_ASSERT(false); }
  void do_sum(Stream&, int64_t*, int64_t) override { HEBB_ASSERT(false); }
  void do_any(Stream&, uint8_t*, int64_t) override { HEBB_ASSERT(false); }
  void do_barrier(Stream&) override { HEBB_ASSERT(false); }
};

/// The one rank of a run without others, on any device.
class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() : Communicator(0, 1) {}
  const char* engine() const override { return "self"; }

 private:
  void do_exchange(Stream& stream, std::span<const Piece> pieces) override;
  void do_broadcast(Stream&, void*, int64_t, int) override {}
  void do_sum(Stream&, int64_t*, int64_t) override {}
  void do_any(Stream&, uint8_t*, int64_t) override {}
  void do_barrier(Stream&) override {}
};

}  // namespace hebb
