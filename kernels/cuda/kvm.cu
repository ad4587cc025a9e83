#include "kernels/cuda/common/block.h"
#include "kernels/cuda/common/kvm_rows.h"

// The windows of all tokens first, by the attention kernels; then step by step: memory keys of the chunk that leaves the window, scores
// against the rows, founders, new rows, scores against those, joins, readout (common/row_attention.h). Eight launches a step of C tokens,
// of B K C warps, B K m / 64 and B K ceil(C G / 64) blocks, and one with B K blocks.
// FLOPs a token: 2 H (D + Dv)(m + (W - 1/2) C) + 2 K D m. Bound: fp32 multiply-adds for long chunks and many rows, else the latency of
// the launches, which follow each other.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace kvm;
using rows::Best, rows::kTile;

/// Of a token and a tile of rows: the largest score, and the best row that takes tokens.
struct Score {
  float largest;
  Best best;
};

struct Compare {
  Layout n;
  Book book;
  const float* memory_keys;
  Score* partial;  // [B, K, tiles, C]
  int64_t step, sinks;
  bool fresh;      // the rows that the step made; else those before it
};

/// Grid: tiles of rows x units. Static shared: 35 KB.
__global__ void __launch_bounds__(rows::kThreads) kvm_compare_kernel(Compare a, int64_t tiles) {
  HEBB_SHARED(attention::Shared, s);
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  const int64_t unit = blockIdx.x / tiles;
  const Step step = a.n.at(unit / a.n.kv_heads, a.step);
  const int64_t base = (a.fresh ? step.before : 0) + blockIdx.x % tiles * kTile, end = a.fresh ? step.after : step.before;
  if (step.fold == kNone || base >= end || step.after - step.before == a.n.chunk) {
    return;  // the whole block
  }
  for (int64_t first = 0; first < a.n.chunk; first += kTile) {
    if (threadIdx.x < kTile) {
      const int64_t i = first + threadIdx.x, r = base + threadIdx.x;
      s.row_line[threadIdx.x] = i < a.n.chunk ? unit * a.n.chunk + i : -1;
      s.key_line[threadIdx.x] = r < end ? unit * a.book.room + r : -1;
    }
    __syncthreads();
    float scores[4][4];
    attention::multiply_lines(scores, s, a.memory_keys, s.row_line, a.book.key_hats, s.key_line, a.n.d);
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      Score score{-INFINITY, {-INFINITY, static_cast<int32_t>(a.sinks)}};
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int64_t r = base + x + 16 * j;
        if (r < end) {
          score.largest = fmaxf(score.largest, scores[i][j]);
          if (r >= a.sinks) {
            score.best.take(scores[i][j], static_cast<int32_t>(r));
          }
        }
      }
      score.largest = attention::max_of_16(score.largest);
      score.best = rows::best_of_16(score.best);
      const int64_t token = first + 4 * y + i;
      if (x == 0 && token < a.n.chunk) {
        a.partial[blockIdx.x * a.n.chunk + token] = score;
      }
    }
    __syncthreads();  // the lines are replaced
  }
}

/// A token's score over `count` rows, from its parts.
__device__ __forceinline__ Score score_of(const Score* partial, int64_t chunk, int64_t count, int64_t sinks) {
  Score score{-INFINITY, {-INFINITY, static_cast<int32_t>(sinks)}};
  for (int64_t tile = 0; tile * kTile < count; ++tile) {
    const Score& part = partial[tile * chunk];
    score.largest = fmaxf(score.largest, part.largest);
    score.best.take(part.best.score, part.best.row);
  }
  return score;
}

struct Choose {
  Layout n;
  const Score* partial;
  Score* scores;    // [B, K, C]: against the rows before the step
  int32_t *founds;  // [B, K, C]
  int32_t* codes;   // [B, K, C]
  int64_t tiles, step, sinks;
};

/// The tokens that found rows: those least like any row (spec 70, section 4.4). Ranks are counted: C^2 comparisons.
__global__ void __launch_bounds__(kBlockThreads) kvm_founders_kernel(Choose a) {
  const int64_t unit = blockIdx.x, chunk = a.n.chunk, first = unit * chunk;
  const Step step = a.n.at(unit / a.n.kv_heads, a.step);
  if (step.fold == kNone) {
    return;  // the whole block
  }
  const bool all = step.after - step.before == chunk;
  Score* const scores = a.scores + first;
  if (!all) {
    block_each(chunk, [&](int64_t i) { scores[i] = score_of(a.partial + unit * a.tiles * chunk + i, chunk, step.before, a.sinks); });
  }
  block_each(chunk, [&](int64_t i) {
    int64_t rank = 0;
    for (int64_t j = 0; !all && j < chunk; ++j) {
      rank += scores[j].largest < scores[i].largest || (scores[j].largest == scores[i].largest && j < i) ? 1 : 0;
    }
    a.founds[first + i] = rank < step.after - step.before ? 1 : 0;
  });
  block_each(chunk, [&](int64_t i) {
    int64_t row = step.before;
    for (int64_t j = 0; j < i; ++j) {
      row += a.founds[first + j];
    }
    a.codes[first + i] = a.founds[first + i] != 0 ? static_cast<int32_t>(2 * row + 1) : -1;
  });
}

/// The rows that the other tokens join: new rows take part, old ones win ties (section 4.5). Item: a unit's token of the chunk.
struct ChooseTargets {
  Choose of;
  int32_t* out;  // [B, K, T], or null
  int64_t window;

  __device__ void operator()(int64_t unit, int64_t i) const {
    const Layout& n = of.n;
    const Step step = n.at(unit / n.kv_heads, of.step);
    if (step.fold == kNone) {
      return;
    }
    int32_t& code = of.codes[unit * n.chunk + i];
    if (code < 0) {
      Best best = of.scores[unit * n.chunk + i].best;
      const Score fresh = score_of(of.partial + unit * of.tiles * n.chunk + i, n.chunk, step.after - step.before, of.sinks);
      if (step.after > step.before && fresh.best.score > best.score) {
        best = fresh.best;
      }
      code = 2 * best.row;
    }
    if (out != nullptr) {
      out[unit * n.length + step.fold - window * n.chunk + i] = code;
    }
  }
};

/// The newest tokens of the last document to the ring, of which slot p mod size holds position p. Item: unit and age.
struct Store {
  Layout n;
  const float* from;  // [B, T, K, width], or null: ones
  float* ring;
  int64_t size, width, ages;
  bool gates;

  __device__ void operator()(int64_t item, int64_t c) const {
    const int64_t unit = item / ages, row = unit / n.kv_heads, t = n.length - 1 - item % ages;
    const int64_t begin = n.doc_start[(row + 1) * n.length - 1];
    if (t < begin) {
      return;
    }
    const int64_t line = (row * n.length + t) * n.kv_heads + unit % n.kv_heads;
    const float value = from == nullptr ? 1.0f : from[line * width + c];
    ring[(unit * size + (t - begin) % size) * width + c] = gates && from != nullptr ? gate_of(value) : value;
  }
};

struct Parts {
  int32_t *lo, *hi;
  float* own_lse;
  Step* steps;
  Score *partial, *scores;
  float* gates;
  int32_t *codes, *founds;
  float* parts;  // of the readout
};

Parts parts_of(WorkParts& work, const KvmForward& a, int64_t count, int64_t tiles) {
  const int64_t tokens = a.q.size(0) * a.q.size(1), keys = a.k.size(0) * a.k.size(2) * a.rule.chunk;
  return {.lo = work.take<int32_t>(tokens), .hi = work.take<int32_t>(tokens), .own_lse = work.take<float>(tokens * a.q.size(2)),
          .steps = work.take<Step>(a.q.size(0) * count), .partial = work.take<Score>(keys * tiles), .scores = work.take<Score>(keys),
          .gates = work.take<float>(keys), .codes = work.take<int32_t>(keys), .founds = work.take<int32_t>(keys),
          .parts = work.take<float>(dictionary_parts_work(a.q.shape, a.v.shape, a.rule.chunk, a.rows.keys.size(2)))};
}

/// The tokens of each query's window that this pass holds.
void attend_window(Stream& stream, const KvmForward& a, const Parts& p, WorkParts& work) {
  const Shape tokens{a.q.size(0), a.q.size(1)};
  const Tensor lo{p.lo, DType::i32, tokens}, hi{p.hi, DType::i32, tokens}, lse{p.own_lse, DType::f32, {tokens[0], tokens[1], a.q.size(2)}};
  HEBB_DEVICE::run(stream, VisibleKeys{lo, hi, a.doc_start, Sight{.window = 0, .block = a.rule.chunk, .blocks = a.rule.window}, 0});
  Tensor q = a.q;
  if (a.window_temp.defined()) {
    q.data = work.take<float>(q.numel());
    each_element("kvm_heat", stream, lse.numel(), q.size(3),
                 HeatQueries{q.as<float>(), a.q.as<float>(), a.window_temp.as<float>(), q.size(3), static_cast<int>(q.size(2))});
  }
  HEBB_DEVICE::run(stream, AttentionForward{a.o, lse, {}, q, a.k, a.v, lo, hi, {}, a.rule.scale});
  if (a.lse.defined()) {
    each_element("kvm_lse", stream, 1, lse.numel(), rows::CopyFloats{a.lse.as<float>(), p.own_lse});
  }
}

/// One update: from the chunk that leaves the window to the rows.
void fold(Stream& stream, const KvmForward& a, const Update& update, const Parts& p, int64_t tiles) {
  const int64_t units = a.k.size(0) * a.k.size(2), items = units * a.rule.chunk, step = update.step;
  each_warp("kvm_memory_keys", stream, items, MemoryKeys{update});
  const Choose choose{update.n, p.partial, p.scores, p.founds, p.codes, tiles, step, a.rule.sinks};
  const auto compare = [&](bool fresh) {
    HEBB_LAUNCH(kvm_compare_kernel, blocks_for(units * tiles, 1), rows::kThreads, 0, stream,
                Compare{update.n, update.book, update.memory_keys, p.partial, step, a.rule.sinks, fresh}, tiles);
  };
  if (!a.forced) {
    compare(false);
    HEBB_LAUNCH(kvm_founders_kernel, blocks_for(units, 1), kBlockThreads, 0, stream, choose);
  }
  each_warp("kvm_found", stream, items, Found{update});
  if (!a.forced) {
    compare(true);
    each_element("kvm_targets", stream, units, a.rule.chunk, ChooseTargets{choose, a.routes.as<int32_t>(), a.rule.window});
  }
  each_warp("kvm_merge", stream, items, Merge{update});
  if (a.rule.value_norm == KvmValueNorm::updates) {
    each_warp("kvm_read_values", stream, units * update.book.room, ReadValues{update.n, a.rule, update.book, step});
  }
}

void forward(Stream& stream, const KvmForward& a) {
  const int64_t batch = a.q.size(0), length = a.q.size(1), units = batch * a.k.size(2), ring = a.rule.chunk * a.rule.window;
  const int64_t count = rows::steps_of(length, a.rule.chunk), tiles = (a.rows.keys.size(2) + kTile - 1) / kTile;
  WorkParts work(a.work);
  const Parts p = parts_of(work, a, count, tiles);
  attend_window(stream, a, p, work);
  make_steps(stream, a, p.steps, count);
  const Layout n = rows::layout_of(a, p.steps, count);
  if (a.routes.defined() && !a.forced) {
    rows::fill(stream, a.routes.as<int32_t>(), a.routes.numel(), -1);
  }
  auto *const ring_k = a.window.k.as<float>(), *const ring_v = a.window.v.as<float>(), *const ring_gates = a.window.gates.as<float>();
  const Codes codes = a.forced ? Codes{a.routes.as<int32_t>(), true} : Codes{p.codes, false};
  Update update{n, a.rule, Book(a.rows), {a.norm_weight.as<float>(), a.norm_bias.as<float>(), n.d, static_cast<float>(a.rule.eps)},
                   {a.k.as<float>(), a.v.as<float>(), a.gate.as<float>(), ring_k, ring_v, ring_gates, ring},
                   codes, {}, a.memory_keys.as<float>(), p.gates, 0};
  rows::Read read{.n = n, .rows = {update.book.key_hats, update.book.value_hats, nullptr, update.book.room},
                            .ring = {ring_k, ring_v, ring, a.rule.window}, .q = a.q.as<float>(), .o = a.o.as<float>(), .lse = a.lse.as<float>(),
                            .own_lse = p.own_lse, .row_temp = a.state_temp.as<float>(), .ring_temp = a.window_temp.as<float>(),
                            .scale = static_cast<float>(a.rule.scale), .step = 0,
                            .parts = rows::parts_of(n, batch, update.book.room, p.parts)};
  for (int64_t step = 0; step < count; ++step) {
    update.step = read.step = step;
    fold(stream, a, update, p, tiles);
    rows::read_rows(stream, batch, read);
  }
  const int64_t ages = length < ring ? length : ring;
  each_element("kvm_store", stream, units * ages, n.d, Store{n, a.k.as<float>(), ring_k, ring, n.d, ages, false});
  each_element("kvm_store", stream, units * ages, n.dv, Store{n, a.v.as<float>(), ring_v, ring, n.dv, ages, false});
  each_element("kvm_store", stream, units * ages, 1, Store{n, a.gate.as<float>(), ring_gates, ring, 1, ages, true});
}

}  // namespace

void run(Stream& stream, const KvmForward& a) {
  if (a.q.numel() > 0) {
    forward(stream, a);
  }
}

}  // namespace hebb::HEBB_DEVICE
