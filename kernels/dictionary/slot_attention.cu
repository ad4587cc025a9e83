#include "kernels/dictionary/slot_attention.cuh"

// Attention to the slots of a dictionary on the plain cores, for all types and head sizes: tiles of 64 x 64 as in
// attention/tile.cuh, 256 threads. Static shared: 36 KB. Bound: fp32 multiply-adds, the slots of a head coming from L2.
namespace hebb::HEBB_DEVICE::slots {
namespace {

struct Lines {
  int64_t value[kTile];
  float bias[kTile], temp[kTile];
};

/// Lines of up to 64 slots from `base` on; nothing past `count`.
template <class T>
__device__ __forceinline__ void load_slot_lines(Shared& s, Lines& lines, const Slots<T>& slots, const ReadLayout& n,
                                                int64_t unit, int64_t base, int64_t count) {
  if (threadIdx.x < kTile) {
    const int64_t r = base + threadIdx.x, line = unit * slots.room + r;
    const bool exists = r < count;
    s.key_line[threadIdx.x] = !exists ? -1 : slots.shared_keys ? unit % n.kv_heads * slots.room + r : line;
    lines.value[threadIdx.x] = exists ? line : -1;
    lines.bias[threadIdx.x] = exists && slots.bias != nullptr ? slots.bias[line] : 0.0f;
  }
}

__device__ __forceinline__ void load_temperatures(Lines& lines, const Shared& s, const ReadLayout& n,
                                                  const float* temps, float scale) {
  if (threadIdx.x < kTile) {
    const int64_t line = s.row_line[threadIdx.x];
    lines.temp[threadIdx.x] = temps != nullptr && line >= 0 ? scale * temps[line % n.heads] : scale;
  }
}

/// Adds one tile of keys, whose lines are loaded, to the softmax of the block's queries.
template <class T, int kColumns>
__device__ __forceinline__ void read_tile(float (&out)[4][kColumns], Softmax (&softmax)[4], Shared& s,
                                          const Lines& lines, const SlotRead<T>& a, const T* keys, const T* values,
                                          int first_column) {
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  float scores[4][4];
  multiply_lines(scores, s, a.q, s.row_line, keys, s.key_line, a.n.d);
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const bool exists = s.row_line[4 * y + i] >= 0;
    HEBB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int column = x + 16 * j;
      scores[i][j] =
          exists && s.key_line[column] >= 0 ? lines.temp[4 * y + i] * scores[i][j] + lines.bias[column] : -INFINITY;
    }
  }
  weigh_scores(out, softmax, s, scores);
  add_weighted_lines(out, s, values, lines.value, a.n.dv, first_column);
  __syncthreads();  // lines and weights are replaced
}

template <int kColumns>
__device__ __forceinline__ void write_part(const float (&out)[4][kColumns], const Softmax (&softmax)[4],
                                           const Shared& s, const ReadLayout& n, const DictionaryParts& parts,
                                           const UnitChunk& at, int64_t part, int64_t first_row, int first_column) {
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (s.row_line[4 * y + i] >= 0) {
      const int64_t line = parts.line(n, part, at.unit, first_row + 4 * y + i);
      HEBB_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const int c = first_column + x + 16 * j;
        if (c < n.dv) { parts.sums(line, n.dv)[c] = out[i][j]; }
      }
      if (x == 0 && first_column == 0) {
        parts.statistics(n, line)[0] = softmax[i].top;
        parts.statistics(n, line)[1] = softmax[i].sum;
      }
    }
  }
}

/// Grid: query tiles of the chunk x units, slices of value channels, parts of the slots. o holds the attention to
/// tokens, own_lse its log-sum-exp.
template <class T, int kColumns> __global__ void __launch_bounds__(kThreads) read_slots_kernel(SlotRead<T> a) {
  HEBB_SHARED(Shared, s);
  HEBB_SHARED(Lines, lines);
  const int64_t tiles = a.n.query_tiles(), first_row = blockIdx.x % tiles * kTile;
  const UnitChunk at(a.n, blockIdx.x / tiles, a.steps.first);
  const int first_column = static_cast<int>(blockIdx.y) * 16 * kColumns;
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  const int64_t part = blockIdx.z, width = a.parts.tiles(at.step.slots) * kTile, first_of_part = part * width;
  if (!at.reads() || at.line(a.n, first_row) < 0 || (part > 0 && first_of_part >= at.step.slots)) {
    return;  // the whole block
  }
  load_queries(s, a.n, at, first_row);
  __syncthreads();
  Softmax softmax[4];
  float out[4][kColumns] = {};
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t line = s.row_line[4 * y + i];
    if (line >= 0 && part == 0) {
      softmax[i] = {a.own_lse[line], 1.0f};
      HEBB_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const int c = first_column + x + 16 * j;
        out[i][j] = c < a.n.dv ? to_float(a.o[line * a.n.dv + c]) : 0.0f;
      }
    }
  }
  load_temperatures(lines, s, a.n, a.slot_temp, a.scale);
  for (int64_t base = first_of_part; base < first_of_part + width && base < at.step.slots; base += kTile) {
    load_slot_lines(s, lines, a.slots, a.n, at.unit, base, at.step.slots);
    __syncthreads();
    read_tile(out, softmax, s, lines, a, a.slots.keys, a.slots.values, first_column);
  }
  const int64_t from = a.ring.first(a.n, at), earlier = part > 0 ? 0 : a.ring.earlier(a.n, at);
  __syncthreads();  // with the last tile done, or none
  if (earlier > 0) { load_temperatures(lines, s, a.n, a.ring_temp, a.scale); }
  for (int64_t base = 0; base < earlier; base += kTile) {
    if (threadIdx.x < kTile) {
      const int64_t i = base + threadIdx.x, line = i < earlier ? at.unit * a.ring.size + (from + i) % a.ring.size : -1;
      s.key_line[threadIdx.x] = lines.value[threadIdx.x] = line;
      lines.bias[threadIdx.x] = 0;
    }
    __syncthreads();
    read_tile(out, softmax, s, lines, a, a.ring.k, a.ring.v, first_column);
  }
  if (a.parts.count > 1) {
    write_part(out, softmax, s, a.n, a.parts, at, part, first_row, first_column);
    return;
  }
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t line = s.row_line[4 * y + i];
    HEBB_UNROLL
    for (int j = 0; j < kColumns; ++j) { out[i][j] /= softmax[i].sum; }
    if (a.lse != nullptr && x == 0 && line >= 0 && blockIdx.y == 0) {
      a.lse[line] = softmax[i].top + logf(softmax[i].sum);
    }
  }
  write_lines(a.o, s.row_line, a.n.dv, first_column, out, false);
}

// Joins the parts of the queries of chunks. A warp has one query of one unit and step.
template <class T> struct JoinParts {
  SlotRead<T> a;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t number = item / a.n.queries();
    const UnitChunk at(a.n, a.steps.unit(number), a.steps.step(number));
    const int64_t query = item % a.n.queries(), line = at.reads() ? at.line(a.n, query) : -1;
    if (line < 0) { return; }
    const auto each_part = [&](auto&& f) { a.parts.each(a.n, at.step.slots, number, query, f); };
    float top = -INFINITY, sum = 0;
    each_part([&](int64_t of) { top = fmaxf(top, a.parts.statistics(a.n, of)[0]); });
    each_part([&](int64_t of) { sum += a.parts.statistics(a.n, of)[1] * expf(a.parts.statistics(a.n, of)[0] - top); });
    for (int64_t c = lane; c < a.n.dv; c += 32) {
      float o = 0;
      each_part([&](int64_t of) { o += a.parts.sums(of, a.n.dv)[c] * expf(a.parts.statistics(a.n, of)[0] - top); });
      a.o[line * a.n.dv + c] = from_float<T>(o / sum);
    }
    if (a.lse != nullptr && lane == 0) { a.lse[line] = top + logf(sum); }
  }
};

/// Probability of a query and a slot from their product; 0 where one of them does not exist.
__device__ __forceinline__ float probability(const Shared& s, const Lines& lines, int query, int slot, float product) {
  const bool exists = s.row_line[query] >= 0 && s.key_line[slot] >= 0;
  return exists ? expf(lines.temp[query] * product + lines.bias[slot] - s.lse[query]) : 0.0f;
}

/// d_q of a tile of queries: goes over the slots. Grid as of read_slots_kernel, slices of key channels.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads) slot_queries_kernel(SlotReadBackward<T> a) {
  HEBB_SHARED(Shared, s);
  HEBB_SHARED(Lines, lines);
  const int64_t tiles = a.n.query_tiles(), first_row = blockIdx.x % tiles * kTile;
  const UnitChunk at(a.n, blockIdx.x / tiles, a.steps.first);
  const int first_column = static_cast<int>(blockIdx.y) * 16 * kColumns;
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  if (!at.reads() || at.line(a.n, first_row) < 0) {
    return;  // the whole block
  }
  load_queries(s, a.n, at, first_row);
  __syncthreads();
  load_statistics(s, a.d_o, a.o, a.lse, a.n.dv);
  load_temperatures(lines, s, a.n, a.slot_temp, a.scale);
  float sums[4][kColumns] = {};  // of scale d_score k
  for (int64_t base = 0; base < at.step.slots; base += kTile) {
    load_slot_lines(s, lines, a.slots, a.n, at.unit, base, at.step.slots);
    __syncthreads();
    float products[4][4], d_p[4][4];
    multiply_lines(products, s, a.q, s.row_line, a.slots.keys, s.key_line, a.n.d);
    multiply_lines(d_p, s, a.d_o, s.row_line, a.slots.values, lines.value, a.n.dv);
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int query = 4 * y + i, slot = x + 16 * j;
        s.weights[query][slot] =
            a.scale * probability(s, lines, query, slot, products[i][j]) * (d_p[i][j] - s.delta[query]);
      }
    }
    add_weighted_lines(sums, s, a.slots.keys, s.key_line, a.n.d, first_column);
    __syncthreads();  // lines and weights are replaced
  }
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t line = s.row_line[4 * y + i];
    const float temp = a.slot_temp != nullptr && line >= 0 ? a.slot_temp[line % a.n.heads] : 1.0f;
    float along = 0;
    HEBB_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const int c = first_column + x + 16 * j;
      along += line >= 0 && c < a.n.d ? to_float(a.q[line * a.n.d + c]) * sums[i][j] : 0.0f;
      sums[i][j] *= temp;
    }
    along = warp_sum<16>(along);
    if (a.temp_sums != nullptr && x == 0 && line >= 0) { a.temp_sums[blockIdx.y * a.queries + line] = along; }
  }
  write_lines(a.d_q, s.row_line, a.n.d, first_column, sums, true);
}

/// d_keys and d_values of a tile of slots: goes over the chunk's queries. Tiles are [slot][query] here. Grid: tiles of
/// slots x units, slices of channels.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads) slot_gradients_kernel(SlotReadBackward<T> a) {
  HEBB_SHARED(Shared, s);
  HEBB_SHARED(Lines, lines);
  const int64_t tiles = (a.slots.room + kTile - 1) / kTile, base = blockIdx.x % tiles * kTile;
  const UnitChunk at(a.n, blockIdx.x / tiles, a.steps.first);
  const int first_column = static_cast<int>(blockIdx.y) * 16 * kColumns;
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  if (!at.reads() || base >= at.step.slots) {
    return;  // the whole block
  }
  load_slot_lines(s, lines, a.slots, a.n, at.unit, base, at.step.slots);
  float d_keys[4][kColumns] = {}, d_values[4][kColumns] = {};
  for (int64_t first = 0; at.line(a.n, first) >= 0; first += kTile) {
    __syncthreads();  // the last tile's lines and weights were read
    load_queries(s, a.n, at, first);
    __syncthreads();
    load_statistics(s, a.d_o, a.o, a.lse, a.n.dv);
    load_temperatures(lines, s, a.n, a.slot_temp, a.scale);
    float products[4][4], d_p[4][4];
    multiply_lines(products, s, a.slots.keys, s.key_line, a.q, s.row_line, a.n.d);
    multiply_lines(d_p, s, a.slots.values, lines.value, a.d_o, s.row_line, a.n.dv);
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int slot = 4 * y + i, query = x + 16 * j;
        const float p = probability(s, lines, query, slot, products[i][j]);
        s.weights[slot][query] = p;
        d_p[i][j] = lines.temp[query] * p * (d_p[i][j] - s.delta[query]);
      }
    }
    add_weighted_lines(d_values, s, a.d_o, s.row_line, a.n.dv, first_column);
    __syncthreads();
    HEBB_UNROLL
    for (int i = 0; i < 16; ++i) { s.weights[4 * y + i / 4][x + 16 * (i % 4)] = d_p[i / 4][i % 4]; }
    add_weighted_lines(d_keys, s, a.q, s.row_line, a.n.d, first_column);
  }
  write_lines(a.d_keys, s.key_line, a.n.d, first_column, d_keys, true);
  write_lines(a.d_values, lines.value, a.n.dv, first_column, d_values, true);
}

}  // namespace

template <class T> void read_slots(Stream& stream, int64_t batch, const SlotRead<T>& a) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (a.on_tensor_cores) { read_slots_mma(stream, batch, a); }
  }
  if (!a.on_tensor_cores) {
    HEBB_ASSERT(a.steps.count == 1 && a.old.table == nullptr);
    dispatch_width(a.n.dv, [&](auto columns, unsigned slices) {
      const dim3 grid(blocks_for(a.n.query_tiles() * a.n.units(batch), 1), slices,
                      static_cast<unsigned>(a.parts.count));
      HEBB_LAUNCH((read_slots_kernel<T, columns()>), grid, kThreads, 0, stream, a);
    });
  }
  if (a.parts.count > 1) {
    each_warp("join_parts", stream, a.n.units(batch) * a.steps.count * a.n.queries(), JoinParts<T>{a});
  }
}

template <class T> void read_slots_backward(Stream& stream, int64_t batch, const SlotReadBackward<T>& a) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (a.statistics != nullptr) {
      read_slots_backward_mma(stream, batch, a, NoUndo{});
      return;
    }
  }
  dispatch_width(a.n.d, [&](auto columns, unsigned slices) {
    HEBB_LAUNCH((slot_queries_kernel<T, columns()>), dim3(blocks_for(a.n.query_tiles() * a.n.units(batch), 1), slices),
                kThreads, 0, stream, a);
  });
  dispatch_width(std::max(a.n.d, a.n.dv), [&](auto columns, unsigned slices) {
    const int64_t tiles = (a.slots.room + kTile - 1) / kTile;
    HEBB_LAUNCH((slot_gradients_kernel<T, columns()>), dim3(blocks_for(tiles * a.n.units(batch), 1), slices), kThreads,
                0, stream, a);
  });
}

template void read_slots(Stream&, int64_t, const SlotRead<float>&);
template void read_slots(Stream&, int64_t, const SlotRead<bf16>&);
template void read_slots_backward(Stream&, int64_t, const SlotReadBackward<float>&);
template void read_slots_backward(Stream&, int64_t, const SlotReadBackward<bf16>&);

}  // namespace hebb::HEBB_DEVICE::slots
