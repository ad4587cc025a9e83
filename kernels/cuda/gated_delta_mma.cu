#include "kernels/cuda/common/gated_delta_tiles.h"

// The chunked gated delta rule on tensor cores, forward: one block a row, value head and slice of 64 value channels walks over the
// chunks, with all matrices of a chunk in shared memory and the state's slice in registers. Slices compute the products of keys and
// queries again: no scratch in global memory, and dv / 64 times the blocks.
// Precision: operands are bf16, sums fp32. What the kernel computes itself and multiplies again is split in two bf16 (16 bits): the
// state, what is written to it, P and delta. The triangular system is solved in fp32 on the plain cores. So nothing but inputs and
// outputs is rounded to 8 bits. With P, delta and the state that queries read in one bf16 each, answers that nearly cancel before a norm
// keep the rounding of their terms, and gradients of decays are off by up to 0.13 instead of 0.03 (tests/device/bf16_test.cpp).
// FLOPs of a chunk of 64 tokens and a slice: 2 64 (8 64 dk + 3 40 64) on tensor cores, a fifth of them for those three lower parts, and
// 64^3 in the solve. Bound: latency of the chunk's phases; HBM: q, k once a slice, v, o once. 110 KB shared, 128 registers and at most
// 16 bytes of spills: 2 blocks an SM.
// The backward pass repeats the sweep (kRecomputes): no queries and answers, but E, in two bf16, and the state at each chunk's start, in
// one, are kept. FLOPs of a chunk and a slice: 2 64 (5 64 dk) and the solve; HBM: k once a slice, v once, E and the states. No spills.
namespace hebb::HEBB_DEVICE::delta_mma {
namespace {

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
  Parts errors;                    // where it recomputes
  bf16 *starts, *rounded_initial;  // likewise

  template <class Args>
  explicit Forward(const Args& a)
      : n(a.k, a.v), in(a, n), chunks(a.grid), o(nullptr), state(nullptr), initial(a.initial_state.template as<float>()),
        doc_start(a.doc_start.template as<int32_t>()), scale(static_cast<float>(a.scale)), additive(a.additive), starts(nullptr),
        rounded_initial(nullptr) {}
};

template <int kWidth>
struct Shared {
  TileOf<kChunk, kWidth> keys;
  union {
    TileOf<kChunk, kWidth> queries;
    Column errors;  // once the queries are used: E, spec 20 section 5
  };
  union {
    TileOf<kChunk, kSlice> values;
    TileOf<kChunk, kSlice> rest;  // once the values are used: what delta's bf16 lack
  };
  TileOf<kWidth, kSlice> state[2];  // before the chunk, in two parts; once it is read: P
  union {
    Triangle lower;
    TileOf<kChunk, kSlice> writes[2];  // once it is solved: e^(gam_last - gam) delta in two parts
  };
  TileOf<kChunk, kSlice> delta;
  Task task;
  Gates gates;
};

/// products[i][j] of the warp's 16 rows times e^(gam_i - gam_j), for j < i, or j <= i with the diagonal.
__device__ __forceinline__ void decay_products(float (&products)[1][8][4], const Gates& gates, int first_row, bool diagonal) {
  HEBB_UNROLL
  for (int n = 0; n < 8; ++n) {
    HEBB_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int i = first_row + lane_number() / 4 + e / 2 * 8, j = 8 * n + lane_number() % 4 * 2 + e % 2;
      products[0][n][e] = j < i || (diagonal && j == i) ? products[0][n][e] * delta::decay(gates.sums[i] - gates.sums[j]) : 0.0f;
    }
  }
}

/// delta = beta E, and what it writes at the chunk's end, in two parts each. Where kRecomputes E goes to `errors`, the chunk's first
/// token of the slice, instead.
template <int kWidth, bool kRecomputes>
__device__ __forceinline__ void split_writes(Shared<kWidth>& s, Parts errors, int64_t stride, int length, int channels) {
  for (int i = 2 * static_cast<int>(threadIdx.x); i < kChunk * kSlice; i += 2 * kThreads) {
    const int row = i / kSlice, c = i % kSlice, at = row * kStride<kSlice> + c;
    const float beta = s.gates.beta[row], end = s.gates.end[row], error = s.errors[row][c], next = s.errors[row][c + 1];
    const float delta = beta != 0 ? beta * error : 0.0f, next_delta = beta != 0 ? beta * next : 0.0f;
    SplitPair(end * delta, end * next_delta).store(&s.writes[0].data[at], &s.writes[1].data[at]);
    if constexpr (!kRecomputes) {
      SplitPair(delta, next_delta).store(&s.delta.data[at], &s.rest.data[at]);
    } else if (row < length && c < channels) {
      SplitPair(error, next).store(errors.high + row * stride + c, errors.low() + row * stride + c);
    }
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

/// One chunk up to E and what it writes; the state before it is in shared memory, if any. Warps 0-3 hold 16 keys each, warps 4-7 the
/// queries of the same tokens, or the same keys where kRecomputes: then they read the state while the others multiply keys. The queries'
/// reads are left in `reads`.
template <int kWidth, bool kRecomputes>
__device__ __forceinline__ void find_writes(Shared<kWidth>& s, float (&reads)[1][8][4], const Forward& a, int length, bool has_state,
                                            int64_t at, int channels HEBB_WHERE_PARAMETER) {
  const bool answers = warp_number() >= 4;
  const int first_row = warp_number() % 4 * 16;
  const bf16* const rows = (answers && !kRecomputes ? s.queries : s.keys).data + first_row * kStride<kWidth>;
  float own_products[1][8][4] = {};
  auto& products = kRecomputes ? reads : own_products;  // registers are short
  if (!kRecomputes || !answers) {
    attention_mma::multiply_rows<kWidth>(products, rows, s.keys.data HEBB_WHERE_ARGUMENT);
  }
  if (has_state && (!kRecomputes || answers)) {
    read_state(reads, rows, s.state HEBB_WHERE_ARGUMENT);
  }
  if (!kRecomputes || !answers) {
    decay_products(products, s.gates, first_row, answers);
  }
  __syncthreads(HEBB_WHERE_HERE);  // nobody needs the queries and the state any more
  HEBB_UNROLL
  for (int i = 0; i < 32; i += 2) {
    const int row = first_row + lane_number() / 4 + i % 4 / 2 * 8, c = i / 4 * 8 + lane_number() % 4 * 2;
    const float start = s.gates.start[row];
    float &read = reads[0][i / 4][i % 4], &next_read = reads[0][i / 4][i % 4 + 1];
    const float product = products[0][i / 4][i % 4], next_product = products[0][i / 4][i % 4 + 1];
    read *= start;
    next_read *= start;
    if (answers && !kRecomputes) {
      SplitPair(product, next_product).store(&s.state[0].data[row * kStride<kSlice> + c], &s.state[1].data[row * kStride<kSlice> + c]);
    }
    if (!answers) {
      s.lower[row][c / 4].x[c % 4] = product * s.gates.beta[c];
      s.lower[row][c / 4].x[c % 4 + 1] = next_product * s.gates.beta[c + 1];
    }
    if (answers == kRecomputes) {
      const uint32_t values = attention_mma::load_pair(&s.values.data[row * kStride<kSlice> + c]);
      s.errors[row][c] = attention_mma::first_of(values) - (a.additive ? 0.0f : read);
      s.errors[row][c + 1] = attention_mma::second_of(values) - (a.additive ? 0.0f : next_read);
    }
  }
  __syncthreads(HEBB_WHERE_HERE);
  if (!a.additive) {
    solve<false>(s.lower, s.errors, length HEBB_WHERE_ARGUMENT);
  }
  split_writes<kWidth, kRecomputes>(s, {a.errors.high + at, a.errors.size}, s.task.in.value_stride, length, channels);
  __syncthreads(HEBB_WHERE_HERE);
}

/// The state before a chunk to shared memory, and where kRecomputes to `to`, if that is not null.
template <int kWidth, bool kRecomputes>
__device__ __forceinline__ void split_state(Shared<kWidth>& s, State<kWidth>& state, bf16* to, int64_t stride, int dk, int channels) {
  state.each_pair([&](float first, float second, int row, int c) {
    const SplitPair parts(first, second);
    parts.store(&s.state[0].data[row * kStride<kSlice> + c], &s.state[1].data[row * kStride<kSlice> + c]);
    if (kRecomputes && to != nullptr && row < dk && c < channels) {
      attention_mma::store_pair(to + row * stride + c, parts.high);
    }
  });
}

/// Where the state before a chunk is kept; initial ones by the first row's blocks.
__device__ __forceinline__ bf16* place_of_start(const Forward& a, const delta::Chunk& chunk, int64_t task, bool is_first,
                                                int first_channel) {
  const int64_t head = task % a.n.value_heads;
  if (chunk.state >= 0) {
    return a.starts + (chunk.state * a.n.value_heads + head) * a.n.state() + first_channel;
  }
  return is_first && task == head ? a.rounded_initial + head * a.n.state() + first_channel : nullptr;
}

template <int kWidth, bool kRecomputes>
__global__ void __launch_bounds__(kThreads, 2) gated_delta_mma_kernel(Forward a) {
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth>*>(raw);
  const delta::Sizes& n = a.n;
  const int64_t task = blockIdx.x;
  const int first_channel = static_cast<int>(blockIdx.y) * kSlice, dk = static_cast<int>(n.key_dim);
  const int channels = channels_behind(n.value_dim, first_channel);
  if (threadIdx.x == 0) {
    s.task = task_of(n, a.in, a.chunks, task);
  }
  __syncthreads();
  State<kWidth> state;
  const auto load_state = [&](const float* from) {  // null: zeros
    state.each_pair([&](float& first, float& second, int i, int c) {
      const bool exists = from != nullptr && i < dk && c < channels;
      first = exists ? from[i * n.value_dim + first_channel + c] : 0.0f;
      second = exists ? from[i * n.value_dim + first_channel + c + 1] : 0.0f;
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
      load_gates(s.gates, s.task.in, chunk);
    }
    const int64_t at = chunk.token * s.task.in.value_stride + first_channel;
    load_rows(s.keys, s.task.in.k + chunk.token * s.task.in.key_stride, s.task.in.key_stride, length, dk);
    if constexpr (!kRecomputes) {
      load_rows(s.queries, s.task.in.q + chunk.token * s.task.in.key_stride, s.task.in.key_stride, length, dk);
    }
    load_rows(s.values, s.task.in.v + at, s.task.in.value_stride, length, channels);
    const int64_t next = chunk.token + length, left = s.task.first_token + n.length - next;
    const int ahead = left < kChunk ? static_cast<int>(left) : kChunk;
    prefetch_tokens(s.task.in, next, ahead, dk, !kRecomputes);
    prefetch_rows(s.task.in.v + at + length * s.task.in.value_stride, s.task.in.value_stride, ahead, channels);
    if (has_state) {
      split_state<kWidth, kRecomputes>(s, state, kRecomputes ? place_of_start(a, chunk, task, i == 0, first_channel) : nullptr, n.value_dim,
                                       dk, channels);
    }
    __syncthreads();
    float reads[1][8][4] = {};
    const int64_t value_at = at + task % n.value_heads * n.value_dim;
    find_writes<kWidth, kRecomputes>(s, reads, a, length, has_state, value_at, channels);
    if constexpr (!kRecomputes) {
      if (warp_number() >= 4) {
        const int first_row = warp_number() % 4 * 16;
        read_writes(reads, s, first_row);
        const auto token = [&](int row) { return first_row + row < length ? static_cast<int64_t>(first_row + row) : -1; };
        const float factors[2] = {a.scale, a.scale};
        attention_mma::write_rows<kSlice>(a.o + value_at, channels, s.task.in.value_stride, token, reads, factors, false);
      }
    }
    state.scale(has_state ? s.gates.start[kChunk - 1] : 0.0f);
    add_writes(state, s.keys, s.writes);
    __syncthreads();  // the keys are replaced
  }
  if (a.state != nullptr) {
    state.each_pair([&](float first, float second, int r, int c) {
      if (r < dk && c < channels) {
        a.state[task * n.state() + r * n.value_dim + first_channel + c] = first;
        a.state[task * n.state() + r * n.value_dim + first_channel + c + 1] = second;
      }
    });
  }
}

template <bool kRecomputes>
void launch_sweep(Stream& stream, const Forward& f) {
  const dim3 blocks(blocks_for(f.n.batch * f.n.value_heads, 1), blocks_for(f.n.value_dim, kSlice));
  if (f.n.key_dim <= 64) {
    HEBB_LAUNCH((gated_delta_mma_kernel<64, kRecomputes>), blocks, kThreads, sizeof(Shared<64>), stream, f);
  } else {
    HEBB_LAUNCH((gated_delta_mma_kernel<128, kRecomputes>), blocks, kThreads, sizeof(Shared<128>), stream, f);
  }
}

}  // namespace

void forward(Stream& stream, const GatedDeltaForward& a) {
  Forward f(a);
  f.o = a.o.as<bf16>();
  f.state = a.state.as<float>();
  launch_sweep<false>(stream, f);
}

void recompute(Stream& stream, const GatedDeltaBackward& a, const Handed& to) {
  Forward f(a);
  f.errors = to.errors;
  f.starts = to.starts;
  f.rounded_initial = to.initial;
  launch_sweep<true>(stream, f);
}

}  // namespace hebb::HEBB_DEVICE::delta_mma
