#include "kernels/common/cuda/scatter.cuh"

#include <algorithm>

#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/common/cuda/sort.cuh"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 128;
constexpr int kChunk = 32;  // sorted entries of one block

// A sum by id over entries sorted by id, in two stages, each in the order of the entries. Stage one sums chunks of
// kChunk sorted entries: ids that lie within a chunk are finished, sums of an id that comes from the chunk before or
// goes on in the next are kept in open[chunk][0 or 1]. Stage two joins those.
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
  for (int j = 0; j < N; ++j) { value[j] += sum[j]; }
  store_pack(row, at, width, vector, value);
}

/// Rows of a run of entries, by their positions in it.
template <class T> struct Source {
  const T* rows;         // that of position 0 first
  const float* factors;  // of the run, or null
  int64_t stride, per_row,
      before;  // entries of the first row before the run: with a position and one row less than 2^31

  Source(const ScatterRows& from, int64_t first)
      : rows(static_cast<const T*>(from.data) + first / from.per_row * from.stride),
        factors(from.factors != nullptr ? from.factors + first : nullptr),
        stride(from.stride),
        per_row(from.per_row),
        before(first % from.per_row) {}

  template <int N>
  __device__ __forceinline__ void load(float (&value)[N], int32_t position, int64_t at, int64_t width,
                                       bool vector) const {
    const float factor = factors != nullptr ? factors[position] : 1.0f;
    load_pack(value, rows + Split(before + position, per_row).quotient * stride, at, width, vector);
    if (factors != nullptr) {
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { value[j] *= factor; }
    }
  }
};

// Grid: chunks x groups of kThreads packs. HBM: reads a source row an entry, reads and writes a row of the table for
// each id that occurs.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_chunks_kernel(float* table, float* open, Source<T> from, Segments s, int64_t width, bool vector) {
  constexpr int N = kPack<T>;
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  const int64_t chunk = blockIdx.x, begin = chunk * kChunk, end = s.end(chunk);
  bool began_here = !s.comes_from_before(begin);
  float sum[N] = {};
  int32_t position = s.positions[begin], id = s.ids[begin];
  for (int64_t i = begin; i < end; ++i) {
    float value[N];
    from.load(value, position, at, width, vector);
    // The next entry is known when its row is wanted; stores would keep the compiler from asking early.
    const bool is_last = i + 1 == s.count;
    const int64_t next = is_last ? i : i + 1;
    position = s.positions[next];
    const int32_t own = id;
    id = s.ids[next];
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { sum[j] += value[j]; }
    const bool goes_on = !is_last && id == own;
    if (goes_on && i + 1 < end) { continue; }
    if (began_here && !goes_on) {
      add_row(table + static_cast<int64_t>(own) * width, at, width, vector, sum);
    } else {
      store_pack(open + (2 * chunk + (began_here ? 1 : 0)) * width, at, width, vector, sum);
    }
    began_here = true;
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { sum[j] = 0; }
  }
}

// Grid: as before. The chunk in which an open id begins adds up its later parts.
__global__ void __launch_bounds__(kThreads)
    join_chunks_kernel(float* table, const float* open, Segments s, int64_t width, bool vector) {
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
    for (int j = 0; j < N; ++j) { sum[j] += value[j]; }
    const int64_t next_last = s.end(next) - 1;
    if (s.ids[next_last] != id || !s.goes_on(next_last)) { break; }
  }
  add_row(table + static_cast<int64_t>(id) * width, at, width, vector, sum);
}

int64_t chunks_of(int64_t entries) { return (entries + kChunk - 1) / kChunk; }
int64_t rounded(int64_t bytes) { return (bytes + 15) / 16 * 16; }

/// Parts of the workspace: ids, the sort's, open sums.
struct Scratch {
  int64_t sort, open, end;

  Scratch(int64_t entries, int64_t width)
      : sort(rounded(entries * static_cast<int64_t>(sizeof(int32_t)))),
        open(sort + rounded(sort_scratch_bytes(entries))),
        end(open + chunks_of(entries) * 2 * width * static_cast<int64_t>(sizeof(float))) {}
};

struct GatherIds {
  int32_t* out;
  ScatterIds ids;
  int64_t first;

  __device__ void operator()(int64_t, int64_t i) const { out[i] = ids.at(first + i); }
};

/// One run of entries whose scratch fits into the workspace.
template <class T>
void scatter_run(Stream& stream, float* table, int64_t table_rows, int64_t width, int64_t count, const ScatterIds& ids,
                 int64_t first, const Source<T>& from) {
  auto* const memory = static_cast<char*>(stream_scratch(stream).data);
  const Scratch scratch(count, width);
  auto* const run_ids = reinterpret_cast<int32_t*>(memory);
  each_element("scatter_ids", stream, 1, count, GatherIds{run_ids, ids, first});
  const SortedKeys sorted = sort_keys(stream, run_ids, count, table_rows, memory + scratch.sort);
  auto* const open = reinterpret_cast<float*>(memory + scratch.open);
  const Segments segments{sorted.keys, sorted.positions, count};
  const bool vector = can_vectorise<kPack<T>>(width, table, open, from.rows) && from.stride % kPack<T> == 0;
  const auto groups = [&](int64_t pack) { return blocks_for((width + pack - 1) / pack, kThreads); };
  const unsigned chunks = blocks_for(chunks_of(count), 1);
  HEBB_LAUNCH(sum_chunks_kernel<T>, dim3(chunks, groups(kPack<T>)), kThreads, 0, stream, table, open, from, segments,
              width, vector);
  HEBB_LAUNCH(join_chunks_kernel, dim3(chunks, groups(kPack<float>)), kThreads, 0, stream, table, open, segments, width,
              vector);
}

}  // namespace

void scatter_rows(Stream& stream, float* table, int64_t table_rows, int64_t width, int64_t count, const ScatterIds& ids,
                  const ScatterRows& from) {
  int64_t run = std::max<int64_t>(count, 1);
  while (run > 1 && Scratch(run, width).end > stream_scratch(stream).bytes) { run = (run + 1) / 2; }
  dispatch_float(from.dtype, [&]<class T>(T) {
    for (int64_t first = 0; first < count; first += run) {
      scatter_run(stream, table, table_rows, width, std::min(run, count - first), ids, first, Source<T>(from, first));
    }
  });
}

}  // namespace hebb::HEBB_DEVICE
