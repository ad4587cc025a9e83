#include "kernels/gated_delta/tiles.cuh"

// The gradients of keys, queries and gates of the chunked gated delta rule on tensor cores (docs/layers/gdn.md, Chunk
// form): one block a chunk and key head, from what the two scans left. It takes the value heads of the key head in
// order, and of each the value channels 32 at a time, copied while the 32 before are multiplied. Four groups of four
// warps hold 64 sums a thread:
//   0, 1  X Sᵀ and E dS1ᵀ, each half of the key channels; then dK
//   2     dO Sᵀ; then dQ
//   3     dO Eᵀ and X Eᵀ, whose diagonal is d_beta; then the pairs' weights and what they add to d_gam
// Precision: products of X and E with each other and with dO, and the pairs' weights that come of them, take two bf16
// of each, without the product of the lower parts; d_gam is summed in double. Products with S and dS1 take one of each:
// that leaves an error of 1.4e-3 (rms) in dg, as much as the rounding of d_q, d_k and d_v to bf16 in those, and none
// that shows in parameters' gradients (bf16_test.cpp). FLOPs of a chunk of 64 tokens and a value head: 2 64 (5 64 dv +
// 3 dk dv + 5 64 dk) on tensor cores, and 4 64 64 dk a key head. HBM: d_o, 2 bytes for each of S, dS1 and 4 for E, X a
// value head; q, k, d_q, d_k a key head; 208 KB a chunk for a head of 128 x 128. HBM is the bound
// (docs/design/gpu-kernels.md). 128 registers, no spills; 187 KB shared for keys of more than 64, 150 KB for others:
// one block of 16 warps an SM.
namespace hebb::HEBB_DEVICE::delta_mma {
namespace {

constexpr int kBlock = 512, kDepth = 32;  // threads; value channels at a time

struct DeltaChunkGradients {
  DeltaSizes n;
  delta::Inputs<bf16> in;
  delta::Chunks chunks;
  int64_t count;  // chunks
  bf16 *d_q, *d_k;
  float *d_g, *d_beta;
  const bf16* d_o;
  SplitTensor errors, adjoints;
  const bf16 *starts, *d_starts, *initial;
  float scale;
  bool additive;
};

/// What the products over value channels need of 32 of them. The second of two tiles is the lower part.
template <int kWidth> struct Stage {
  TileOf<kChunk, kDepth> d_o[1], x[2], errors[2];
  TileOf<kWidth, kDepth> state[1], d_state[1];  // before and behind the chunk
};

template <int kWidth> struct Shared {
  TileOf<kChunk, kWidth> keys[1], queries[1];
  Stage<kWidth> stages[2];
  TileOf<kChunk, kChunk> answers[2], corrections[2];  // weights of pairs: of delta_j in o_i, of E_j in E_i
  float products[kChunk][kChunk + 4];                 // k_i . k_j below the diagonal, q_j . k_i above it
  Gates gates;
  double rows[kChunk], columns[4][kChunk];    // sums of G, the latter for 16 rows each
  double kept[128];                           // <S, dS1>: a thread's part
  float reads[3][kChunk], writes[2][kChunk];  // d_gam of what tokens read from the state and leave in it
  DeltaChunk chunk;
  int64_t first_head, next_state;  // first value head; number of the state behind the chunk, or -1
};

/// Starts a copy of `rows` rows, `stride` elements apart, of kParts tensors `part` elements apart; zeros behind them
/// and behind `width` channels.
template <int kRows, int kChannels, int kParts>
__device__ __forceinline__ void copy_parts(TileOf<kRows, kChannels> (&to)[kParts], const bf16* from, int64_t part,
                                           int64_t stride, int rows, int width) {
  constexpr int kPieces = kChannels / 8, kAll = kParts * kRows * kPieces;
  HEBB_UNROLL
  for (int step = 0; step < kAll; step += kBlock) {
    const int i = step + static_cast<int>(threadIdx.x), p = i / (kRows * kPieces), row = i / kPieces % kRows,
              c = i % kPieces * 8;
    const bool exists = row < rows && c < width;
    if (kAll % kBlock == 0 || i < kAll) {
      copy_async_16(&to[p].data[row * kStride<kChannels> + c], exists ? from + p * part + row * stride + c : from,
                    exists ? 16 : 0);
    }
  }
}

/// Multiplies keys, and queries with keys, below the diagonal. A warp has 16 rows by 32 columns.
template <int kWidth> __device__ __forceinline__ void multiply_keys(Shared<kWidth>& s) {
  const int first_row = warp_number() % 4 * 16, first_column = warp_number() / 4 % 2 * 32;
  const bool is_query = warp_number() >= 8;
  float sums[1][4][4] = {};
  attention_mma::multiply_rows<kWidth>(sums, (is_query ? s.queries : s.keys)[0].data + first_row * kStride<kWidth>,
                                       s.keys[0].data + first_column * kStride<kWidth>);
  HEBB_UNROLL
  for (int n = 0; n < 4; ++n) {
    HEBB_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int i = first_row + lane_number() / 4 + e / 2 * 8, j = first_column + 8 * n + lane_number() % 4 * 2 + e % 2;
      if (j < i) { s.products[is_query ? j : i][is_query ? i : j] = sums[0][n][e]; }
    }
  }
}

using Sums = float[1][16][4];

/// sums[kFirst + j] += 16 rows of left x (rows 8 j of right)ᵀ over 32 channels; all parts of right, and of left where
/// kSplit.
template <int kFirst, int kTiles, bool kSplit, int kRows, int kParts>
__device__ __forceinline__ void add_product(Sums& sums, const bf16* left, const bf16* left_low,
                                            const TileOf<kRows, kDepth> (&right)[kParts], int right_row) {
  constexpr int stride = kStride<kDepth>;
  const int lane = lane_number(), from = lane % 16 * stride + lane / 16 * 8;
  const int to = (right_row + lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
  HEBB_UNROLL_BY(1)  // registers are short: turns must not be mixed
  for (int c = 0; c < kDepth; c += 16) {
    uint32_t a[4], a_low[4];
    load_matrices<4, false>(a, left + from + c);
    if constexpr (kSplit) { load_matrices<4, false>(a_low, left_low + from + c); }
    HEBB_UNROLL
    for (int j = 0; j < kTiles; j += 2) {
      HEBB_UNROLL
      for (int part = 0; part < kParts; ++part) {
        uint32_t b[4];
        load_matrices<4, false>(b, &right[part].data[to + 8 * j * stride + c]);
        const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        mma_bf16(sums[0][kFirst + j], a, first);
        mma_bf16(sums[0][kFirst + j + 1], a, second);
        if (kSplit && part == 0) {
          mma_bf16(sums[0][kFirst + j], a_low, first);
          mma_bf16(sums[0][kFirst + j + 1], a_low, second);
        }
      }
    }
  }
}

/// sums[j] += 16 rows of both parts of the pairs' weights, or where kTransposed of their columns, x channels 8 j of b,
/// for the tokens that have weight. `first_row`: of the result.
template <int kWidth, int kTiles, bool kTransposed>
__device__ __forceinline__ void add_pairs(Sums& sums, const TileOf<kChunk, kChunk> (&weights)[2], const bf16* b,
                                          int first_row) {
  const int lane = lane_number();
  HEBB_UNROLL_BY(1)  // registers are short: turns must not be mixed
  for (int c = kTransposed ? first_row : 0; c < (kTransposed ? kChunk : first_row + 16); c += 16) {
    uint32_t high[4], low[4];
    load_left<kTransposed>(high, weights[0], first_row, c);
    load_left<kTransposed>(low, weights[1], first_row, c);
    HEBB_UNROLL
    for (int j = 0; j < kTiles; j += 2) {
      uint32_t right[4];
      load_matrices<4, true>(right, b + (c + lane % 16) * kStride<kWidth> + lane / 16 * 8 + 8 * j);
      const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
      mma_bf16(sums[0][j], high, first);
      mma_bf16(sums[0][j + 1], high, second);
      mma_bf16(sums[0][j], low, first);
      mma_bf16(sums[0][j + 1], low, second);
    }
  }
}

/// sums[kFirst + j] *= factors of the two rows; dots[row] = its product with `rows`, over the kTiles tiles.
template <int kWidth, int kFirst, int kTiles>
__device__ __forceinline__ void scale_and_multiply(Sums& sums, const float (&factors)[2], const bf16* rows,
                                                   int first_row, float* dots) {
  HEBB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane_number() / 4 + 8 * half;
    float dot = 0;
    HEBB_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      float &first = sums[0][kFirst + j][2 * half], &second = sums[0][kFirst + j][2 * half + 1];
      const uint32_t pair = attention_mma::load_pair(rows + row * kStride<kWidth> + 8 * j + lane_number() % 4 * 2);
      first *= factors[half];
      second *= factors[half];
      dot += first * first_of(pair) + second * second_of(pair);
    }
    dot = attention_mma::sum_of_quad(dot);
    if (lane_number() % 4 == 0) { dots[row] = dot; }
  }
}

/// From the products with E to the pairs' weights, the sums of G over rows and columns, and d_beta. The diagonal of G
/// cancels and is left out; the sums are in double: rounding would hide what a strong decay leaves of dg.
template <int kWidth>
__device__ __forceinline__ void weigh_pairs(Shared<kWidth>& s, const Sums& sums, const DeltaChunkGradients& a,
                                            int first_row, float* d_beta, int length) {
  const int lane = lane_number();
  double rows[2] = {};
  HEBB_UNROLL
  for (int n = 0; n < 8; ++n) {
    const int column = 8 * n + lane % 4 * 2;
    double columns[2] = {};
    HEBB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = first_row + lane / 4 + 8 * half;
      float answers[2], corrections[2];
      HEBB_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int j = column + e;
        const float strength = j <= i ? s.gates.beta[j] * delta::decay(s.gates.sums[i] - s.gates.sums[j]) : 0.0f;
        const float product = sums[0][8 + n][2 * half + e];
        answers[e] = a.scale * strength * sums[0][n][2 * half + e];
        corrections[e] = j < i && !a.additive ? -s.gates.beta[i] * strength * product : 0.0f;
        if (j < i) {
          const double pair = static_cast<double>(answers[e] * s.products[j][i] + corrections[e] * s.products[i][j]);
          rows[half] += pair;
          columns[e] += pair;
        }
        if (j == i && i < length) { d_beta[i * a.n.value_heads] = product; }
      }
      const int at = i * kStride<kChunk> + column;
      SplitPair(answers[0], answers[1]).store(&s.answers[0].data[at], &s.answers[1].data[at]);
      SplitPair(corrections[0], corrections[1]).store(&s.corrections[0].data[at], &s.corrections[1].data[at]);
    }
    HEBB_UNROLL
    for (int e = 0; e < 2; ++e) {
      HEBB_UNROLL
      for (int bits = 4; bits < 32; bits *= 2) { columns[e] += __shfl_xor_sync(kAllLanes, columns[e], bits); }
      if (lane < 4) { s.columns[first_row / 16][column + e] = columns[e]; }
    }
  }
  HEBB_UNROLL
  for (int half = 0; half < 2; ++half) {
    rows[half] += __shfl_xor_sync(kAllLanes, rows[half], 1);
    rows[half] += __shfl_xor_sync(kAllLanes, rows[half], 2);
    if (lane % 4 == 0) { s.rows[first_row + lane / 4 + 8 * half] = rows[half]; }
  }
}

/// One warp writes dg_i = sum_{j>=i} dgam_j. `d_g` points to the chunk's first token.
template <int kWidth>
__device__ __forceinline__ void write_gates(const Shared<kWidth>& s, float* d_g, int64_t stride, int length) {
  const int lane = lane_number();
  double d_gam[2], written = 0;
  const double kept = warp_sum((s.kept[lane] + s.kept[lane + 32]) + (s.kept[lane + 64] + s.kept[lane + 96]));
  HEBB_UNROLL
  for (int e = 0; e < 2; ++e) {
    const int i = 2 * lane + e;
    const double columns = (s.columns[0][i] + s.columns[1][i]) + (s.columns[2][i] + s.columns[3][i]);
    const double reads = static_cast<double>(s.reads[0][i] + s.reads[1][i] + s.reads[2][i]);
    const double writes = static_cast<double>(s.writes[0][i] + s.writes[1][i]);
    d_gam[e] = s.rows[i] - columns + reads - writes;
    written += writes;
  }
  written = warp_sum(written);
  if (lane == 31) {  // gam_last; tokens behind the chunk's have its sum of gates and nothing of their own
    d_gam[1] += written + static_cast<double>(s.gates.start[kChunk - 1]) * kept;
  }
  const double pair = d_gam[0] + d_gam[1];
  double sum = pair;
  HEBB_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const double behind = __shfl_down_sync(kAllLanes, sum, step);
    sum += lane + step < 32 ? behind : 0.0;
  }
  HEBB_UNROLL
  for (int e = 0; e < 2; ++e) {
    if (2 * lane + e < length) {
      d_g[(2 * lane + e) * stride] = static_cast<float>(e == 0 ? sum : sum - pair + d_gam[1]);
    }
  }
}

/// The 128 threads of a group sum their parts of <S, dS1> over 32 channels.
template <int kWidth> __device__ __forceinline__ float multiply_states(const Stage<kWidth>& stage, int dk) {
  using attention_mma::load_pair;
  float sum = 0;
  HEBB_UNROLL_BY(1)  // registers are short: turns must not be mixed
  for (int i = static_cast<int>(threadIdx.x) % 128; i < dk * kDepth / 2; i += 128) {
    const int at = i / (kDepth / 2) * kStride<kDepth> + i % (kDepth / 2) * 2;
    const uint32_t s = load_pair(&stage.state[0].data[at]), d = load_pair(&stage.d_state[0].data[at]);
    sum += first_of(s) * first_of(d) + second_of(s) * second_of(d);
  }
  return sum;
}

/// What the warp's group sums over the stage's channels.
template <int kWidth>
__device__ __forceinline__ void add_channels(Shared<kWidth>& s, Sums& sums, const Stage<kWidth>& stage,
                                             const DeltaChunkGradients& a, int group, int first_row) {
  constexpr int kHalf = kWidth / 16;  // tiles of half the key channels
  const int row = first_row * kStride<kDepth>;
  const bool has_state = s.chunk.state >= 0 || a.initial != nullptr, has_d_state = s.next_state >= 0;
  if (group < 2) {
    if (has_state && !a.additive) {
      add_product<0, kHalf, false>(sums, stage.x[0].data + row, nullptr, stage.state, 8 * kHalf * group);
    }
    if (has_d_state) {
      add_product<kHalf, kHalf, false>(sums, stage.errors[0].data + row, nullptr, stage.d_state, 8 * kHalf * group);
    }
  } else if (group == 2) {
    if (has_state) { add_product<0, 2 * kHalf, false>(sums, stage.d_o[0].data + row, nullptr, stage.state, 0); }
    if (has_state && has_d_state) {
      s.kept[threadIdx.x % 128] += static_cast<double>(multiply_states(stage, static_cast<int>(a.n.key_dim)));
    }
  } else {
    add_product<0, 8, false>(sums, stage.d_o[0].data + row, nullptr, stage.errors, 0);
    add_product<8, 8, true>(sums, stage.x[0].data + row, stage.x[1].data + row, stage.errors, 0);
  }
}

/// Starts the copies of a step: one value head and 32 of its channels.
template <int kWidth>
__device__ __forceinline__ void copy_step(Shared<kWidth>& s, const DeltaChunkGradients& a, int step) {
  Stage<kWidth>& stage = s.stages[step % 2];
  const int dk = static_cast<int>(a.n.key_dim), dv = static_cast<int>(a.n.value_dim),
            depths = (dv + kDepth - 1) / kDepth;
  const int c = step % depths * kDepth, width = dv - c, length = static_cast<int>(s.chunk.length);
  const int64_t head = s.first_head + step / depths, stride = a.n.value_heads * dv,
                at = s.chunk.token * stride + head * dv + c;
  copy_parts(stage.d_o, a.d_o + at, 0, stride, length, width);
  copy_parts(stage.x, a.adjoints.high + at, a.adjoints.size, stride, length, width);
  copy_parts(stage.errors, a.errors.high + at, a.errors.size, stride, length, width);
  if (s.chunk.state >= 0) {
    copy_parts(stage.state, a.starts + (s.chunk.state * a.n.value_heads + head) * a.n.state() + c, 0, dv, dk, width);
  } else if (a.initial != nullptr) {
    copy_parts(stage.state, a.initial + head * a.n.state() + c, 0, dv, dk, width);
  }
  if (s.next_state >= 0) {
    copy_parts(stage.d_state, a.d_starts + (s.next_state * a.n.value_heads + head) * a.n.state() + c, 0, dv, dk, width);
  }
  commit_async_copies();
}

/// Once all channels of a head are summed: the parts of d_gam, the rows' sums but for pairs of tokens, and the pairs'
/// weights.
template <int kWidth>
__device__ __forceinline__ void finish_channels(Shared<kWidth>& s, Sums& sums, const DeltaChunkGradients& a, int group,
                                                int first_row, int64_t head) {
  constexpr int kHalf = kWidth / 16;
  const Gates& gates = s.gates;
  const int row = first_row + lane_number() / 4;
  if (group < 2) {
    const bf16* const keys = s.keys[0].data + group * 8 * kHalf;
    const float reads[2] = {-gates.beta[row] * gates.start[row], -gates.beta[row + 8] * gates.start[row + 8]};
    const float writes[2] = {gates.beta[row] * gates.end[row], gates.beta[row + 8] * gates.end[row + 8]};
    scale_and_multiply<kWidth, 0, kHalf>(sums, reads, keys, first_row, s.reads[group]);
    scale_and_multiply<kWidth, kHalf, kHalf>(sums, writes, keys, first_row, s.writes[group]);
    HEBB_UNROLL
    for (int i = 0; i < 4 * kHalf; ++i) { sums[0][i / 4][i % 4] += sums[0][kHalf + i / 4][i % 4]; }
  } else if (group == 2) {
    const float reads[2] = {a.scale * gates.start[row], a.scale * gates.start[row + 8]};
    scale_and_multiply<kWidth, 0, 2 * kHalf>(sums, reads, s.queries[0].data, first_row, s.reads[2]);
  } else {
    weigh_pairs(s, sums, a, first_row, a.d_beta + s.chunk.token * a.n.value_heads + head,
                static_cast<int>(s.chunk.length));
  }
}

/// Adds the pairs' parts of dK and dQ and writes them, or adds them to those of earlier heads; writes d_g.
template <int kWidth>
__device__ __forceinline__ void finish_head(const Shared<kWidth>& s, Sums& sums, const DeltaChunkGradients& a,
                                            int group, int first_row, int64_t head, bool accumulate) {
  constexpr int kHalf = kWidth / 16;
  const int length = static_cast<int>(s.chunk.length), dk = static_cast<int>(a.n.key_dim),
            channel = group % 2 * 8 * kHalf;
  const int64_t stride = a.n.key_heads * dk, to = s.chunk.token * stride + s.first_head / a.n.group() * dk;
  const auto token = [&](int i) { return first_row + i < length ? static_cast<int64_t>(first_row + i) : -1; };
  const float factors[2] = {1, 1};
  if (group < 2) {
    if (!a.additive) {
      add_pairs<kWidth, kHalf, false>(sums, s.corrections, s.keys[0].data + channel, first_row);
      add_pairs<kWidth, kHalf, true>(sums, s.corrections, s.keys[0].data + channel, first_row);
    }
    add_pairs<kWidth, kHalf, true>(sums, s.answers, s.queries[0].data + channel, first_row);
    attention_mma::write_rows<kWidth / 2>(a.d_k + to + channel, dk - channel, stride, token, sums, factors, accumulate);
  } else if (group == 2) {
    add_pairs<kWidth, 2 * kHalf, false>(sums, s.answers, s.keys[0].data, first_row);
    attention_mma::write_rows<kWidth>(a.d_q + to, dk, stride, token, sums, factors, accumulate);
  } else if (warp_number() == 12) {
    write_gates(s, a.d_g + s.chunk.token * a.n.value_heads + head, a.n.value_heads, length);
  }
}

template <int kWidth> __global__ void __launch_bounds__(kBlock, 1) gated_delta_mma_chunk_kernel(DeltaChunkGradients a) {
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth>*>(raw);
  const int group_size = static_cast<int>(a.n.group()),
            depths = static_cast<int>((a.n.value_dim + kDepth - 1) / kDepth);
  if (threadIdx.x == 0) {
    const int64_t number = blockIdx.x / a.n.key_heads;
    s.chunk = a.chunks.at(number);
    s.first_head = blockIdx.x % a.n.key_heads * group_size;
    s.next_state = number + 1 < a.count ? a.chunks.at(number + 1).state : -1;
  }
  __syncthreads();
  {
    const int length = static_cast<int>(s.chunk.length), dk = static_cast<int>(a.n.key_dim);
    const int64_t stride = a.n.key_heads * dk, at = s.chunk.token * stride + s.first_head / group_size * dk;
    copy_parts(s.keys, a.in.all.k + at, 0, stride, length, dk);
    copy_parts(s.queries, a.in.all.q + at, 0, stride, length, dk);
    commit_async_copies();
  }
  copy_step(s, a, 0);
  wait_async_copies<1>();
  __syncthreads();
  multiply_keys(s);

  // Warps of one group lie in different quarters of the SM, and each quarter has all rows: those of more pairs have
  // more work.
  const int group = warp_number() / 4, first_row = (warp_number() + group) % 4 * 16;
  int step = 0;
  for (int h = 0; h < group_size; ++h) {
    Sums sums = {};
    for (int depth = 0; depth < depths; ++depth, ++step) {
      wait_async_copies<0>();
      __syncthreads();
      if (step + 1 < group_size * depths) { copy_step(s, a, step + 1); }
      if (depth == 0 && group == 2) {
        s.kept[threadIdx.x % 128] = 0;
        if (warp_number() == 8) { load_gates(s.gates, GateInputs(a.in.head(a.n, s.first_head + h), s.chunk)); }
      }
      add_channels(s, sums, s.stages[step % 2], a, group, first_row);
    }
    __syncthreads();  // products, gates
    finish_channels(s, sums, a, group, first_row, s.first_head + h);
    __syncthreads();
    finish_head(s, sums, a, group, first_row, s.first_head + h, h > 0);
  }
}

}  // namespace

Handed::Handed(const GatedDeltaBackward& a, const GatedDeltaBackwardScratch& scratch) {
  const int64_t values = a.v.numel();
  errors = {static_cast<bf16*>(scratch.errors.data), values};
  adjoints = {static_cast<bf16*>(scratch.adjoints.data), values};
  starts = static_cast<bf16*>(scratch.starts.data);
  d_starts = starts + a.grid.states * a.v.size(2) * a.k.size(3) * a.v.size(3);
  initial = a.initial_state.defined() ? adjoints.high + 2 * values : nullptr;
  initial_sums = scratch.initial_sums.as<float>();
}

static_assert(sizeof(Shared<64>) <= gated_delta_shared_bytes(64) &&
              sizeof(Shared<128>) <= gated_delta_shared_bytes(128));

void backward(Stream& stream, const GatedDeltaBackward& a, const GatedDeltaBackwardScratch& scratch, bool recomputes) {
  const Handed handed(a, scratch);
  if (recomputes) { recompute(stream, a, handed); }
  reverse_scan(stream, a, handed);
  const DeltaSizes n(a.k, a.v);
  const DeltaChunkGradients b{.n = n,
                              .in = delta::Inputs<bf16>(a, n),
                              .chunks = delta::Chunks(a.grid),
                              .count = a.grid.chunks.size(0),
                              .d_q = a.d_q.as<bf16>(),
                              .d_k = a.d_k.as<bf16>(),
                              .d_g = a.d_g.as<float>(),
                              .d_beta = a.d_beta.as<float>(),
                              .d_o = a.d_o.as<bf16>(),
                              .errors = handed.errors,
                              .adjoints = handed.adjoints,
                              .starts = handed.starts,
                              .d_starts = handed.d_starts,
                              .initial = handed.initial,
                              .scale = static_cast<float>(a.scale),
                              .additive = a.additive};
  const unsigned blocks = blocks_for(b.count * n.key_heads, 1);
  dispatch_number<64, 128>(n.key_dim, [&](auto width) {
    HEBB_LAUNCH((gated_delta_mma_chunk_kernel<width()>), blocks, kBlock, sizeof(Shared<width()>), stream, b);
  });
}

}  // namespace hebb::HEBB_DEVICE::delta_mma
