#pragma once
// The scans of the gated delta rule on tensor cores over the chunks of a row and value head, as a pipeline of
// specialized warps. A block holds a slice of 32 or 64 value channels of the state. While four warps take the state
// through a chunk, seven make the next chunk's matrices of tokens by tokens, and one copies the chunk behind that and
// adds up its gates. So what does not depend on the state is never waited for, and a chunk has one barrier. A state
// warp holds 8 or 16 channels of all keys in registers, as sums of mma; nothing passes between state warps. As a right
// operand the state is split and transposed in registers (movmatrix). Three warps a quarter of an SM leave 168
// registers. Bound: the chain of dependent products of the one state warp on each quarter; estimates
// are in docs/design/gpu-kernels.md. Shared memory: 154 and 166 KB for keys of 64, 203 and 215 KB for keys of 128, so
// one block an SM. A copy from HBM has the time of a chunk.
#include "kernels/common/cuda/block.cuh"
#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/gated_delta/tiles.cuh"

namespace hebb::HEBB_DEVICE::delta_mma {

constexpr int kPairWarps = 7, kThreads = 32 * (kStateWarps + kPairWarps + 1);
constexpr int kBlocks = kChunk / 16;  // of 16 tokens

// ---- what a block has in shared memory

/// Inputs of a chunk.
template <int kWidth, int kSlice> struct Stage {
  TileOf<kChunk, kWidth> keys, queries;
  TileOf<kChunk, kSlice> values;  // v, or in the reverse scan d_o
  Gates gates;
  DeltaChunk chunk;
  bool begins_document;
};

/// Whether the rule is additive (no system to solve), where a kernel knows it: as a constant it is no branch within the
/// chain of products that a state warp waits for.
enum class Rule { delta, additive, either };

template <Rule kRule> __device__ __forceinline__ bool is_additive(bool additive) {
  return kRule == Rule::either ? additive : kRule == Rule::additive;
}

/// Matrices of a chunk's tokens by tokens, in two parts; blocks above the diagonal are never written.
struct Pairs {
  TileOf<kChunk, kChunk> system[2];   // -L; in blocks on the diagonal (1 + L)^-1
  TileOf<kChunk, kChunk> answers[2];  // P
};

struct alignas(16) Four {
  float x[4];
};

/// Columns of a block on the diagonal.
using Diagonal = Four[16][5];

/// What a block scans.
struct PipelineInputs {
  delta::HeadInputs<bf16> in;  // v: the slice's first channel of what is staged as values
  const int32_t* doc_start;
  delta::Chunks chunks;
  int64_t first_chunk, first_token;  // of the row
  int count, dk, channels;           // chunks; channels of keys, and of the slice, that exist
  float scale;
  bool additive;
};

template <int kWidth, int kSlice> struct Shared {
  Stage<kWidth, kSlice> stages[3];
  Pairs pairs[2];
  Diagonal diagonals[kBlocks];
  PipelineInputs inputs;
};
static_assert(sizeof(Shared<128, 64>) <= 227 * 1024, "what a block may have on an SM of 9.0");
static_assert(sizeof(Shared<64, 32>) <= gated_delta_shared_bytes(64) &&
              sizeof(Shared<128, 32>) <= gated_delta_shared_bytes(128));

// ---- the system, by state warps

/// A block of 16 rows of the triangular system, whose other unknowns are taken out already: solved, and as an operand.
template <bool kTransposed, int kTiles>
__device__ __forceinline__ void solve_block(StateRows<kBlocks, kTiles>& rows, const Pairs& pairs, int block,
                                            Operand (&solved)[kTiles]) {
  make_operands(solved, rows, block);
  HEBB_UNROLL
  for (int i = 0; i < 4 * kTiles; ++i) { rows.x[block][i / 4][i % 4] = 0; }
  add_block<kTransposed>(rows.x[block], pairs.system, block, block, solved);
  make_operands(solved, rows, block);
}

// ---- pairs of tokens, ahead of the state

/// A block of 16 tokens by 16 on or below the diagonal. L = beta_j e^(gam_i - gam_j) (k_i . k_j), and P with beta_j
/// too, as both take E; kBackward: L with beta_i, P with scale. A block of L on the diagonal goes to `diagonal`,
/// transposed and negative; what is not below the diagonal there is nothing that anybody reads.
template <bool kQueries, bool kBackward, int kWidth, int kSlice>
__device__ __forceinline__ void make_block(Pairs& pairs, Diagonal& diagonal, const Stage<kWidth, kSlice>& stage,
                                           int row, int column, const PipelineInputs& inputs) {
  const Gates& gates = stage.gates;
  const bool on_diagonal = row == column;
  const int first_i = lane_number() / 4, first_j = lane_number() % 4 * 2;  // in the block
  float decays[8], betas[8];  // all loads and decays before the first store, so that none waits for another
  HEBB_UNROLL
  for (int e = 0; e < 8; ++e) {
    const int i = first_i + e % 4 / 2 * 8, j = first_j + e / 4 * 8 + e % 2;
    decays[e] = decay(on_diagonal && j > i ? -INFINITY : gates.sums[16 * row + i] - gates.sums[16 * column + j]);
    betas[e] = gates.beta[kBackward ? 16 * row + i : 16 * column + j];
  }
  const bf16* const right = stage.keys.data + 16 * column * kStride<kWidth>;
  const auto product = [&](float(&sums)[1][2][4], const TileOf<kChunk, kWidth>& left) {
    attention_mma::multiply_rows<kWidth>(sums, left.data + 16 * row * kStride<kWidth>, right);
  };
  const auto store = [&](TileOf<kChunk, kChunk>(&to)[2], const float(&x)[1][2][4]) {
    HEBB_UNROLL
    for (int e = 0; e < 8; e += 2) {
      const int at = (16 * row + first_i + e % 4 / 2 * 8) * kStride<kChunk> + 16 * column + first_j + e / 4 * 8;
      SplitPair(x[0][e / 4][e % 4], x[0][e / 4][e % 4 + 1]).store(&to[0].data[at], &to[1].data[at]);
    }
  };
  float keys[1][2][4] = {}, queries[1][2][4] = {};
  if (!inputs.additive) { product(keys, stage.keys); }
  if constexpr (kQueries) {
    product(queries, stage.queries);
    HEBB_UNROLL
    for (int e = 0; e < 8; ++e) { queries[0][e / 4][e % 4] *= (kBackward ? inputs.scale : betas[e]) * decays[e]; }
    store(pairs.answers, queries);
  }
  HEBB_UNROLL
  for (int e = 0; e < 8; ++e) { keys[0][e / 4][e % 4] *= -betas[e] * decays[e]; }
  if (!on_diagonal) {
    store(pairs.system, keys);
    return;
  }
  HEBB_UNROLL
  for (int e = 0; e < 8; ++e) {
    diagonal[first_j + e / 4 * 8 + e % 2][first_i / 4 + e % 4 / 2 * 2].x[first_i % 4] = keys[0][e / 4][e % 4];
  }
}

/// (1 + L)^-1 of a block on the diagonal by forward substitution in fp32, a lane a column.
__device__ __forceinline__ void invert_diagonal(Pairs& pairs, const Diagonal& diagonal, int block) {
  const int column = lane_number() % 16;
  float x[16];
  HEBB_UNROLL
  for (int i = 0; i < 16; ++i) { x[i] = i == column ? 1.0f : 0.0f; }
  HEBB_UNROLL
  for (int j = 0; j < 15; ++j) {
    HEBB_UNROLL
    for (int i = j + 1; i < 16; ++i) { x[i] += diagonal[j][i / 4].x[i % 4] * x[j]; }
  }
  const int part = lane_number() / 16, to = block * 16 * (kStride<kChunk> + 1) + column;
  HEBB_UNROLL
  for (int i = 0; i < 16; ++i) {
    const float high = first_of(pack_bf16(x[i], 0.0f));
    pairs.system[part].data[to + i * kStride<kChunk>] = from_float<bf16>(part == 0 ? x[i] : x[i] - high);
  }
}

/// The pair warps' step. Of the ten blocks four warps take one on the diagonal, the others two below it.
template <bool kQueries, bool kBackward, int kWidth, int kSlice>
__device__ __forceinline__ void make_pairs(Shared<kWidth, kSlice>& s, Pairs& pairs,
                                           const Stage<kWidth, kSlice>& stage) {
  const int warp = warp_number() - kStateWarps;
  const bool on_diagonal = warp < kBlocks;
  Diagonal& diagonal = s.diagonals[warp % kBlocks];
  for (int i = 0; i < (on_diagonal ? 1 : 2); ++i) {
    const int pair = 2 * (warp - kBlocks) + i;  // of (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)
    const int row = on_diagonal ? warp : pair == 0 ? 1 : pair < 3 ? 2 : 3;
    const int column = on_diagonal ? warp : pair - row * (row - 1) / 2;
    make_block<kQueries, kBackward>(pairs, diagonal, stage, row, column, s.inputs);
  }
  if (on_diagonal && !s.inputs.additive) {
    __syncwarp();
    invert_diagonal(pairs, diagonal, warp);
  }
}

// ---- inputs, ahead of the pairs

/// Starts the warp's copy of rows of `count` tokens; zeros behind them and behind `width` channels.
template <int kWidth>
__device__ __forceinline__ void copy_tile(TileOf<kChunk, kWidth>& tile, const bf16* from, int64_t stride, int count,
                                          int width) {
  constexpr int kPieces = kWidth / 8, kStep = 32 / kPieces;
  const int first = lane_number() / kPieces, c = lane_number() % kPieces * 8;
  const bf16* next = from + first * stride + c;
  HEBB_UNROLL_BY(4)
  for (int row = first; row < kChunk; row += kStep) {
    const bool exists = row < count && c < width;
    copy_async_16(&tile.data[row * kStride<kWidth> + c], exists ? next : from, exists ? 16 : 0);
    next += kStep * stride;
  }
}

/// What the loading warp reads of a chunk a step before it copies the rest.
struct Incoming {
  DeltaChunk chunk;
  GateInputs gates;
  bool begins_document;

  __device__ __forceinline__ Incoming(const PipelineInputs& inputs, int64_t number)
      : chunk(inputs.chunks.at(inputs.first_chunk + number)),
        gates(inputs.in, chunk),
        begins_document(inputs.doc_start[chunk.token] == chunk.token - inputs.first_token) {}
};

/// Starts the copies of a chunk and adds up its gates.
template <bool kQueries, int kWidth, int kSlice>
__device__ __forceinline__ void load_stage(Stage<kWidth, kSlice>& stage, const PipelineInputs& inputs,
                                           const Incoming& incoming) {
  const DeltaChunk& chunk = incoming.chunk;
  const int length = static_cast<int>(chunk.length);
  const int64_t key_at = chunk.token * inputs.in.key_stride;
  copy_tile(stage.keys, inputs.in.k + key_at, inputs.in.key_stride, length, inputs.dk);
  if constexpr (kQueries) { copy_tile(stage.queries, inputs.in.q + key_at, inputs.in.key_stride, length, inputs.dk); }
  copy_tile(stage.values, inputs.in.v + chunk.token * inputs.in.value_stride, inputs.in.value_stride, length,
            inputs.channels);
  commit_async_copies();
  load_gates(stage.gates, incoming.gates);
  if (lane_number() == 0) {
    stage.chunk = chunk;
    stage.begins_document = incoming.begins_document;
  }
}

// ---- the pipeline

/// The block's row, value head and slice.
template <int kSlice> struct HeadSlice {
  int64_t task, row, head;      // task: number of the head among those of all rows
  int first_channel, channels;  // of the slice; those that exist

  __device__ __forceinline__ explicit HeadSlice(const DeltaSizes& n)
      : task(blockIdx.x), first_channel(static_cast<int>(blockIdx.y) * kSlice) {
    const Split split(task, n.value_heads);
    row = split.quotient;
    head = split.remainder;
    const int left = static_cast<int>(n.value_dim) - first_channel;
    channels = left < kSlice ? left : kSlice;
  }
  /// values: null for v. Ends with a barrier.
  __device__ __forceinline__ void begin(PipelineInputs& inputs, const DeltaSizes& n, const delta::Inputs<bf16>& in,
                                        const delta::Chunks& chunks, const int32_t* doc_start, const bf16* values,
                                        float scale, bool additive) const {
    if (threadIdx.x == 0) {
      delta::HeadInputs<bf16> head_in = in.head(n, head);
      head_in.v = (values != nullptr ? values + head * n.value_dim : head_in.v) + first_channel;
      const int64_t first_chunk = chunks.rows[row];
      inputs = {head_in,
                doc_start,
                chunks,
                first_chunk,
                row * n.length,
                static_cast<int>(chunks.rows[row + 1] - first_chunk),
                static_cast<int>(n.key_dim),
                channels,
                scale,
                additive};
    }
    __syncthreads();
  }
};

/// Calls use(i, stage, pairs) in the state warps for the chunks of the row, kBackward from the last one to the first; i
/// counts the calls.
template <bool kQueries, bool kBackward, int kWidth, int kSlice, class F>
__device__ __forceinline__ void run_pipeline(Shared<kWidth, kSlice>& s, F&& use) {
  const int count = s.inputs.count, warp = warp_number();
  // A loop for each role: in one loop the state would take registers from all.
  const auto each_step = [&](auto&& step) {
    for (int i = -2; i < count; ++i) {
      step(i);
      role_barrier(kThreads);
    }
  };
  if (warp < kStateWarps) {
    each_step([&](int i) {
      if (i >= 0) { use(i, s.stages[i % 3], s.pairs[i % 2]); }
    });
  } else if (warp < kStateWarps + kPairWarps) {
    each_step([&](int i) {
      if (i >= -1 && i + 1 < count) { make_pairs<kQueries, kBackward>(s, s.pairs[(i + 1) % 2], s.stages[(i + 1) % 3]); }
    });
  } else {
    const auto nth = [&](int n) { return Incoming(s.inputs, kBackward ? count - 1 - n : n); };
    Incoming incoming = nth(0);
    each_step([&](int i) {
      if (i + 2 < count) {
        load_stage<kQueries>(s.stages[(i + 2) % 3], s.inputs, incoming);
        if (i + 3 < count) { incoming = nth(i + 3); }
        wait_async_copies<0>();
      }
    });
  }
}

// ---- host

/// Calls f(width of keys, width of slices, rule: constants, grid). Slices of 32 channels take a chunk in three quarters
/// of the time of 64: taken where the SMs, which hold one block each, still have them in as many rounds, or have no
/// room for more. Results do not depend on it.
template <class F> void dispatch_slices(const DeltaSizes& n, bool additive, F&& f) {
  const int64_t heads = n.batch * n.value_heads, processors = multiprocessors();
  const auto slices = [&](int64_t width) { return (n.value_dim + width - 1) / width; };
  const auto rounds = [&](int64_t width) { return (heads * slices(width) + processors - 1) / processors; };
  const bool has_room =
      (n.key_dim <= 64 ? sizeof(Shared<64, 64>) : sizeof(Shared<128, 64>)) <= static_cast<size_t>(shared_bytes());
  dispatch_number<32, 64>(rounds(32) == rounds(64) || !has_room ? 32 : 64, [&](auto slice) {
    const dim3 blocks(blocks_for(heads, 1), blocks_for(n.value_dim, slice));
    dispatch_number<64, 128>(n.key_dim, [&](auto width) {
      if constexpr (slice() == 64) {  // has no registers for longer blocks of code
        f(width, slice, std::integral_constant<Rule, Rule::either>{}, blocks);
      } else if (additive) {
        f(width, slice, std::integral_constant<Rule, Rule::additive>{}, blocks);
      } else {
        f(width, slice, std::integral_constant<Rule, Rule::delta>{}, blocks);
      }
    });
  });
}

}  // namespace hebb::HEBB_DEVICE::delta_mma
