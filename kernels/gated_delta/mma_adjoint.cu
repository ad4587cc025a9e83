#include "kernels/gated_delta/chunk_pipeline.cuh"

// The reverse scan of the chunked gated delta rule on tensor cores (docs/layers/gdn.md, Chunk form). One block a row,
// value head and slice of 32 or 64 value channels goes from the last chunk to the first. The slice of dS stays in
// registers, as S in the forward scan. It writes dv, X and the gradients of the states at chunk starts. All else has no
// order among chunks and is left to mma_backward.cu. Precision as in the forward scan: dS, the
// matrices of pairs, X and e^gam dO are multiplied in two bf16 each. FLOPs of a chunk of 64 tokens and a slice of s
// channels: 2 64 s (6 dk + 200) on tensor cores, and the pairs as in the forward scan. HBM: q, k once a slice, d_o,
// d_v once, X 4 bytes, dS 2. No spills.
namespace hebb::HEBB_DEVICE::delta_mma {
namespace {

struct DeltaReverseScan {
  DeltaSizes n;
  delta::Inputs<bf16> in;
  delta::Chunks chunks;
  bf16* d_v;
  const bf16* d_o;
  const int32_t* doc_start;
  float* initial_sums;
  SplitTensor adjoints;
  bf16* d_starts;
  float scale;
  bool additive;
};

/// dO of 16 tokens as right operands, 8 channels each.
template <int kWidth, int kSlice, int kTiles>
__device__ __forceinline__ void load_answers(uint32_t (&d_o)[kTiles][2], const Stage<kWidth, kSlice>& stage,
                                             int block) {
  const int lane = lane_number(), column = 8 * kTiles * warp_number() + (kTiles == 2 ? lane / 16 * 8 : 0);
  uint32_t matrices[2 * kTiles];
  load_matrices<2 * kTiles, true>(matrices, &stage.values.data[(16 * block + lane % 16) * kStride<kSlice> + column]);
  HEBB_UNROLL
  for (int i = 0; i < 2 * kTiles; ++i) { d_o[i / 2][i % 2] = matrices[i]; }
}

/// sums += scale Pᵀ dO.
template <int kWidth, int kSlice, int kTiles>
__device__ __forceinline__ void read_answers(StateRows<kBlocks, kTiles>& sums, const Stage<kWidth, kSlice>& stage,
                                             const Pairs& pairs) {
  HEBB_UNROLL
  for (int query = 0; query < kBlocks; ++query) {
    uint32_t d_o[kTiles][2];
    load_answers(d_o, stage, query);
    HEBB_UNROLL
    for (int i = 0; i <= query; ++i) {
      HEBB_UNROLL
      for (const TileOf<kChunk, kChunk>& part : pairs.answers) {
        uint32_t left[4];
        load_left<true>(left, part, 16 * i, 16 * query);
        HEBB_UNROLL
        for (int n = 0; n < kTiles; ++n) { mma_bf16(sums.x[i][n], left, d_o[n]); }
      }
    }
  }
}

/// scale e^gam dO of 16 tokens as right operands.
template <int kWidth, int kSlice, int kTiles>
__device__ __forceinline__ void scale_answers(Operand (&to)[kTiles], const Stage<kWidth, kSlice>& stage, int block,
                                              float scale) {
  uint32_t d_o[kTiles][2];
  load_answers(d_o, stage, block);
  HEBB_UNROLL
  for (int i = 0; i < 2 * kTiles; ++i) {
    const float* const start = &stage.gates.start[16 * block + i % 2 * 8 + lane_number() % 4 * 2];
    const uint32_t pair = d_o[i / 2][i % 2];
    const SplitPair parts(scale * start[0] * first_of(pair), scale * start[1] * second_of(pair));
    to[i / 2].high[i % 2] = parts.high;
    to[i / 2].low[i % 2] = parts.low;
  }
}

/// X of a block of 16 tokens, whose right side is there, goes to the tokens before it and to dS before the chunk, and
/// so does their dO.
template <int kWidth, int kSlice, int kTiles>
__device__ __forceinline__ void write_block(StateRows<kWidth / 16, kTiles>& d_state, StateRows<kBlocks, kTiles>& x,
                                            const DeltaReverseScan& a, const Stage<kWidth, kSlice>& stage,
                                            const Pairs& pairs, int block, bool additive) {
  Operand part[kTiles];
  if (!additive) {
    solve_block<true>(x, pairs, block, part);
    HEBB_UNROLL
    for (int i = 0; i < block; ++i) { add_block<true>(x.x[i], pairs.system, i, block, part); }
    StateRows<1, kTiles> writes;
    HEBB_UNROLL
    for (int i = 0; i < 4 * kTiles; ++i) {
      const int row = 16 * block + lane_number() / 4 + i % 4 / 2 * 8;
      writes.x[0][i / 4][i % 4] = -stage.gates.beta[row] * stage.gates.start[row] * x.x[block][i / 4][i % 4];
    }
    make_operands(part, writes, 0);
    add_rows<true>(d_state, stage.keys, 16 * block, part);
  }
  scale_answers(part, stage, block, a.scale);
  add_rows<true>(d_state, stage.queries, 16 * block, part);
}

/// Takes dS through a chunk: X = (1 + L)^-T (scale Pᵀ dO + diag(e^(gam_last - gam)) K dS), or without the system where
/// additive; dS = e^gam_last dS + (diag(e^gam) Q)ᵀ dO - (diag(beta e^gam) K)ᵀ X. value_at: the slice at the chunk's
/// first token.
template <int kWidth, int kSlice, int kTiles>
__device__ __forceinline__ void pass_chunk(StateRows<kWidth / 16, kTiles>& d_state, const DeltaReverseScan& a,
                                           const Stage<kWidth, kSlice>& stage, const Pairs& pairs, int64_t value_at,
                                           int channels, bool additive) {
  StateRows<kBlocks, kTiles> x;
  HEBB_UNROLL
  for (int m = 0; m < kWidth / 16; ++m) {
    Operand part[kTiles];
    make_operands(part, d_state, m);
    add_rows<false>(x, stage.keys, 16 * m, part);
  }
  x.each_pair([&](float& first, float& second, int row, int) {
    first *= stage.gates.end[row];
    second *= stage.gates.end[row];
  });
  read_answers(x, stage, pairs);
  d_state.scale(stage.gates.start[kChunk - 1]);
  HEBB_UNROLL
  for (int block = kBlocks - 1; block >= 0; --block) { write_block(d_state, x, a, stage, pairs, block, additive); }
  const int64_t stride = a.n.value_heads * a.n.value_dim;
  const int length = static_cast<int>(stage.chunk.length);
  constexpr bool kUniform = kHasRegisters<kWidth, kSlice>;
  x.template each_pair_within<kUniform>(length, channels, [&](float first, float second, int row, int c) {
    const int64_t to = value_at + row * stride + c;
    const float beta = stage.gates.beta[row];
    SplitPair(first, second).store(a.adjoints.high + to, a.adjoints.low() + to);
    attention_mma::store_pair(a.d_v + to, pack_bf16(beta * first, beta * second));
  });
}

template <int kWidth, int kSlice, Rule kRule>
__global__ void __launch_bounds__(kThreads, 1) gated_delta_mma_adjoint_kernel(DeltaReverseScan a) {
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth, kSlice>*>(raw);
  const DeltaSizes& n = a.n;
  const HeadSlice<kSlice> at(n);
  at.begin(s.inputs, n, a.in, a.chunks, a.doc_start, a.d_o, a.scale, a.additive);
  const int dk = static_cast<int>(n.key_dim);
  constexpr bool kUniform = kHasRegisters<kWidth, kSlice>;
  StateRows<kWidth / 16, kSlice / 32> d_state;
  // Each thread adds up its own part of the documents' gradients.
  const auto add_to_initial = [&](bool is_first) {
    d_state.each_pair([&](float first, float second, int row, int c) {
      if (row < dk && c < at.channels) {
        float* const to = a.initial_sums + at.task * n.state() + row * n.value_dim + at.first_channel + c;
        to[0] = is_first ? first : to[0] + first;
        to[1] = is_first ? second : to[1] + second;
      }
    });
  };
  if (a.initial_sums != nullptr && warp_number() < kStateWarps) { add_to_initial(true); }
  int64_t next_state = -1;  // number of the state behind the chunk; -1: nobody reads it, and dS is 0
  run_pipeline<true, true>(s, [&](int, const Stage<kWidth, kSlice>& stage, const Pairs& pairs) {
    if (next_state >= 0) {
      bf16* const to = a.d_starts + (next_state * n.value_heads + at.head) * n.state() + at.first_channel;
      d_state.template each_pair_within<kUniform>(dk, at.channels, [&](float first, float second, int row, int c) {
        attention_mma::store_pair(to + row * n.value_dim + c, pack_bf16(first, second));
      });
    }
    const int64_t value_at = (stage.chunk.token * n.value_heads + at.head) * n.value_dim + at.first_channel;
    pass_chunk(d_state, a, stage, pairs, value_at, at.channels, is_additive<kRule>(a.additive));
    next_state = stage.chunk.state;
    if (next_state < 0) {
      if (a.initial_sums != nullptr) { add_to_initial(false); }
      d_state.scale(0);
    }
  });
}

}  // namespace

void reverse_scan(Stream& stream, const GatedDeltaBackward& a, const Handed& to) {
  const DeltaSizes n(a.k, a.v);
  const DeltaReverseScan b{.n = n,
                           .in = delta::Inputs<bf16>(a, n),
                           .chunks = delta::Chunks(a.grid),
                           .d_v = a.d_v.as<bf16>(),
                           .d_o = a.d_o.as<bf16>(),
                           .doc_start = a.doc_start.as<int32_t>(),
                           .initial_sums = to.initial_sums,
                           .adjoints = to.adjoints,
                           .d_starts = to.d_starts,
                           .scale = static_cast<float>(a.scale),
                           .additive = a.additive};
  dispatch_slices(n, a.additive, [&](auto width, auto slice, auto rule, dim3 blocks) {
    HEBB_LAUNCH((gated_delta_mma_adjoint_kernel<width, slice, rule>), blocks, kThreads, sizeof(Shared<width, slice>),
                stream, b);
  });
}

}  // namespace hebb::HEBB_DEVICE::delta_mma
