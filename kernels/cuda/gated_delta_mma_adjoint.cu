#include "kernels/cuda/common/gated_delta_tiles.h"

// The sweep back of the chunked gated delta rule on tensor cores (spec 20, section 5): one block a row, value head and slice of 64 value
// channels walks from the last chunk to the first with the slice of dS in registers, as the forward sweep does with S. It writes dv, X
// and the gradients of the states at chunk starts; all else has no order among chunks and is left to gated_delta_mma_backward.cu.
// Precision as in the forward sweep: dS, P, X and e^gam dO are multiplied in two bf16 each, the system is solved in fp32.
// FLOPs of a chunk of 64 tokens and a slice: 2 64 (7.6 64 dk + 2 40 64) on tensor cores and 64^3 in the solve. Bound: latency of the
// chunk's phases; HBM: q, k once a slice, d_o, d_v once, X 4 bytes, dS 2. 101 KB shared, 123 registers, no spills: 2 blocks an SM.
namespace hebb::HEBB_DEVICE::delta_mma {
namespace {

struct Adjoint {
  delta::Sizes n;
  delta::Inputs<bf16> in;
  delta::Chunks chunks;
  bf16* d_v;
  const bf16* d_o;
  float* initial_sums;
  Parts adjoints;
  bf16* d_starts;
  float scale;
  bool additive;
};

template <int kWidth>
struct Shared {
  struct Solution {
    Column x;
    TileOf<kChunk, kSlice> answers[2];  // e^gam dO in two parts
  };
  TileOf<kChunk, kWidth> keys, queries;
  TileOf<kChunk, kSlice> d_o;
  union {
    TileOf<kWidth, kSlice> d_state[2];  // behind the chunk, in two parts
    Solution solution;                  // once that is read
  };
  union {
    Triangle upper;                    // the system's matrix, transposed
    TileOf<kChunk, kSlice> writes[2];  // once it is solved: -beta e^gam X in two parts
  };
  Task task;
  Gates gates;
};

/// sums = Pᵀ dO for the warp's 16 keys, without scale. P is made 16 queries at a time: registers are short.
template <int kWidth>
__device__ __forceinline__ void read_answers(float (&sums)[1][8][4], const Shared<kWidth>& s, int first_row,
                                             int length HEBB_WHERE_PARAMETER) {
  for (int c = first_row; c < length; c += 16) {
    float products[1][2][4] = {};
    attention_mma::multiply_rows<kWidth>(products, s.keys.data + first_row * kStride<kWidth>,
                                         s.queries.data + c * kStride<kWidth> HEBB_WHERE_ARGUMENT);
    uint32_t high[1][1][4], low[1][1][4];
    HEBB_UNROLL
    for (int i = 0; i < 8; i += 2) {
      const int j = first_row + lane_number() / 4 + i % 4 / 2 * 8, query = c + i / 4 * 8 + lane_number() % 4 * 2;
      const double gam = s.gates.sums[j];
      const SplitPair weights(query >= j ? products[0][i / 4][i % 4] * delta::decay(s.gates.sums[query] - gam) : 0.0f,
                              query + 1 >= j ? products[0][i / 4][i % 4 + 1] * delta::decay(s.gates.sums[query + 1] - gam) : 0.0f);
      high[0][0][i / 2] = weights.high;
      low[0][0][i / 2] = weights.low;
    }
    attention_mma::add_weighted_rows<kSlice>(sums, high, s.d_o.data + c * kStride<kSlice> HEBB_WHERE_ARGUMENT);
    attention_mma::add_weighted_rows<kSlice>(sums, low, s.d_o.data + c * kStride<kSlice> HEBB_WHERE_ARGUMENT);
  }
}

/// Row j of the warp's 16 rows: beta_i e^(gam_i - gam_j) (k_i . k_j), i > j.
template <int kWidth>
__device__ __forceinline__ void fill_system(Shared<kWidth>& s, int first_row HEBB_WHERE_PARAMETER) {
  float products[1][8][4] = {};
  attention_mma::multiply_rows<kWidth>(products, s.keys.data + first_row * kStride<kWidth>, s.keys.data HEBB_WHERE_ARGUMENT);
  HEBB_UNROLL
  for (int n = 0; n < 8; ++n) {
    HEBB_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int j = first_row + lane_number() / 4 + e / 2 * 8, i = 8 * n + lane_number() % 4 * 2 + e % 2;
      s.upper[j][i / 4].x[i % 4] = i > j ? s.gates.beta[i] * delta::decay(s.gates.sums[i] - s.gates.sums[j]) * products[0][n][e] : 0.0f;
    }
  }
}

/// X = (1 + L)^-T (scale Pᵀ dO + diag(e^(gam_last - gam)) K dS), or without the system where additive. Warps 0-3 take the first product,
/// warps 4-7 the second.
template <int kWidth>
__device__ __forceinline__ void find_adjoints(Shared<kWidth>& s, const Adjoint& a, int length, bool has_d_state HEBB_WHERE_PARAMETER) {
  const bool reads_state = warp_number() >= 4;
  const int first_row = warp_number() % 4 * 16;
  float sums[1][8][4] = {};
  if (!reads_state) {
    read_answers(sums, s, first_row, length HEBB_WHERE_ARGUMENT);
  } else {
    if (!a.additive) {
      fill_system(s, first_row HEBB_WHERE_ARGUMENT);
    }
    if (has_d_state) {
      read_state(sums, s.keys.data + first_row * kStride<kWidth>, s.d_state HEBB_WHERE_ARGUMENT);
    }
  }
  const auto each = [&](auto&& f) {
    HEBB_UNROLL
    for (int i = 0; i < 32; ++i) {
      const int row = first_row + lane_number() / 4 + i % 4 / 2 * 8;
      f(s.solution.x[row][i / 4 * 8 + lane_number() % 4 * 2 + i % 2], sums[0][i / 4][i % 4], row);
    }
  };
  __syncthreads(HEBB_WHERE_HERE);  // dS is replaced by X
  if (reads_state) {
    each([&](float& x, float sum, int row) { x = s.gates.end[row] * sum; });
  }
  __syncthreads(HEBB_WHERE_HERE);
  if (!reads_state) {
    each([&](float& x, float sum, int) { x += a.scale * sum; });
  }
  __syncthreads(HEBB_WHERE_HERE);
  if (!a.additive) {
    solve<true>(s.upper, s.solution.x, length HEBB_WHERE_ARGUMENT);
  }
}

/// X and dv = beta X to global memory at the slice's channels of the chunk's first token; what they and the answers add to dS to shared
/// memory.
template <int kWidth>
__device__ __forceinline__ void write_adjoints(Shared<kWidth>& s, const Adjoint& a, int64_t value_at, int length, int channels) {
  const int64_t stride = s.task.in.value_stride;
  for (int i = 2 * static_cast<int>(threadIdx.x); i < kChunk * kSlice; i += 2 * kThreads) {
    const int row = i / kSlice, c = i % kSlice, at = row * kStride<kSlice> + c;
    const float x = s.solution.x[row][c], next = s.solution.x[row][c + 1], beta = s.gates.beta[row], start = s.gates.start[row];
    const uint32_t d_o = attention_mma::load_pair(&s.d_o.data[at]);
    const float answer = a.scale * start, correction = a.additive ? 0.0f : -beta * start;
    SplitPair(answer * attention_mma::first_of(d_o), answer * attention_mma::second_of(d_o))
        .store(&s.solution.answers[0].data[at], &s.solution.answers[1].data[at]);
    SplitPair(correction * x, correction * next).store(&s.writes[0].data[at], &s.writes[1].data[at]);
    if (row < length && c < channels) {
      const int64_t to = value_at + row * stride + c;
      SplitPair(x, next).store(a.adjoints.high + to, a.adjoints.low() + to);
      attention_mma::store_pair(a.d_v + to, pack_bf16(beta * x, beta * next));
    }
  }
}

/// dS to shared memory and to `to`, the slice's first channel of the gradient of the state behind the chunk.
template <int kWidth>
__device__ __forceinline__ void split_d_state(Shared<kWidth>& s, State<kWidth>& d_state, bf16* to, int64_t stride, int dk, int channels) {
  d_state.each_pair([&](float first, float second, int row, int c) {
    const SplitPair parts(first, second);
    parts.store(&s.d_state[0].data[row * kStride<kSlice> + c], &s.d_state[1].data[row * kStride<kSlice> + c]);
    if (row < dk && c < channels) {
      attention_mma::store_pair(to + row * stride + c, parts.high);
    }
  });
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2) gated_delta_mma_adjoint_kernel(Adjoint a) {
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth>*>(raw);
  const delta::Sizes& n = a.n;
  const int64_t task = blockIdx.x, head = task % n.value_heads;
  const int first_channel = static_cast<int>(blockIdx.y) * kSlice, dk = static_cast<int>(n.key_dim);
  const int channels = channels_behind(n.value_dim, first_channel);
  if (threadIdx.x == 0) {
    s.task = task_of(n, a.in, a.chunks, task);
  }
  __syncthreads();
  State<kWidth> d_state;
  d_state.clear();
  // Each thread adds up its own part of the documents' gradients.
  const auto add_to_initial = [&](bool is_first) {
    d_state.each_pair([&](float first, float second, int row, int c) {
      if (row < dk && c < channels) {
        float* const to = a.initial_sums + task * n.state() + row * n.value_dim + first_channel + c;
        to[0] = is_first ? first : to[0] + first;
        to[1] = is_first ? second : to[1] + second;
      }
    });
  };
  if (a.initial_sums != nullptr) {
    add_to_initial(true);
  }
  int64_t next_state = -1;  // number of the state behind the chunk; -1: nobody reads it
  for (int64_t i = s.task.chunks - 1; i >= 0; --i) {
    const delta::Chunk chunk = a.chunks.at(s.task.first_chunk + i);
    const int length = static_cast<int>(chunk.length);
    const bool has_d_state = next_state >= 0;
    if (warp_number() == 0) {
      load_gates(s.gates, s.task.in, chunk);
    }
    const int64_t value_at = chunk.token * s.task.in.value_stride + head * n.value_dim + first_channel;
    load_rows(s.keys, s.task.in.k + chunk.token * s.task.in.key_stride, s.task.in.key_stride, length, dk);
    load_rows(s.queries, s.task.in.q + chunk.token * s.task.in.key_stride, s.task.in.key_stride, length, dk);
    load_rows(s.d_o, a.d_o + value_at, s.task.in.value_stride, length, channels);
    const int64_t left = chunk.token - s.task.first_token;
    const int ahead = left < kChunk ? static_cast<int>(left) : kChunk;
    prefetch_tokens(s.task.in, chunk.token - ahead, ahead, dk, true);
    prefetch_rows(a.d_o + value_at - ahead * s.task.in.value_stride, s.task.in.value_stride, ahead, channels);
    if (has_d_state) {
      bf16* const to = a.d_starts + (next_state * n.value_heads + head) * n.state() + first_channel;
      split_d_state(s, d_state, to, n.value_dim, dk, channels);
    }
    __syncthreads();
    find_adjoints(s, a, length, has_d_state);
    write_adjoints(s, a, value_at, length, channels);
    __syncthreads();
    // dS = e^gam_last dS + (diag(e^gam) Q)ᵀ dO - (diag(beta e^gam) K)ᵀ X
    d_state.scale(has_d_state ? s.gates.start[kChunk - 1] : 0.0f);
    add_writes(d_state, s.queries, s.solution.answers);
    if (!a.additive) {
      add_writes(d_state, s.keys, s.writes);
    }
    next_state = chunk.state;
    if (next_state < 0 && a.initial_sums != nullptr) {
      add_to_initial(false);
    }
    __syncthreads();  // keys, queries and what adds to dS are replaced
  }
}

}  // namespace

void sweep_back(Stream& stream, const GatedDeltaBackward& a, const Handed& to) {
  const Adjoint b{.n = delta::Sizes(a.k, a.v), .in = delta::Inputs<bf16>(a, delta::Sizes(a.k, a.v)), .chunks = delta::Chunks(a.grid),
                  .d_v = a.d_v.as<bf16>(), .d_o = a.d_o.as<bf16>(), .initial_sums = a.initial_sums.as<float>(), .adjoints = to.adjoints,
                  .d_starts = to.d_starts, .scale = static_cast<float>(a.scale), .additive = a.additive};
  const dim3 blocks(blocks_for(b.n.batch * b.n.value_heads, 1), blocks_for(b.n.value_dim, kSlice));
  if (b.n.key_dim <= 64) {
    HEBB_LAUNCH((gated_delta_mma_adjoint_kernel<64>), blocks, kThreads, sizeof(Shared<64>), stream, b);
  } else {
    HEBB_LAUNCH((gated_delta_mma_adjoint_kernel<128>), blocks, kThreads, sizeof(Shared<128>), stream, b);
  }
}

}  // namespace hebb::HEBB_DEVICE::delta_mma
