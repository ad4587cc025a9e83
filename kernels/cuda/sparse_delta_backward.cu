#include <algorithm>

#include "kernels/cuda/common/add_slices.h"
#include "kernels/cuda/common/sparse_delta_rows.h"

// The grid of the forward pass, twice: backward in time for the adjoint G of M, forward for M itself, with known writes. FLOPs: H D
// (6 W + 2 R) and H D (4 W + 2 R) a token. HBM: 2 W + 2 R rows of G and 2 W + R of M a token and head, and the slots' sums over rows of
// the batch, B + 2 tables, once. Latency as in the forward pass: three and two barriers a token.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace sparse_delta;

/// Where a block's sums over its channels go.
struct Sums {
  float *by_write, *by_read, *by_token;
};

/// Calls f(slot) by one warp for every slot that a sequence touches, each once.
template <class T, class F>
__device__ __forceinline__ void each_touched(const Inputs<T>& in, const Place& at, const SparseDeltaSequence& sequence, F&& f) {
  const int64_t width = in.writes + in.reads;
  for (int64_t t = at.warp; t < sequence.length; t += at.warps) {
    const int32_t* const touched = in.touched + ((sequence.first + t) * in.heads + at.head) * width;
    for (int64_t first = 0; first < width; first += 32) {
      const int32_t own = first + at.lane < width ? touched[first + at.lane] : -1;
      unsigned waiting = __ballot_sync(kAllLanes, own >= 0);
      while (waiting != 0) {
        f(__shfl_sync(kAllLanes, own, __ffs(static_cast<int>(waiting)) - 1));
        waiting &= waiting - 1;
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(32 * kMaxWarps) sparse_delta_adjoint_kernel(float* d_u, float* sums, Sums out, const T* d_y,
                                                                             const float* error, Inputs<T> in) {
  HEBB_SHARED(Partial, partial);
  const Place at(in);
  const Memory memory(in, at, false);
  for (int64_t s = first_sequence(in.sequences, in.sequence_count, at.row); s < in.sequence_count; ++s) {
    const SparseDeltaSequence sequence = in.sequences[s];
    if (sequence.row != at.row) {
      break;
    }
    each_touched(in, at, sequence, [&](int32_t slot) { at.store(memory.row(slot), Pair{}, false); });
    __syncthreads();
    for (int64_t t = int64_t{sequence.first} + sequence.length - 1; t >= sequence.first; --t) {
      const int64_t token = t * in.heads + at.head;
      const int32_t *const writes = in.write_slots + token * in.writes, *const reads = in.read_slots + token * in.reads;
      const float *const k = in.write_weights + token * in.writes, *const q = in.read_weights + token * in.reads;
      const Ahead ahead(in, t > sequence.first, writes - in.heads * in.writes, reads - in.heads * in.reads);
      const Pair d_reading = at.load(d_y + token * in.dim), e = at.load(error + token * in.dim);
      Pair held[kHeld]{}, sum{};
      share(at, in.reads, [&](int n, int j) { held[j] = at.load(memory.row(reads[n])); },
            [&](int n, int j) {
              held[j].add(q[n], d_reading);
              at.store(memory.row(reads[n]), held[j], false);
            });
      __syncthreads();
      float* const by_write = out.by_write + (at.slice * in.tokens * in.heads + token) * 2 * in.writes;
      share(at, in.writes, [&](int n, int j) { held[j] = at.load(memory.row(writes[n])); },
            [&](int n, int j) {
              sum.add(k[n], held[j]);
              const float dot = held[j].dot(e);
              if (at.lane == 0) {
                by_write[n] = dot;
              }
            });
      put(partial, at, sum);
      ahead.fetch(memory, at);
      __syncthreads();
      const Pair d_write = total(partial, at);
      if (at.warp == 0) {
        at.store(d_u + token * in.dim, d_write, false);
      }
      const float beta = in.beta[token];
      share(at, in.writes, [&](int n, int j) { held[j] = at.load(memory.row(writes[n])); },
            [&](int n, int j) {
              held[j].add(-beta * k[n], d_write);
              held[j].scale(in.decay_of(token, n));
              at.store(memory.row(writes[n]), held[j], false);
            });
      __syncthreads();
    }
    if (sums != nullptr) {
      float* const to = sums + (at.row * in.heads + at.head) * in.slots * in.dim;
      each_touched(in, at, sequence, [&](int32_t slot) { at.store(to + slot * in.dim, at.load(memory.row(slot)), true); });
    }
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) sparse_delta_value_kernel(T* d_v, Sums out, const float* d_u, const T* d_y,
                                                                              const float* error, Inputs<T> in, bool accumulate) {
  const Place at(in);
  const Memory memory(in, at, false);
  for (int64_t s = first_sequence(in.sequences, in.sequence_count, at.row); s < in.sequence_count; ++s) {
    const SparseDeltaSequence sequence = in.sequences[s];
    if (sequence.row != at.row) {
      break;
    }
    const int64_t end = int64_t{sequence.first} + sequence.length;
    for (int64_t t = sequence.first; t < end; ++t) {
      const int64_t token = t * in.heads + at.head, place = at.slice * in.tokens * in.heads + token;
      const int32_t *const writes = in.write_rows + token * in.writes, *const reads = in.read_rows + token * in.reads;
      const Ahead ahead(in, t + 1 < end, writes + in.heads * in.writes, reads + in.heads * in.reads);
      const float* const k = in.write_weights + token * in.writes;
      const float beta = in.beta[token];
      const Pair d_write = at.load(d_u + token * in.dim);
      Pair u = at.load(error + token * in.dim);
      if (at.warp == 0) {
        const float dot = d_write.dot(u);
        if (at.lane == 0) {
          out.by_token[place] = dot;
        }
        if (d_v != nullptr) {
          Pair d = d_write;
          d.scale(beta);
          at.store(d_v + token * in.dim, d, accumulate);
        }
      }
      u.scale(beta);
      Pair held[kHeld]{};
      share(at, in.writes, [&](int n, int j) { held[j] = memory.load(at, writes[n]); },
            [&](int n, int j) {
              held[j].scale(in.decay_of(token, n));
              const float dot = held[j].dot(d_write);
              if (at.lane == 0) {
                out.by_write[(place * 2 + 1) * in.writes + n] = dot;
              }
              held[j].add(k[n], u);
              at.store(memory.row(writes[n]), held[j], false);
            });
      ahead.fetch(memory, at);
      const Pair d_reading = at.load(d_y + token * in.dim);
      __syncthreads();
      share(at, in.reads, [&](int n, int j) { held[j] = memory.load(at, reads[n]); },
            [&](int n, int j) {
              const float dot = held[j].dot(d_reading);
              if (at.lane == 0) {
                out.by_read[place * in.reads + n] = dot;
              }
            });
      __syncthreads();
    }
  }
}

/// The chains of SparseDeltaScan: the uses of one slot by one sequence lie side by side in `order`; the thread at the last of them walks
/// back to the first. Row: token of a row and head, column: entry; they only number the sorted entries.
struct Chains {
  double* carry;  // [N, H, W] after each write
  const int32_t *order, *touched;
  const float *k, *q, *decay, *beta, *by_write, *d_q;
  int64_t length, heads, writes, reads;
  bool decays_by_key;

  __device__ void operator()(int64_t row, int64_t column) const {
    const Split at(row, length), stream(at.quotient, heads);
    const int64_t width = writes + reads, all = length * width, first = (stream.quotient * length) * heads + stream.remainder;
    const int32_t* const entries = order + at.quotient * all;
    const auto is_first = [&](const Split& e) { return touched[(first + e.quotient * heads) * width + e.remainder] >= 0; };
    int64_t i = at.remainder * width + column;
    if (i + 1 < all && !is_first({entries[i + 1], width})) {
      return;
    }
    double sum = 0;
    for (bool more = true; more; --i) {
      const Split e(entries[i], width);
      const int64_t token = first + e.quotient * heads, n = e.remainder;
      if (n >= writes) {
        const int64_t at = token * reads + n - writes;
        sum += static_cast<double>(q[at]) * static_cast<double>(d_q[at]);
      } else {
        const int64_t at = token * writes + n;
        const float* const dots = by_write + token * 2 * writes + n;  // <G, e>, <m, d_u>
        const double both = static_cast<double>(dots[0]) + static_cast<double>(dots[writes]);
        // A decay that underflowed to 0 cuts the past off exactly.
        sum = decay[decays_by_key ? at : token] == 0.0f ? 0.0 : sum - static_cast<double>(k[at]) * static_cast<double>(beta[token]) * both;
        carry[at] = sum;
      }
      more = !is_first(e);
    }
  }
};

/// One token and head.
struct Finish {
  float *d_k, *d_g;
  const double* carry;
  const float *k, *g, *beta, *by_write;
  int64_t writes;
  bool decays_by_key;

  __device__ void operator()(int64_t token, int lane) const {
    double sum = 0;
    for (int64_t n = lane; n < writes; n += 32) {
      const double c = carry[token * writes + n];
      const float* const dots = by_write + token * 2 * writes + n;
      const double direct = static_cast<double>(beta[token]) * (static_cast<double>(dots[0]) - static_cast<double>(dots[writes]));
      sum += decays_by_key ? static_cast<double>(k[token * writes + n]) * c : c;
      d_k[token * writes + n] = static_cast<float>(direct + (decays_by_key ? static_cast<double>(g[token]) * c : 0.0));
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      d_g[token] = static_cast<float>(sum);
    }
  }
};

}  // namespace

void run(Stream& stream, const SparseDeltaBackward& a) {
  const Sums out{a.by_write.as<float>(), a.by_read.as<float>(), a.by_token.as<float>()};
  float* const sums = a.d_memory.defined() ? a.sums.as<float>() : nullptr;
  if (sums != nullptr) {
    zero_bytes(stream, sums, a.sums.bytes());
  }
  const int64_t batch = a.in.table.size(0);
  dispatch_float(a.d_y.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Inputs<T> in = inputs_of<T>(a.in, {});
    HEBB_ASSERT(a.by_token.size(0) == in.slices);
    const unsigned blocks = blocks_for(batch * in.heads * in.slices, 1), threads = threads_for(in.writes, in.reads);
    HEBB_LAUNCH(sparse_delta_adjoint_kernel<T>, blocks, threads, 0, stream, a.d_u.as<float>(), sums, out, a.d_y.as<T>(),
                a.error.as<float>(), in);
    if (sums != nullptr) {
      each_element("sparse_delta_memory", stream, in.heads * in.slots, in.dim,
                   AddSlices{a.d_memory.as<float>(), sums, batch, in.heads * in.slots * in.dim, in.dim, in.dim, true});
    }
    HEBB_LAUNCH(sparse_delta_value_kernel<T>, blocks, threads, 0, stream, a.d_v.as<T>(), out, a.d_u.as<float>(), a.d_y.as<T>(),
                a.error.as<float>(), in, a.accumulate);
  });
}

void run(Stream& stream, const SparseDeltaScan& a) {
  const int64_t slices = a.by_token.size(0), tokens = a.by_token.size(1), heads = a.by_token.size(2), rows = tokens * heads;
  const int64_t writes = a.in.write_weights.size(2), reads = a.in.read_weights.size(2), streams = a.in.order.size(0) * heads;
  const bool by_key = a.in.decays_by_key();
  float *const by_write = a.by_write.as<float>(), *const d_q = a.d_read_weights.as<float>();
  const float *const k = a.in.write_weights.as<float>(), *const beta = a.in.beta.as<float>();
  double* const carry = a.carry.as<double>();
  const auto add_slices = [&](const char* name, float* to, const float* from, int64_t columns) {
    each_element(name, stream, rows, columns, AddSlices{to, from, slices, rows * columns, columns, columns, false});
  };
  add_slices("sparse_delta_writes", by_write, by_write, 2 * writes);  // in place of the first
  add_slices("sparse_delta_reads", d_q, a.by_read.as<float>(), reads);
  add_slices("sparse_delta_tokens", a.d_beta.as<float>(), a.by_token.as<float>(), 1);
  each_element("sparse_delta_chains", stream, rows, writes + reads,
               Chains{carry, a.in.order.as<int32_t>(), a.in.touched.as<int32_t>(), k, a.in.read_weights.as<float>(),
                      a.in.decay.as<float>(), beta, by_write, d_q, rows / streams, heads, writes, reads, by_key});
  each_warp("sparse_delta_finish", stream, rows,
            Finish{a.d_write_weights.as<float>(), a.d_g.as<float>(), carry, k, a.g.as<float>(), beta, by_write, writes, by_key});
}

}  // namespace hebb::HEBB_DEVICE
