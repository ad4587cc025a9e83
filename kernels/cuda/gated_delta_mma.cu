#include "kernels/cuda/common/gated_delta_mma.h"

#include "kernels/cuda/common/attention_mma.h"

// The chunked gated delta rule on tensor cores, forward: one block a row, value head and slice of 64 value channels walks over the
// chunks, with all matrices of a chunk in shared memory and the state's slice in registers. Slices compute the products of keys and
// queries again: no scratch in global memory, and dv / 64 times the blocks.
// Precision: operands are bf16, sums fp32. What the kernel computes itself and multiplies again is split in two bf16 (16 bits): the
// state, what is written to it, P and delta. The triangular system is solved in fp32 on the plain cores. So nothing but inputs and
// outputs is rounded to 8 bits. With P, delta and the state that queries read in one bf16 each, answers that nearly cancel before a norm
// keep the rounding of their terms, and gradients of decays are off by up to 0.13 instead of 0.03 (tests/device/bf16_test.cpp).
// FLOPs of a chunk of 64 tokens and a slice: 2 64 (8 64 dk + 3 40 64) on tensor cores, a fifth of them for those three lower parts, and
// 64^3 in the solve. Bound: latency of the chunk's phases; HBM: q, k once a slice, v, o once. 110 KB shared, 128 registers and, with
// keys of more than 64, 52 bytes of spills: 2 blocks an SM.
namespace hebb::HEBB_DEVICE::delta_mma {
namespace {

using attention_mma::kStride;
using attention_mma::lane_number;
using attention_mma::TileOf;
using attention_mma::warp_number;

constexpr int kChunk = 64, kSlice = 64, kThreads = 256;

struct Forward {
  delta::Sizes n;
  delta::Inputs<bf16> in;
  delta::Chunks chunks;
  bf16* o;
  float* state;
  const float* initial;
  const int32_t* doc_start;
  float scale;
  bool additive;
};

/// What a block works on, in shared memory: registers are short.
struct Task {
  delta::HeadInputs<bf16> in;
  int64_t first_token, first_chunk, chunks;  // of the row
};

struct alignas(16) Four {
  float x[4];
};

template <int kWidth>
struct Shared {
  TileOf<kChunk, kWidth> keys;
  union {
    TileOf<kChunk, kWidth> queries;
    float errors[kChunk][kSlice + 4];  // once the queries are used: E, spec 20 section 5
  };
  union {
    TileOf<kChunk, kSlice> values;
    TileOf<kChunk, kSlice> rest;  // once the values are used: what delta's bf16 lack
  };
  TileOf<kWidth, kSlice> state[2];  // before the chunk, in two parts; once it is read: P
  union {
    Four lower[kChunk][kChunk / 4 + 1];  // the system's matrix below its diagonal
    TileOf<kChunk, kSlice> writes[2];    // once it is solved: e^(gam_last - gam) delta in two parts
  };
  TileOf<kChunk, kSlice> delta;
  Task task;
  double sums[kChunk];                             // gam
  float beta[kChunk], start[kChunk], end[kChunk];  // e^gam, e^(gam_last - gam)
};

/// The part of the state that a warp holds: 16 rows, 8 kColumnTiles channels.
template <int kWidth>
struct State {
  static constexpr int kColumnTiles = kWidth / 16;  // of the kWidth / 16 x 8 tiles that 8 warps share
  float x[1][kColumnTiles][4];

  __device__ static int row() { return warp_number() % (kWidth / 16) * 16; }
  __device__ static int column() { return warp_number() / (kWidth / 16) * 8 * kColumnTiles; }
  /// f(value, row, channel) for all that the thread holds.
  template <class F>
  __device__ __forceinline__ void each(F&& f) {
    HEBB_UNROLL
    for (int i = 0; i < 4 * kColumnTiles; ++i) {
      f(x[0][i / 4][i % 4], row() + lane_number() / 4 + i % 4 / 2 * 8, column() + i / 4 * 8 + lane_number() % 4 * 2 + i % 2);
    }
  }
};

/// Rows of `count` tokens; zeros behind them and behind `width` channels.
template <int kWidth>
__device__ __forceinline__ void load_rows(TileOf<kChunk, kWidth>& tile, const bf16* from, int64_t stride, int count, int width) {
  HEBB_UNROLL
  for (int i = 0; i < kChunk * kWidth / 8 / kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads, row = at / (kWidth / 8), c = at % (kWidth / 8) * 8;
    const bool exists = row < count && c < width;
    store_16_bytes(&tile.data[row * kStride<kWidth> + c], exists ? load_16_bytes(from + row * stride + c) : Word4{});
  }
}

/// beta, gam and its exponentials, by the first warp. Sums are taken in double: see delta::Decays.
template <int kWidth>
__device__ __forceinline__ void load_gates(Shared<kWidth>& s, const delta::Chunk& chunk HEBB_WHERE_PARAMETER) {
  const int lane = lane_number(), length = static_cast<int>(chunk.length);
  const delta::HeadInputs<bf16>& in = s.task.in;
  double gam[2];
  HEBB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const bool exists = 2 * lane + i < length;
    const int64_t at = (chunk.token + 2 * lane + i) * in.gate_stride;
    gam[i] = exists ? static_cast<double>(in.g[at]) : 0.0;
    s.beta[2 * lane + i] = exists ? in.beta[at] : 0.0f;
  }
  const double pair = gam[0] + gam[1];
  double sum = pair;
  HEBB_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(kAllLanes, sum, step, 32 HEBB_WHERE_ARGUMENT);
    sum += lane >= step ? before : 0.0;
  }
  const double last = __shfl_sync(kAllLanes, sum, 31, 32 HEBB_WHERE_ARGUMENT);
  gam[0] += sum - pair;
  gam[1] = sum;
  HEBB_UNROLL
  for (int i = 0; i < 2; ++i) {
    s.sums[2 * lane + i] = gam[i];
    s.start[2 * lane + i] = delta::decay(gam[i]);
    s.end[2 * lane + i] = delta::decay(last - gam[i]);
  }
}

/// products[i][j] of the warp's 16 rows times e^(gam_i - gam_j), for j < i, or j <= i with the diagonal.
template <int kWidth>
__device__ __forceinline__ void decay_products(float (&products)[1][8][4], const Shared<kWidth>& s, int first_row, bool diagonal) {
  HEBB_UNROLL
  for (int n = 0; n < 8; ++n) {
    HEBB_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int i = first_row + lane_number() / 4 + e / 2 * 8, j = 8 * n + lane_number() % 4 * 2 + e % 2;
      products[0][n][e] = j < i || (diagonal && j == i) ? products[0][n][e] * delta::decay(s.sums[i] - s.sums[j]) : 0.0f;
    }
  }
}

/// sums += 16 rows of kWidth x state, of which both parts.
template <int kWidth>
__device__ __forceinline__ void read_state(float (&sums)[1][8][4], const bf16* rows,
                                           const TileOf<kWidth, kSlice> (&state)[2] HEBB_WHERE_PARAMETER) {
  const int lane = lane_number();
  uint32_t left[1][1][4];
  HEBB_UNROLL
  for (int c = 0; c < kWidth; c += 16) {
    load_matrices<4, false>(left[0][0], rows + lane % 16 * kStride<kWidth> + lane / 16 * 8 + c HEBB_WHERE_ARGUMENT);
    attention_mma::add_weighted_rows<kSlice>(sums, left, state[0].data + c * kStride<kSlice> HEBB_WHERE_ARGUMENT);
    attention_mma::add_weighted_rows<kSlice>(sums, left, state[1].data + c * kStride<kSlice> HEBB_WHERE_ARGUMENT);
  }
}

/// Solves (1 + L) E = E. Blocks of 16 rows: the first threads solve one, a column each, and all threads take it out of the rest.
template <int kWidth>
__device__ __forceinline__ void solve(Shared<kWidth>& s, int length HEBB_WHERE_PARAMETER) {
  const int column = static_cast<int>(threadIdx.x) % kSlice, part = static_cast<int>(threadIdx.x) / kSlice;
  for (int first = 0; first < length; first += 16) {
    float x[16];
    if (part == 0) {
      HEBB_UNROLL
      for (int i = 0; i < 16; ++i) {
        x[i] = s.errors[first + i][column];
        HEBB_UNROLL
        for (int j = 0; j < i; ++j) {
          x[i] -= s.lower[first + i][(first + j) / 4].x[j % 4] * x[j];
        }
        s.errors[first + i][column] = x[i];
      }
    }
    __syncthreads(HEBB_WHERE_HERE);
    HEBB_UNROLL
    for (int i = 0; i < 16; ++i) {
      x[i] = s.errors[first + i][column];
    }
    for (int row = first + 16 + part; row < length; row += kThreads / kSlice) {
      float sum = s.errors[row][column];
      HEBB_UNROLL
      for (int j = 0; j < 16; j += 4) {
        const Four l = s.lower[row][(first + j) / 4];
        HEBB_UNROLL
        for (int e = 0; e < 4; ++e) {
          sum -= l.x[e] * x[j + e];
        }
      }
      s.errors[row][column] = sum;
    }
    __syncthreads(HEBB_WHERE_HERE);
  }
}

/// value = high + low + 2^-17 value.
struct Split {
  bf16 high, low;
  __device__ explicit Split(float value) : high(round_to_bf16(value)), low(round_to_bf16(value - to_float(high))) {}
};

/// delta = beta E, and what it writes at the chunk's end, in two parts each.
template <int kWidth>
__device__ __forceinline__ void split_writes(Shared<kWidth>& s) {
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kSlice; i += kThreads) {
    const int row = i / kSlice, c = i % kSlice, at = row * kStride<kSlice> + c;
    const float delta = s.beta[row] != 0 ? s.beta[row] * s.errors[row][c] : 0.0f;
    const Split write(s.end[row] * delta), answer(delta);
    s.delta.data[at] = answer.high;
    s.rest.data[at] = answer.low;
    s.writes[0].data[at] = write.high;
    s.writes[1].data[at] = write.low;
  }
}

/// sums += P delta for the warp's 16 rows, both in two parts; the product of the lower parts is below the rounding of the sums. Tokens
/// behind the rows have no weight.
template <int kWidth>
__device__ __forceinline__ void read_writes(float (&sums)[1][8][4], const Shared<kWidth>& s, int first_row HEBB_WHERE_PARAMETER) {
  const int lane = lane_number(), from = (first_row + lane % 16) * kStride<kSlice> + lane / 16 * 8;
  for (int c = 0; c <= first_row; c += 16) {
    uint32_t high[1][1][4], low[1][1][4];
    load_matrices<4, false>(high[0][0], &s.state[0].data[from + c] HEBB_WHERE_ARGUMENT);
    load_matrices<4, false>(low[0][0], &s.state[1].data[from + c] HEBB_WHERE_ARGUMENT);
    attention_mma::add_weighted_rows<kSlice>(sums, high, s.delta.data + c * kStride<kSlice> HEBB_WHERE_ARGUMENT);
    attention_mma::add_weighted_rows<kSlice>(sums, low, s.delta.data + c * kStride<kSlice> HEBB_WHERE_ARGUMENT);
    attention_mma::add_weighted_rows<kSlice>(sums, high, s.rest.data + c * kStride<kSlice> HEBB_WHERE_ARGUMENT);
  }
}

/// state = e^gam_last state + keysᵀ writes.
template <int kWidth>
__device__ __forceinline__ void advance(State<kWidth>& state, const Shared<kWidth>& s, bool has_state HEBB_WHERE_PARAMETER) {
  const float last = has_state ? s.start[kChunk - 1] : 0.0f;
  state.each([&](float& x, int, int) { x *= last; });
  const int lane = lane_number();
  const bf16* const keys = &s.keys.data[(lane / 16 * 8 + lane % 8) * kStride<kWidth> + lane / 8 % 2 * 8 + state.row()];
  HEBB_UNROLL
  for (int token = 0; token < kChunk; token += 16) {
    uint32_t left[4];
    load_matrices<4, true>(left, keys + token * kStride<kWidth> HEBB_WHERE_ARGUMENT);
    HEBB_UNROLL
    for (const TileOf<kChunk, kSlice>& writes : s.writes) {
      HEBB_UNROLL
      for (int n = 0; n < State<kWidth>::kColumnTiles; n += 2) {
        uint32_t right[4];
        load_matrices<4, true>(right, &writes.data[(token + lane % 16) * kStride<kSlice> + state.column() + 8 * n + lane / 16 * 8]
                                          HEBB_WHERE_ARGUMENT);
        const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
        mma_bf16(state.x[0][n], left, first HEBB_WHERE_ARGUMENT);
        mma_bf16(state.x[0][n + 1], left, second HEBB_WHERE_ARGUMENT);
      }
    }
  }
}

/// One chunk; the state before it is in shared memory, if any. Warps 0-3 hold 16 keys each, warps 4-7 the queries of the same tokens.
template <int kWidth>
__device__ __forceinline__ void process(Shared<kWidth>& s, State<kWidth>& state, const Forward& a, int length, bool has_state,
                                        bf16* o, int channels HEBB_WHERE_PARAMETER) {
  const bool answers = warp_number() >= 4;
  const int first_row = warp_number() % 4 * 16;
  const bf16* const rows = (answers ? s.queries : s.keys).data + first_row * kStride<kWidth>;
  float products[1][8][4] = {}, reads[1][8][4] = {};
  attention_mma::multiply_rows<kWidth>(products, rows, s.keys.data HEBB_WHERE_ARGUMENT);
  if (has_state) {
    read_state(reads, rows, s.state HEBB_WHERE_ARGUMENT);
  }
  decay_products(products, s, first_row, answers);
  __syncthreads(HEBB_WHERE_HERE);  // nobody needs the queries and the state any more
  HEBB_UNROLL
  for (int i = 0; i < 32; i += 2) {
    const int row = first_row + lane_number() / 4 + i % 4 / 2 * 8, c = i / 4 * 8 + lane_number() % 4 * 2;
    const float start = s.start[row];
    float &read = reads[0][i / 4][i % 4], &next_read = reads[0][i / 4][i % 4 + 1];
    const float product = products[0][i / 4][i % 4], next_product = products[0][i / 4][i % 4 + 1];
    read *= start;
    next_read *= start;
    if (answers) {  // registers are short
      const uint32_t high = pack_bf16(product, next_product);
      const float rest = product - attention_mma::first_of(high), next_rest = next_product - attention_mma::second_of(high);
      attention_mma::store_pair(&s.state[0].data[row * kStride<kSlice> + c], high);
      attention_mma::store_pair(&s.state[1].data[row * kStride<kSlice> + c], pack_bf16(rest, next_rest));
    } else {
      const uint32_t values = attention_mma::load_pair(&s.values.data[row * kStride<kSlice> + c]);
      s.lower[row][c / 4].x[c % 4] = product * s.beta[c];
      s.lower[row][c / 4].x[c % 4 + 1] = next_product * s.beta[c + 1];
      s.errors[row][c] = attention_mma::first_of(values) - (a.additive ? 0.0f : read);
      s.errors[row][c + 1] = attention_mma::second_of(values) - (a.additive ? 0.0f : next_read);
    }
  }
  __syncthreads(HEBB_WHERE_HERE);
  if (!a.additive) {
    solve(s, length HEBB_WHERE_ARGUMENT);
  }
  split_writes(s);
  __syncthreads(HEBB_WHERE_HERE);
  if (answers) {
    read_writes(reads, s, first_row HEBB_WHERE_ARGUMENT);
    const int64_t stride = a.n.value_heads * a.n.value_dim;
    const auto token = [&](int row) { return first_row + row < length ? static_cast<int64_t>(first_row + row) : -1; };
    const float factors[2] = {a.scale, a.scale};
    attention_mma::write_rows<kSlice>(o, channels, stride, token, reads, factors, false);
  }
  advance(state, s, has_state HEBB_WHERE_ARGUMENT);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2) gated_delta_mma_kernel(Forward a) {
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth>*>(raw);
  const delta::Sizes& n = a.n;
  const int64_t task = blockIdx.x;
  const int first_channel = static_cast<int>(blockIdx.y) * kSlice, dk = static_cast<int>(n.key_dim);
  const int channels = static_cast<int>(n.value_dim) - first_channel < kSlice ? static_cast<int>(n.value_dim) - first_channel : kSlice;
  if (threadIdx.x == 0) {
    const int64_t row = task / n.value_heads, first = a.chunks.rows[row];
    s.task = {a.in.head(n, task % n.value_heads), row * n.length, first, a.chunks.rows[row + 1] - first};
  }
  __syncthreads();
  State<kWidth> state;
  const auto load_state = [&](const float* from) {  // null: zeros
    state.each([&](float& x, int i, int c) {
      x = from != nullptr && i < dk && c < channels ? from[i * n.value_dim + first_channel + c] : 0.0f;
    });
  };
  load_state(a.state != nullptr ? a.state + task * n.state() : nullptr);
  for (int i = 0; i < s.task.chunks; ++i) {
    const delta::Chunk chunk = a.chunks.at(s.task.first_chunk + i);
    const int length = static_cast<int>(chunk.length);
    const bool begins = a.doc_start[chunk.token] == chunk.token - s.task.first_token, has_state = !begins || a.initial != nullptr;
    if (begins) {
      load_state(a.initial != nullptr ? a.initial + task % n.value_heads * n.state() : nullptr);
    }
    if (warp_number() == 0) {
      load_gates(s, chunk);
    }
    const int64_t at = chunk.token * s.task.in.value_stride + first_channel;
    load_rows(s.keys, s.task.in.k + chunk.token * s.task.in.key_stride, s.task.in.key_stride, length, dk);
    load_rows(s.queries, s.task.in.q + chunk.token * s.task.in.key_stride, s.task.in.key_stride, length, dk);
    load_rows(s.values, s.task.in.v + at, s.task.in.value_stride, length, channels);
    if (has_state) {
      state.each([&](float& x, int r, int c) {
        const Split parts(x);
        s.state[0].data[r * kStride<kSlice> + c] = parts.high;
        s.state[1].data[r * kStride<kSlice> + c] = parts.low;
      });
    }
    __syncthreads();
    process(s, state, a, length, has_state, a.o + at + task % n.value_heads * n.value_dim, channels);
    __syncthreads();  // the keys are replaced
  }
  if (a.state != nullptr) {
    state.each([&](float& x, int r, int c) {
      if (r < dk && c < channels) {
        a.state[task * n.state() + r * n.value_dim + first_channel + c] = x;
      }
    });
  }
}

}  // namespace

void forward(Stream& stream, const GatedDeltaForward& a) {
  const delta::Sizes n(a.k, a.v);
  const Forward f{.n = n, .in = delta::Inputs<bf16>(a, n), .chunks = delta::Chunks(a.grid), .o = a.o.as<bf16>(), .state = a.state.as<float>(),
                  .initial = a.initial_state.as<float>(), .doc_start = a.doc_start.as<int32_t>(), .scale = static_cast<float>(a.scale),
                  .additive = a.additive};
  const dim3 blocks(blocks_for(n.batch * n.value_heads, 1), blocks_for(n.value_dim, kSlice));
  if (n.key_dim <= 64) {
    HEBB_LAUNCH((gated_delta_mma_kernel<64>), blocks, kThreads, sizeof(Shared<64>), stream, f);
  } else {
    HEBB_LAUNCH((gated_delta_mma_kernel<128>), blocks, kThreads, sizeof(Shared<128>), stream, f);
  }
}

}  // namespace hebb::HEBB_DEVICE::delta_mma
