#include "kernels/gated_delta/chunk_pipeline.cuh"

// The chunked gated delta rule on tensor cores, forward: one block a row, value head and slice of 32 or 64 value
// channels scans the chunks (chunk_pipeline.cuh). Precision: operands are bf16, sums fp32. What the kernel
// computes itself and multiplies again is split in two bf16 (16 bits): the state, what is written to it, the matrices
// of pairs and E. Blocks of 16 tokens of the triangular system are inverted in fp32 on the plain cores. So nothing but
// inputs and outputs is rounded to 8 bits. P, delta and the state that queries read are not kept in one bf16 each:
// answers that nearly cancel before a norm would keep the rounding of their terms, and gradients of decays would be
// off by up to 0.13 instead of 0.03 (tests/train/bf16_test.cpp).
// FLOPs of a chunk of 64 tokens and a slice of s channels: 2 64 s (6 dk + 240) on tensor cores, more than half of them
// for lower parts, and 2 64 80 dk for pairs. HBM: q, k once a slice, v, o once. The backward pass repeats the scan
// (kRecomputes): no queries and answers, but E, in two bf16, and the state at each chunk's start, in one, are kept.
// FLOPs of a chunk and a slice: 2 64 s (4 dk + 120), and half of the pairs; HBM: k once a slice, v once, E and the
// states.
namespace hebb::HEBB_DEVICE::delta_mma {
namespace {

struct DeltaScan {
  DeltaSizes n;
  delta::Inputs<bf16> in;
  delta::Chunks chunks;
  void* o;  // O of the kernel
  float* state;
  const float* initial;
  const int32_t* doc_start;
  float scale;
  bool additive;
  SplitTensor errors;              // where it recomputes
  bf16 *starts, *rounded_initial;  // likewise

  template <class Args>
  explicit DeltaScan(const Args& a)
      : n(a.k, a.v),
        in(a, n),
        chunks(a.grid),
        o(nullptr),
        state(nullptr),
        initial(a.initial_state.template as<float>()),
        doc_start(a.doc_start.template as<int32_t>()),
        scale(static_cast<float>(a.scale)),
        additive(a.additive),
        starts(nullptr),
        rounded_initial(nullptr) {}
};

/// The slice of a state in fp32, or zeros where `from` is null.
template <int kRowTiles, int kTiles>
__device__ __forceinline__ void load_state(StateRows<kRowTiles, kTiles>& state, const float* from, int64_t stride,
                                           int dk, int channels) {
  state.each_pair([&](float& first, float& second, int row, int c) {
    const bool exists = from != nullptr && row < dk && c < channels;
    first = exists ? from[row * stride + c] : 0.0f;
    second = exists ? from[row * stride + c + 1] : 0.0f;
  });
}

/// Where the state before a chunk is kept; initial ones by the first row's blocks.
template <int kSlice>
__device__ __forceinline__ bf16* place_of_start(const DeltaScan& a, const HeadSlice<kSlice>& at, int64_t state,
                                                bool is_first) {
  if (state >= 0) { return a.starts + (state * a.n.value_heads + at.head) * a.n.state() + at.first_channel; }
  return is_first && at.row == 0 && a.initial != nullptr ? a.rounded_initial + at.head * a.n.state() + at.first_channel
                                                         : nullptr;
}

/// The products of keys, and of queries, with the state before a chunk.
template <bool kRecomputes, int kWidth, int kSlice, int kTiles>
__device__ __forceinline__ void read_state(StateRows<kBlocks, kTiles>& predictions, StateRows<kBlocks, kTiles>& answers,
                                           const Stage<kWidth, kSlice>& stage,
                                           const StateRows<kWidth / 16, kTiles>& state) {
  HEBB_UNROLL
  for (int m = 0; m < kWidth / 16; ++m) {
    Operand part[kTiles];
    make_operands(part, state, m);
    add_rows<false>(predictions, stage.keys, 16 * m, part);
    if constexpr (!kRecomputes) { add_rows<false>(answers, stage.queries, 16 * m, part); }
  }
}

/// E of a block of 16 tokens, whose right side is there, goes to the tokens behind it, to answers and to the state
/// behind the chunk.
template <bool kRecomputes, int kWidth, int kSlice, int kTiles>
__device__ __forceinline__ void write_block(StateRows<kWidth / 16, kTiles>& state, StateRows<kBlocks, kTiles>& errors,
                                            StateRows<kBlocks, kTiles>& answers, const Stage<kWidth, kSlice>& stage,
                                            const Pairs& pairs, int block, bool additive) {
  Operand part[kTiles];
  if (additive) {
    make_operands(part, errors, block);
  } else {
    solve_block<false>(errors, pairs, block, part);
  }
  HEBB_UNROLL
  for (int i = block + 1; i < kBlocks; ++i) {
    if (!additive) { add_block<false>(errors.x[i], pairs.system, i, block, part); }
  }
  HEBB_UNROLL
  for (int i = block; i < kBlocks; ++i) {
    if constexpr (!kRecomputes) { add_block<false>(answers.x[i], pairs.answers, i, block, part); }
  }
  StateRows<1, kTiles> writes;
  HEBB_UNROLL
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int row = 16 * block + lane_number() / 4 + i % 4 / 2 * 8;
    writes.x[0][i / 4][i % 4] = stage.gates.end[row] * stage.gates.beta[row] * errors.x[block][i / 4][i % 4];
  }
  make_operands(part, writes, 0);
  add_rows<true>(state, stage.keys, 16 * block, part);
}

/// Takes the state through a chunk.
template <bool kRecomputes, class O, int kWidth, int kSlice, int kTiles>
__device__ __forceinline__ void pass_chunk(StateRows<kWidth / 16, kTiles>& state, const DeltaScan& a,
                                           const Stage<kWidth, kSlice>& stage, const Pairs& pairs,
                                           const HeadSlice<kSlice>& at, bool additive) {
  StateRows<kBlocks, kTiles> errors, answers;
  read_state<kRecomputes>(errors, answers, stage, state);
  errors.each_pair([&](float& first, float& second, int row, int c) {
    const uint32_t values = attention_mma::load_pair(&stage.values.data[row * kStride<kSlice> + c]);
    const float start = additive ? 0.0f : stage.gates.start[row];
    first = first_of(values) - start * first;
    second = second_of(values) - start * second;
  });
  if constexpr (!kRecomputes) {
    answers.each_pair([&](float& first, float& second, int row, int) {
      first *= stage.gates.start[row];
      second *= stage.gates.start[row];
    });
  }
  state.scale(stage.gates.start[kChunk - 1]);
  HEBB_UNROLL
  for (int block = 0; block < kBlocks; ++block) {
    write_block<kRecomputes>(state, errors, answers, stage, pairs, block, additive);
  }
  // Read here, not before: each would hold its registers through all blocks.
  const int64_t stride = a.n.value_heads * a.n.value_dim;
  const int64_t value_at = (stage.chunk.token * a.n.value_heads + at.head) * a.n.value_dim + at.first_channel;
  const int length = static_cast<int>(stage.chunk.length);
  auto& results = kRecomputes ? errors : answers;
  constexpr bool kUniform = kHasRegisters<kWidth, kSlice>;
  results.template each_pair_within<kUniform>(length, at.channels, [&](float first, float second, int row, int c) {
    const int64_t to = value_at + row * stride + c;
    if constexpr (kRecomputes) {
      SplitPair(first, second).store(a.errors.high + to, a.errors.low() + to);
    } else if constexpr (std::is_same_v<O, float>) {
      float* const o = static_cast<float*>(a.o) + value_at + row * static_cast<int>(stride) + c;
      store_words<2>(o, {{__float_as_uint(a.scale * first), __float_as_uint(a.scale * second)}});
    } else {
      attention_mma::store_pair(static_cast<bf16*>(a.o) + to, pack_bf16(a.scale * first, a.scale * second));
    }
  });
}

template <int kWidth, int kSlice, bool kRecomputes, Rule kRule, class O>
__global__ void __launch_bounds__(kThreads, 1) gated_delta_mma_kernel(DeltaScan a) {
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth, kSlice>*>(raw);
  const HeadSlice<kSlice> at(a.n);
  at.begin(s.inputs, a.n, a.in, a.chunks, a.doc_start, nullptr, a.scale, a.additive);
  const int dk = static_cast<int>(a.n.key_dim);
  StateRows<kWidth / 16, kSlice / 32> state;
  if (warp_number() < kStateWarps) {
    load_state(state, a.state != nullptr ? a.state + at.task * a.n.state() + at.first_channel : nullptr, a.n.value_dim,
               dk, at.channels);
  }
  run_pipeline<!kRecomputes, false>(s, [&](int i, const Stage<kWidth, kSlice>& stage, const Pairs& pairs) {
    if (stage.begins_document) {
      const float* const from = a.initial != nullptr ? a.initial + at.head * a.n.state() + at.first_channel : nullptr;
      load_state(state, from, a.n.value_dim, dk, at.channels);
    }
    if constexpr (kRecomputes) {
      if (bf16* const to = place_of_start(a, at, stage.chunk.state, i == 0); to != nullptr) {
        state.template each_pair_within<true>(dk, at.channels, [&](float first, float second, int row, int c) {
          attention_mma::store_pair(to + row * a.n.value_dim + c, pack_bf16(first, second));
        });
      }
    }
    pass_chunk<kRecomputes, O>(state, a, stage, pairs, at, is_additive<kRule>(a.additive));
  });
  if (a.state != nullptr && warp_number() < kStateWarps) {
    state.each_pair([&](float first, float second, int row, int c) {
      if (row < dk && c < at.channels) {
        float* const to = a.state + at.task * a.n.state() + row * a.n.value_dim + at.first_channel + c;
        to[0] = first;
        to[1] = second;
      }
    });
  }
}

/// O: of the answers, fp32 where additive.
template <bool kRecomputes, class O> void launch_scan(Stream& stream, const DeltaScan& f) {
  constexpr bool kIsAdditive = std::is_same_v<O, float>;
  HEBB_ASSERT(kRecomputes || f.additive == kIsAdditive);
  dispatch_slices(f.n, f.additive, [&](auto width, auto slice, auto rule, dim3 blocks) {
    constexpr Rule kRule = kIsAdditive ? Rule::additive : decltype(rule)::value;
    if constexpr (kRecomputes || kIsAdditive || kRule != Rule::additive) {
      HEBB_LAUNCH((gated_delta_mma_kernel<width, slice, kRecomputes, kRule, O>), blocks, kThreads,
                  sizeof(Shared<width, slice>), stream, f);
    }
  });
}

}  // namespace

void forward(Stream& stream, const GatedDeltaForward& a) {
  DeltaScan f(a);
  f.o = a.o.data;
  f.state = a.state.as<float>();
  dispatch_float(a.o.dtype, [&]<class O>(O) { launch_scan<false, O>(stream, f); });
}

void recompute(Stream& stream, const GatedDeltaBackward& a, const Handed& to) {
  DeltaScan f(a);
  f.errors = to.errors;
  f.starts = to.starts;
  f.rounded_initial = to.initial;
  launch_scan<true, bf16>(stream, f);
}

}  // namespace hebb::HEBB_DEVICE::delta_mma
