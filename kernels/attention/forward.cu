#include "kernels/attention/mma.cuh"
#include "kernels/attention/scratch.h"
#include "kernels/attention/tile.cuh"

// Flash attention in fp32 on the plain cores, for all head sizes and masks of the family; in bf16 and with the usual
// head sizes tensor cores do it (mma_forward.cu). Grid: 64 stacked rows x kv heads x spaces, slices of 256
// value channels. Static shared: 35 KB. FLOPs: 2 H (D + Dv) per pair of the tiles that hold a visible one. Bound: fp32
// multiply-adds; 16 of them for 8 shared loads in the scores, 4 N for 4 + N in the results (N = Dv / 16). Few
// queries to more than 256 keys: few_queries.cu.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace attention;

template <class T> struct AttentionForwardTask {
  Inputs<T> in;
  T* o;
  float* lse;
};

template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads) attention_forward_kernel(AttentionForwardTask<T> a) {
  HEBB_SHARED(Shared, s);
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  const HeadLines at = head_lines(a.in, a.in.rows());
  const int first_column = static_cast<int>(blockIdx.y) * 16 * kColumns;
  load_rows(s, a.in, at, at.first);
  __syncthreads();
  const int64_t last_row = a.in.rows() - at.first < kTile ? a.in.rows() - at.first - 1 : kTile - 1;
  const int64_t last_key = s.hi[last_row];
  Softmax rows[4];
  float out[4][kColumns] = {};
  for (int64_t base = s.lo[0] / kTile * kTile; base < last_key; base += kTile) {
    load_keys(s, a.in, at, base, true);
    __syncthreads();
    float scores[4][4];
    multiply_lines(scores, s, a.in.q, s.row_line, a.in.k, s.key_line, a.in.d);
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t line = s.key_line[x + 16 * j];
        const bool visible = sees(s, 4 * y + i, base + x + 16 * j);
        const float bias = visible && a.in.bias != nullptr ? a.in.bias[line] : 0.0f;
        scores[i][j] = visible ? a.in.scale * scores[i][j] + bias : -INFINITY;
      }
    }
    weigh_scores(out, rows, s, scores);
    add_weighted_lines(out, s, a.in.v, s.key_line, a.in.dv, first_column);
    __syncthreads();  // the key lines and weights are replaced
  }
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float inverse = rows[i].sum > 0.0f ? 1.0f / rows[i].sum : 0.0f;
    HEBB_UNROLL
    for (int j = 0; j < kColumns; ++j) { out[i][j] *= inverse; }
    const int64_t line = s.row_line[4 * y + i];
    if (a.lse != nullptr && x == 0 && line >= 0 && blockIdx.y == 0) {
      a.lse[line] = rows[i].top + logf(rows[i].sum);  // -inf without keys
    }
  }
  write_lines(a.o, s.row_line, a.in.dv, first_column, out, false);
}

}  // namespace

void run(Stream& stream, const AttentionForward& a, const AttentionForwardScratch& scratch) {
  if (a.q.numel() == 0) { return; }
  if (scratch.partial.defined()) {
    forward_few(stream, a, scratch.partial);
    return;
  }
  if (scratch.on_tensor_cores) {
    attention_mma::forward(stream, a);
    return;
  }
  dispatch_float(a.q.dtype, [&]<class T>(T) {
    const AttentionForwardTask<T> f{inputs_of<T>(a.q, a.k, a.v, a.lo, a.hi, a.bias, a.scale), a.o.as<T>(),
                                    a.lse.as<float>()};
    const int64_t tiles = (f.in.tokens * f.in.group + kTile - 1) / kTile * f.in.kv_heads * a.k.size(0);
    dispatch_width(f.in.dv, [&](auto columns, unsigned slices) {
      HEBB_LAUNCH((attention_forward_kernel<T, columns()>), dim3(blocks_for(tiles, 1), slices), kThreads, 0, stream, f);
    });
  });
}

}  // namespace hebb::HEBB_DEVICE
