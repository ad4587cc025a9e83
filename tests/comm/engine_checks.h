#pragma once
// What every engine must do, and the exchange of a step through it. Errors are exceptions: several ranks run this at
// the same time, in threads or processes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/bucket_layout.h"
#include "comm/communicator.h"
#include "comm/lanes.h"
#include "comm/ordered_reduce.h"
#include "core/arena.h"
#include "core/random.h"

namespace hebb::testing {

inline void expect(bool condition, const std::string& what) {
  if (!condition) { throw std::logic_error("not so: " + what); }
}

template <class T> Tensor tensor_of(std::vector<T>& values) {
  return {values.data(), dtype_of<T>, {static_cast<int64_t>(values.size())}};
}

/// The byte that rank `from` sends to rank `to` at place i.
inline uint8_t sent_byte(int from, int to, int64_t i) { return static_cast<uint8_t>(31 * from + 7 * to + 3 * i + 1); }

inline void check_exchanges(Communicator& comm, Stream& stream, int64_t part) {
  const int ranks = comm.size(), rank = comm.rank();
  std::vector<uint8_t> send, receive(static_cast<size_t>(ranks * part)), ragged_send, ragged;
  std::vector<int64_t> send_bytes, receive_bytes;
  for (int p = 0; p < ranks; ++p) {
    for (int64_t i = 0; i < part; ++i) { send.push_back(sent_byte(rank, p, i)); }
    send_bytes.push_back((rank + p) % 3 * part);  // some are empty
    receive_bytes.push_back((p + rank) % 3 * part);
    for (int64_t i = 0; i < send_bytes.back(); ++i) { ragged_send.push_back(sent_byte(rank, p, i)); }
    ragged.resize(ragged.size() + static_cast<size_t>(receive_bytes.back()));
  }
  comm.all_to_all(stream, tensor_of(receive), tensor_of(send));
  comm.all_to_all(stream, tensor_of(ragged), receive_bytes, tensor_of(ragged_send), send_bytes);
  size_t at = 0;
  for (int p = 0; p < ranks; ++p) {
    for (int64_t i = 0; i < part; ++i) {
      expect(receive[static_cast<size_t>(p * part + i)] == sent_byte(p, rank, i), "all_to_all brings each part");
    }
    for (int64_t i = 0; i < receive_bytes[static_cast<size_t>(p)]; ++i) {
      expect(ragged[at++] == sent_byte(p, rank, i), "all_to_all brings parts of unequal length");
    }
  }
}

/// Parts of unequal length, some of them empty, in their own place and not.
inline void check_ragged_gather(Communicator& comm, Stream& stream, int64_t part) {
  std::vector<int64_t> bytes;
  std::vector<uint8_t> expected, own;
  int64_t begin = 0;
  for (int p = 0; p < comm.size(); ++p) {
    bytes.push_back((p + 2) % 3 * part);
    if (p == comm.rank()) { begin = static_cast<int64_t>(expected.size()); }
    for (int64_t i = 0; i < bytes.back(); ++i) { expected.push_back(sent_byte(p, 0, i)); }
  }
  for (int64_t i = 0; i < bytes[static_cast<size_t>(comm.rank())]; ++i) { own.push_back(sent_byte(comm.rank(), 0, i)); }
  std::vector<uint8_t> all(expected.size()), in_place(expected.size());
  std::copy(own.begin(), own.end(), in_place.begin() + begin);
  comm.all_gather(stream, tensor_of(all), bytes, tensor_of(own));
  comm.all_gather(stream, tensor_of(in_place), bytes,
                  tensor_of(in_place).slice(begin, {static_cast<int64_t>(own.size())}));
  expect(all == expected && in_place == expected, "all_gather brings parts of unequal length");
}

inline void check_collectives(Communicator& comm, Stream& stream, int64_t count) {
  const int ranks = comm.size(), rank = comm.rank();
  std::vector<int64_t> own(static_cast<size_t>(count), rank + 5), all(static_cast<size_t>(ranks * count), -1), sums,
      root(static_cast<size_t>(count), rank);
  std::vector<uint8_t> flags(static_cast<size_t>(ranks + 2), 0);
  for (int64_t i = 0; i < count; ++i) { sums.push_back((int64_t{1} << 40) * (rank + 1) - i); }
  flags[static_cast<size_t>(rank)] = 1;
  comm.all_gather(stream, tensor_of(all), tensor_of(own));
  comm.broadcast(stream, tensor_of(root), ranks - 1);
  comm.sum(stream, tensor_of(sums));
  comm.any(stream, tensor_of(flags));
  comm.barrier(stream);
  for (int64_t i = 0; i < count; ++i) {
    for (int p = 0; p < ranks; ++p) {
      expect(all[static_cast<size_t>(p * count + i)] == p + 5, "all_gather keeps the order of ranks");
    }
    expect(root[static_cast<size_t>(i)] == ranks - 1, "broadcast brings the root's values");
    expect(sums[static_cast<size_t>(i)] == (int64_t{1} << 40) * ranks * (ranks + 1) / 2 - ranks * i,
           "sums of integers are exact");
  }
  for (int p = 0; p < ranks + 2; ++p) {
    expect(flags[static_cast<size_t>(p)] == (p < ranks ? 1 : 0), "flags are or-ed");
  }
}

inline void check_engine(Communicator& comm) {
  Stream stream;
  for (const int64_t count : {0, 1, 17, 70000}) {
    check_exchanges(comm, stream, count);
    check_ragged_gather(comm, stream, count);
    check_collectives(comm, stream, count);
  }
  // In its own place.
  std::vector<int64_t> all(static_cast<size_t>(comm.size()), -1);
  all[static_cast<size_t>(comm.rank())] = comm.rank();
  comm.all_gather(stream, tensor_of(all), tensor_of(all).slice(comm.rank(), {1}));
  for (int p = 0; p < comm.size(); ++p) { expect(all[static_cast<size_t>(p)] == p, "all_gather works in place"); }
  // The same history everywhere.
  std::vector<int64_t> history{static_cast<int64_t>(comm.history())}, histories(static_cast<size_t>(comm.size()));
  comm.all_gather(stream, tensor_of(histories), tensor_of(history));
  for (const int64_t h : histories) { expect(h == histories[0], "histories of ranks are equal"); }
}

/// The gradients of a lane: numbers of very different size, so that another order of additions shows.
template <class S> std::vector<S> lane_gradients(int lane, int64_t count) {
  Rng rng(11, "lane", static_cast<uint64_t>(lane));
  std::vector<S> values(static_cast<size_t>(count));
  for (S& v : values) { v = static_cast<S>(std::ldexp(2 * rng.uniform() - 1, static_cast<int>(rng.below(40)))); }
  return values;
}

/// The sum that all orders of work must give, by plain loops.
template <class S> std::vector<S> ordered_sum_of_lanes(int lanes, int64_t count) {
  std::vector<std::vector<S>> g;
  for (int lane = 0; lane < lanes; ++lane) { g.push_back(lane_gradients<S>(lane, count)); }
  int trees = lanes;
  while (trees % 2 == 0) {
    for (int i = 0; i < trees / 2; ++i) {
      const std::vector<S>&left = g[static_cast<size_t>(2 * i)], &right = g[static_cast<size_t>(2 * i + 1)];
      std::vector<S> sum(left.size());
      std::transform(left.begin(), left.end(), right.begin(), sum.begin(), [](S a, S b) { return a + b; });
      g[static_cast<size_t>(i)] = std::move(sum);
    }
    trees /= 2;
  }
  std::vector<S> total = g[0];
  for (int t = 1; t < trees; ++t) {
    for (size_t i = 0; i < total.size(); ++i) { total[i] += g[static_cast<size_t>(t)][i]; }
  }
  return total;
}

/// The gradients of a step in flat order on this rank, through own lanes, buckets and the exchange.
template <class S>
std::vector<S> reduced_gradients(Communicator& comm, const BucketLayout& layout, int lanes, DType wire = dtype_of<S>) {
  const int own = lanes / comm.size();
  std::vector<std::vector<S>> memory(static_cast<size_t>(LaneSums::buffers(own)),
                                     std::vector<S>(static_cast<size_t>(layout.size())));
  std::vector<Tensor> buffers;
  for (std::vector<S>& m : memory) { buffers.push_back(tensor_of(m)); }
  Stream stream;
  Arena arena(DeviceKind::cpu);
  LaneSums sums(own, buffers);
  for (int lane = 0; lane < own; ++lane) {
    const std::vector<S> gradients = lane_gradients<S>(comm.rank() * own + lane, layout.size());
    std::copy(gradients.begin(), gradients.end(), sums.next().template as<S>());
    sums.finish(stream);
  }
  std::vector<S> result(static_cast<size_t>(layout.size()));
  for (int64_t b = 0; b < layout.buckets(); ++b) {
    const ElementRange bucket = layout.bucket(b), part = layout.part(b, comm.rank(), comm.size());
    const Tensor whole = tensor_of(result).slice(bucket.begin, {bucket.size()}),
                 owned = tensor_of(result).slice(part.begin, {part.size()});
    reduce_bucket(comm, Workspace(stream, arena), owned, sums.total().slice(bucket.begin, {bucket.size()}), wire);
    comm.all_gather(stream, whole, owned);
  }
  return result;
}

template <class S> bool same_bits(const std::vector<S>& a, const std::vector<S>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(S)) == 0;
}

template <class S> void check_reduction(Communicator& comm, int lanes, const std::vector<int64_t>& sizes, int64_t mib) {
  const BucketLayout layout(sizes, lanes, mib);
  const std::vector<S> found = reduced_gradients<S>(comm, layout, lanes);
  if (comm.rank() > 0) { return; }  // what all have gathered is checked once
  expect(same_bits(found, ordered_sum_of_lanes<S>(lanes, layout.size())), "gradients are summed in the stated order (" +
                                                                              std::to_string(comm.size()) + " ranks, " +
                                                                              std::to_string(lanes) + " lanes)");
}

}  // namespace hebb::testing
