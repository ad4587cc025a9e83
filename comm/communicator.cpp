#include "comm/communicator.h"

#include <chrono>
#include <numeric>
#include <vector>

#include "core/elapsed.h"

namespace hebb {

void copy_bytes(Stream& stream, void* to, const void* from, int64_t bytes) {
  if (to == from || bytes == 0) { return; }
  copy(stream, {to, DType::u8, {bytes}}, {const_cast<void*>(from), DType::u8, {bytes}});
}

template <class F> void Communicator::call(Stream& stream, Kind kind, const Sizes& bytes, F&& run) {
  // One step of splitmix64 over state and event: mixes every bit into every other.
  uint64_t x = history_ + 0x9e3779b97f4a7c15u + static_cast<uint64_t>(bytes.common) * 8 + static_cast<uint64_t>(kind);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  history_ = x ^ (x >> 31);
  (kind == Kind::exchange ? counts_.exchanged_bytes
   : kind == Kind::gather ? counts_.gathered_bytes
                          : counts_.other_bytes) += bytes.sent;
  if (stream.counting()) { return; }
  constexpr const char* kNames[] = {"", "all-to-all", "all-gather", "broadcast", "sum", "or", "barrier"};
  const int64_t number = log_ != nullptr ? log_->begin(kNames[static_cast<size_t>(kind)], bytes.own) : 0;
  const auto begin = std::chrono::steady_clock::now();
  run();
  counts_.seconds += seconds_since(begin);
  if (log_ != nullptr) { log_->end(number); }
}

void Communicator::all_to_all(Stream& stream, const Tensor& receive, const Tensor& send) {
  HEBB_ASSERT(send.bytes() == receive.bytes() && send.bytes() % size_ == 0);
  const int64_t part = send.bytes() / size_;
  std::vector<Piece> pieces;
  for (int p = 0; p < size_; ++p) {
    pieces.push_back(
        {static_cast<char*>(send.data) + p * part, part, static_cast<char*>(receive.data) + p * part, part});
  }
  call(stream, Kind::exchange, {send.bytes(), send.bytes(), part * (size_ - 1)}, [&] { do_exchange(stream, pieces); });
}

void Communicator::all_to_all(Stream& stream, const Tensor& receive, std::span<const int64_t> receive_bytes,
                              const Tensor& send, std::span<const int64_t> send_bytes) {
  HEBB_ASSERT(static_cast<int>(receive_bytes.size()) == size_ && static_cast<int>(send_bytes.size()) == size_);
  int64_t sent = 0, received = 0;
  std::vector<Piece> pieces;
  for (size_t p = 0; p < send_bytes.size(); ++p) {
    pieces.push_back({static_cast<char*>(send.data) + sent, send_bytes[p], static_cast<char*>(receive.data) + received,
                      receive_bytes[p]});
    sent += send_bytes[p];
    received += receive_bytes[p];
  }
  HEBB_ASSERT(sent == send.bytes() && received == receive.bytes());
  const size_t own = static_cast<size_t>(rank_);
  HEBB_ASSERT(send_bytes[own] == receive_bytes[own]);
  call(stream, Kind::exchange, {-1, sent, sent - send_bytes[own]}, [&] { do_exchange(stream, pieces); });
}

void Communicator::all_gather(Stream& stream, const Tensor& receive, const Tensor& send) {
  all_gather(stream, receive, std::vector<int64_t>(static_cast<size_t>(size_), send.bytes()), send);
}

void Communicator::all_gather(Stream& stream, const Tensor& receive, std::span<const int64_t> bytes,
                              const Tensor& send) {
  HEBB_ASSERT(static_cast<int>(bytes.size()) == size_ && bytes[static_cast<size_t>(rank_)] == send.bytes());
  HEBB_ASSERT(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}) == receive.bytes());
  call(stream, Kind::gather, {receive.bytes(), send.bytes(), send.bytes() * (size_ - 1)},
       [&] { do_gather(stream, receive.data, bytes, send.data); });
}

void Communicator::do_gather(Stream& stream, void* receive, std::span<const int64_t> bytes, const void* send) {
  std::vector<Piece> pieces;
  char* to = static_cast<char*>(receive);
  for (const int64_t part : bytes) {
    pieces.push_back({send, bytes[static_cast<size_t>(rank_)], to, part});
    to += part;
  }
  do_exchange(stream, pieces);
}

void Communicator::broadcast(Stream& stream, const Tensor& data, int root) {
  HEBB_ASSERT(root >= 0 && root < size_);
  call(stream, Kind::broadcast, {data.bytes(), data.bytes(), rank_ == root ? data.bytes() * (size_ - 1) : 0},
       [&] { do_broadcast(stream, data.data, data.bytes(), root); });
}

void Communicator::sum(Stream& stream, const Tensor& values) {
  int64_t* const data = values.as<int64_t>();
  call(stream, Kind::sum, {values.bytes(), values.bytes(), values.bytes() * (size_ - 1)},
       [&] { do_sum(stream, data, values.numel()); });
}

void Communicator::any(Stream& stream, const Tensor& flags) {
  uint8_t* const data = flags.as<uint8_t>();
  call(stream, Kind::any, {flags.bytes(), flags.bytes(), flags.bytes() * (size_ - 1)},
       [&] { do_any(stream, data, flags.numel()); });
}

void Communicator::barrier(Stream& stream) {
  call(stream, Kind::barrier, {0, 0, 0}, [&] { do_barrier(stream); });
}

void SelfCommunicator::do_exchange(Stream& stream, std::span<const Piece> pieces) {
  copy_bytes(stream, pieces[0].receive, pieces[0].send, pieces[0].send_bytes);
}

}  // namespace hebb
