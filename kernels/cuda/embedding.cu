#include "kernels/embedding.h"

#include <algorithm>

#include "kernels/cuda/common/sort.h"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 128;
constexpr int kChunk = 32;  // sorted tokens of one block

// Grid: tokens. HBM: reads and writes one row of d.
template <class Y, class Table>
__global__ void __launch_bounds__(kThreads) embedding_forward_kernel(Y* y, const Table* table, const int32_t* ids, int64_t width,
                                                                    bool vector) {
  constexpr int N = kPack<bf16>;
  const Table* const from = table + static_cast<int64_t>(ids[blockIdx.x]) * width;
  Y* const to = y + static_cast<int64_t>(blockIdx.x) * width;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * N; at < width; at += kThreads * N) {
    float value[N];
    load_pack(value, from, at, width, vector);
    store_pack(to, at, width, vector, value);
  }
}

// The gradient is a sum by id over tokens sorted by id, in two stages, each in the order of the tokens. Stage one sums chunks of
// kChunk sorted tokens: ids that lie within a chunk are finished, sums of an id that comes from the chunk before or goes on in the
// next are kept in open[chunk][0 or 1]. Stage two joins those.
struct Segments {
  const int32_t *ids, *positions;  // sorted
  int64_t count;

  __device__ int64_t end(int64_t chunk) const { return (chunk + 1) * kChunk < count ? (chunk + 1) * kChunk : count; }
  __device__ bool comes_from_before(int64_t i) const { return i > 0 && ids[i - 1] == ids[i]; }
  __device__ bool goes_on(int64_t i) const { return i + 1 < count && ids[i + 1] == ids[i]; }
};

template <int N>
__device__ __forceinline__ void add_row(float* row, int64_t at, int64_t width, bool vector, const float (&sum)[N]) {
  float value[N];
  load_pack(value, row, at, width, vector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) {
    value[j] += sum[j];
  }
  store_pack(row, at, width, vector, value);
}

// Grid: chunks x groups of kThreads packs. HBM: reads d_y once, reads and writes a row of d_table for each id that occurs.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_chunks_kernel(float* d_table, float* open, const T* d_y, Segments s, int64_t width,
                                                             bool vector) {
  constexpr int N = kPack<T>;
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  const int64_t chunk = blockIdx.x, begin = chunk * kChunk, end = s.end(chunk);
  bool began_here = !s.comes_from_before(begin);
  float sum[N] = {};
  for (int64_t i = begin; i < end; ++i) {
    float value[N];
    load_pack(value, d_y + static_cast<int64_t>(s.positions[i]) * width, at, width, vector);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      sum[j] += value[j];
    }
    const bool goes_on = s.goes_on(i);
    if (goes_on && i + 1 < end) {
      continue;
    }
    if (began_here && !goes_on) {
      add_row(d_table + static_cast<int64_t>(s.ids[i]) * width, at, width, vector, sum);
    } else {
      store_pack(open + (2 * chunk + (began_here ? 1 : 0)) * width, at, width, vector, sum);
    }
    began_here = true;
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      sum[j] = 0;
    }
  }
}

// Grid: as before. The chunk in which an open id begins adds up its later parts.
__global__ void __launch_bounds__(kThreads) join_chunks_kernel(float* d_table, const float* open, Segments s, int64_t width, bool vector) {
  constexpr int N = kPack<float>;
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  const int64_t chunk = blockIdx.x, last = s.end(chunk) - 1;
  const int32_t id = s.ids[last];
  const int64_t begin = chunk * kChunk;
  if (!s.goes_on(last) || (s.comes_from_before(begin) && s.ids[begin] == id)) {
    return;  // nothing is open, or it began earlier
  }
  float sum[N];
  load_pack(sum, open + (2 * chunk + 1) * width, at, width, vector);
  for (int64_t next = chunk + 1;; ++next) {
    float value[N];
    load_pack(value, open + 2 * next * width, at, width, vector);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      sum[j] += value[j];
    }
    const int64_t next_last = s.end(next) - 1;
    if (s.ids[next_last] != id || !s.goes_on(next_last)) {
      break;
    }
  }
  add_row(d_table + static_cast<int64_t>(id) * width, at, width, vector, sum);
}

int64_t chunks_of(int64_t tokens) { return (tokens + kChunk - 1) / kChunk; }

int64_t scratch_bytes(int64_t tokens, int64_t width) {
  return (sort_scratch_bytes(tokens) + 15) / 16 * 16 + chunks_of(tokens) * 2 * width * static_cast<int64_t>(sizeof(float));
}

/// One run of tokens whose scratch fits into the stream's workspace.
template <class T>
void backward(Stream& stream, float* d_table, const T* d_y, const int32_t* ids, int64_t tokens, int64_t width, int64_t vocab) {
  auto* const scratch = static_cast<char*>(workspace(stream).data);
  const SortedKeys sorted = sort_keys(stream, ids, tokens, vocab, scratch);
  auto* const open = reinterpret_cast<float*>(scratch + (sort_scratch_bytes(tokens) + 15) / 16 * 16);
  const Segments segments{sorted.keys, sorted.positions, tokens};
  const bool vector = can_vectorise<kPack<T>>(width, d_table, open, d_y);
  const auto groups = [&](int64_t pack) { return blocks_for((width + pack - 1) / pack, kThreads); };
  const unsigned chunks = blocks_for(chunks_of(tokens), 1);
  HEBB_LAUNCH(sum_chunks_kernel<T>, dim3(chunks, groups(kPack<T>)), kThreads, 0, stream, d_table, open, d_y, segments, width, vector);
  HEBB_LAUNCH(join_chunks_kernel, dim3(chunks, groups(kPack<float>)), kThreads, 0, stream, d_table, open, segments, width, vector);
}

}  // namespace

void run(Stream& stream, const EmbeddingForward& a) {
  const int64_t tokens = a.ids.numel(), width = a.table.size(1);
  if (tokens == 0) {
    return;
  }
  dispatch_float(a.y.dtype, [&](auto y) {
    dispatch_float(a.table.dtype, [&](auto table) {
      using Y = decltype(y);
      using Table = decltype(table);
      HEBB_LAUNCH((embedding_forward_kernel<Y, Table>), blocks_for(tokens, 1), kThreads, 0, stream, a.y.as<Y>(), a.table.as<Table>(),
                  a.ids.as<int32_t>(), width, can_vectorise<kPack<bf16>>(width, a.y.data, a.table.data));
    });
  });
}

void run(Stream& stream, const EmbeddingBackward& a) {
  const int64_t tokens = a.ids.numel(), vocab = a.d_table.size(0), width = a.d_table.size(1);
  int64_t run_tokens = std::max<int64_t>(tokens, 1);
  while (run_tokens > 1 && scratch_bytes(run_tokens, width) > workspace(stream).bytes) {
    run_tokens = (run_tokens + 1) / 2;
  }
  dispatch_float(a.d_y.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t first = 0; first < tokens; first += run_tokens) {
      backward(stream, a.d_table.as<float>(), a.d_y.as<T>() + first * width, a.ids.as<int32_t>() + first,
               std::min(run_tokens, tokens - first), width, vocab);
    }
  });
}

}  // namespace hebb::HEBB_DEVICE
