#include "kernels/embedding/embedding.h"

#include "kernels/common/cuda/scatter.cuh"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 128;

// Grid: tokens. HBM: reads and writes one row of d.
template <class Y, class Table>
__global__ void __launch_bounds__(kThreads)
    embedding_forward_kernel(Y* y, const Table* table, const int32_t* ids, int64_t width, bool vector) {
  constexpr int N = kPack<bf16>;
  const Table* const from = table + static_cast<int64_t>(ids[blockIdx.x]) * width;
  Y* const to = y + static_cast<int64_t>(blockIdx.x) * width;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * N; at < width; at += kThreads * N) {
    float value[N];
    load_pack(value, from, at, width, vector);
    store_pack(to, at, width, vector, value);
  }
}

}  // namespace

void run(Stream& stream, const EmbeddingForward& a) {
  const int64_t tokens = a.ids.numel(), width = a.table.size(1);
  if (tokens == 0) { return; }
  dispatch_float(a.y.dtype, [&]<class Y>(Y) {
    dispatch_float(a.table.dtype, [&]<class Table>(Table) {
      HEBB_LAUNCH((embedding_forward_kernel<Y, Table>), blocks_for(tokens, 1), kThreads, 0, stream, a.y.as<Y>(),
                  a.table.as<Table>(), a.ids.as<int32_t>(), width,
                  can_vectorise<kPack<bf16>>(width, a.y.data, a.table.data));
    });
  });
}

void run(Stream& stream, const EmbeddingBackward& a) {
  const int64_t width = a.d_table.size(1);
  scatter_rows(stream, a.d_table.as<float>(), a.d_table.size(0), width, a.ids.numel(), {a.ids.as<int32_t>()},
               {a.d_y.data, a.d_y.dtype, width});
}

}  // namespace hebb::HEBB_DEVICE
