#include "kernels/lact/muon.cuh"

// Updates of all rows in waves, T / C of them, each of 3 launches (18 with Muon) whose blocks are tiles of 64 x 64;
// then all tokens read, 2 launches. FLOPs a token and head: 6 h D, and 12 h D where a chunk is gathered. Products in
// fp32, or fp64, on CUDA cores, where two shared loads for 16 multiply-adds allow half their peak, or in TF32 on tensor
// cores (tiles_mma.cuh), bound by the tiles' operands from L2.
//
// The published model (12 layers, 4 heads of h = D = 192, C = 512) on 8 x 4,096 tokens: 80 GFLOP a layer forward, 255
// back, 4.0 TFLOP in all, and 19 GB from L2 a layer on tensor cores.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace lact;

/// silu(W0 q) * (W2 q); tiles [T, h].
template <class S> struct ReadHidden {
  Fast<S> a;

  template <class Stage> __device__ void operator()(Stage& stage, int64_t pair, int64_t row, int64_t column) const {
    typename Stage::Sums z0 = {}, z2 = {};
    a.each_run(pair, row, [&](int version, int64_t first, int64_t last) {
      a.through_first(stage, a.tokens(a.q, pair, 0, first, last), row, a.weights_of(pair, version, 0),
                      a.weights_of(pair, version, 2), column, z0, z2);
    });
    S* const out = a.part(pair, a.at.hidden);
    tile_each(stage, row, column, a.length, a.fast, [&](int64_t r, int64_t c, int i, int j) {
      out[r * a.fast + c] = z0[i][j] * sigmoid(z0[i][j]) * z2[i][j];
    });
  }
};

/// y = W1 of that; tiles [T, D].
template <class S> struct ReadOut {
  Fast<S> a;
  S* y;

  template <class Stage> __device__ void operator()(Stage& stage, int64_t pair, int64_t row, int64_t column) const {
    typename Stage::Sums sums = {};
    const S* const hidden = a.part(pair, a.at.hidden);
    a.each_run(pair, row, [&](int version, int64_t first, int64_t last) {
      tile_product(stage, a.channels(hidden, first, last), row, a.straight(a.weights_of(pair, version, 1), 1), column,
                   a.fast, sums);
    });
    tile_each(stage, row, column, a.length, a.dim,
              [&](int64_t r, int64_t c, int i, int j) { y[a.entry(pair, r) * a.dim + c] = sums[i][j]; });
  }
};

/// What is carried out of the rows, but for the sums.
template <class S> struct Store {
  Fast<S> a;

  __device__ void operator()(int64_t pair, int64_t i) const {
    const int version = a.integers(pair, a.at.version)[a.length - 1];
    const int64_t to = pair * a.all() + i;
    if (version != kCarried) {
      a.weights[to] = a.weights_of(pair, version, i / a.matrix())[i % a.matrix()];
      a.momentum[to] = version == kInitial ? S(0) : a.momentum_of(pair, version)[i];
    }
    if (i == 0) { a.mix_sums[pair] = a.part(pair, a.at.mixed)[a.at.slots]; }
  }
};

template <class S> void forward(Stream& stream, const LactForward& a, const Tensor& memory) {
  const bool carries = a.weights.defined();
  Fast<S> f(a, memory, carries, false);
  f.weights = a.weights.as<S>();
  f.momentum = a.momentum.as<S>();
  f.sums = a.sums.as<S>();
  f.mix_sums = a.mix_sums.as<S>();
  HEBB_LAUNCH(lact_tables_kernel<S>, blocks_for(f.pairs(), 1), kBlockThreads, 0, stream, f);
  for (int64_t slot = 0; slot < f.at.slots; ++slot) { run_update(stream, f, slot, false); }
  if (carries) { run_update(stream, f, f.at.slots, false); }
  each_tile<S>("lact_read_hidden", stream, f.tf32, f.pairs(), f.length, f.fast, ReadHidden<S>{f});
  each_tile<S>("lact_read", stream, f.tf32, f.pairs(), f.length, f.dim, ReadOut<S>{f, a.y.as<S>()});
  if (carries) { each_element("lact_store", stream, f.pairs(), f.all(), Store<S>{f}); }
}

}  // namespace

void run(Stream& stream, const LactForward& a, const LactForwardScratch& scratch) {
  dispatch_real(a.q.dtype, [&]<class S>(S) { forward<S>(stream, a, scratch.memory); });
}

}  // namespace hebb::HEBB_DEVICE
