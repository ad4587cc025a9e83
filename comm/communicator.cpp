#include "comm/communicator.h"

#include <vector>

namespace hebb {
namespace {

enum Kind { kExchange = 1, kGather, kBroadcast, kSum, kAny, kBarrier };

}  // namespace

void copy_bytes(Stream& stream, void* to, const void* from, int64_t bytes) {
  if (to == from || bytes == 0) { return; }
  copy(stream, {to, DType::u8, {bytes}}, {const_cast<void*>(from), DType::u8, {bytes}});
}

void Communicator::note(int kind, int64_t bytes) {
  // One step of splitmix64 over state and event: mixes every bit into every other.
  uint64_t x = history_ + 0x9e3779b97f4a7c15u + static_cast<uint64_t>(bytes) * 8 + static_cast<uint64_t>(kind);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  history_ = x ^ (x >> 31);
}

void Communicator::all_to_all(Stream& stream, const Tensor& receive, const Tensor& send) {
  HEBB_ASSERT(send.bytes() == receive.bytes() && send.bytes() % size_ == 0);
  note(kExchange, send.bytes());
  if (stream.counting()) { return; }
  const int64_t part = send.bytes() / size_;
  std::vector<Piece> pieces;
  for (int p = 0; p < size_; ++p) {
    pieces.push_back(
        {static_cast<char*>(send.data) + p * part, part, static_cast<char*>(receive.data) + p * part, part});
  }
  do_exchange(stream, pieces);
}

void Communicator::all_to_all(Stream& stream, const Tensor& receive, std::span<const int64_t> receive_bytes,
                              const Tensor& send, std::span<const int64_t> send_bytes) {
  HEBB_ASSERT(static_cast<int>(receive_bytes.size()) == size_ && static_cast<int>(send_bytes.size()) == size_);
  note(kExchange, -1);
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
  if (!stream.counting()) { do_exchange(stream, pieces); }
}

void Communicator::all_gather(Stream& stream, const Tensor& receive, const Tensor& send) {
  HEBB_ASSERT(receive.bytes() == send.bytes() * size_);
  note(kGather, send.bytes());
  if (!stream.counting()) { do_gather(stream, receive.data, send.data, send.bytes()); }
}

void Communicator::do_gather(Stream& stream, void* receive, const void* send, int64_t bytes) {
  std::vector<Piece> pieces;
  for (int p = 0; p < size_; ++p) { pieces.push_back({send, bytes, static_cast<char*>(receive) + p * bytes, bytes}); }
  do_exchange(stream, pieces);
}

void Communicator::broadcast(Stream& stream, const Tensor& data, int root) {
  HEBB_ASSERT(root >= 0 && root < size_);
  note(kBroadcast, data.bytes());
  if (!stream.counting()) { do_broadcast(stream, data.data, data.bytes(), root); }
}

void Communicator::sum(Stream& stream, const Tensor& values) {
  note(kSum, values.bytes());
  int64_t* const data = values.as<int64_t>();
  if (!stream.counting()) { do_sum(stream, data, values.numel()); }
}

void Communicator::any(Stream& stream, const Tensor& flags) {
  note(kAny, flags.bytes());
  uint8_t* const data = flags.as<uint8_t>();
  if (!stream.counting()) { do_any(stream, data, flags.numel()); }
}

void Communicator::barrier(Stream& stream) {
  note(kBarrier, 0);
  if (!stream.counting()) { do_barrier(stream); }
}

void SelfCommunicator::do_exchange(Stream& stream, std::span<const Piece> pieces) {
  copy_bytes(stream, pieces[0].receive, pieces[0].send, pieces[0].send_bytes);
}

}  // namespace hebb
