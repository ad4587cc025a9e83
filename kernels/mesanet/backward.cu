#include "kernels/mesanet/chunk.cuh"
#include "kernels/mesanet/scratch.h"

// R and S at the chunks' starts and the second solves are made as in forward.cu. Then one block a row and head scans
// the chunks in reverse for the gradients at their starts: 2 C dk (dk + dv) FLOPs a chunk. With these all chunks are
// differentiated side by side: C (8 dk (dk + dv) + 6 C (dk + dv)) FLOPs a chunk.
// Bound: the solves' multiply-adds.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace mesa;

struct BackwardParts : MesanetParts {
  BackwardParts(const MesanetSizes& n, int64_t c) : MesanetParts(n, c) {
    const int64_t dk = n.key_dim, dv = n.value_dim;
    for (int* part : {&x, &w, &d_x, &d_keys, &read}) { *part = take(c * dk); }
    for (int* part : {&d_o, &d_values, &value_read}) { *part = take(c * dv); }
    for (int* part : {&products, &pairs_of_d, &weighted}) { *part = take(c * c); }
    for (int* part : {&d_gam, &d_beta, &shares}) { *part = take(2 * c); }
  }
  int x, w, d_x, d_keys, read, d_o, d_values, value_read, products, pairs_of_d, weighted;
  int d_gam, d_beta, shares;
};

struct MesanetBackwardTask {
  StateScan scan;
  BackwardParts parts;
  Rule rule;
  float *d_q, *d_k, *d_v, *d_a, *d_b;
  float *lambda_sums, *solutions;
  const float* d_o;
  const float* x;
  Memory d_starts;  // of all chunks with a number
  int64_t count;    // of chunks
  bool accumulate_a, accumulate_b;

  /// The gradient at R and S behind chunk i; none: 0.
  __device__ Memory behind(int64_t i, int64_t head) const {
    const int64_t next = i + 1 < count ? scan.chunks.at(i + 1).state : -1;
    return next >= 0 ? d_starts.of(next * scan.n.heads + head, scan.n) : Memory{};
  }
};

/// One chunk at a time (docs/layers/mesanet.md, Chunk form).
class Adjoint {
 public:
  __device__ Adjoint(float* scratch, const BackwardParts& parts, const MesanetSizes& sizes, int64_t longest)
      : systems(scratch, parts, sizes, longest), n_(sizes), at_(parts), scratch_(scratch) {}

  /// from: d_o of the chunk's first token.
  __device__ void enter(const HeadInputs& in, const DeltaChunk& chunk, const Memory& start, const float* from) {
    systems.enter(in, chunk, start);
    systems.fill_weights();
    gather_outputs(in, from);
  }

  __device__ void gather_outputs(const HeadInputs& in, const float* from) {
    gather_rows(systems.c, n_.value_dim, from, in.value_stride, 1.0f, d_o());
  }

  /// dO Vᵀ.
  __device__ void multiply_values() {
    const int64_t c = systems.c, dv = n_.value_dim;
    block_product<false, true>(c, c, dv, 1.0f, {d_o(), dv}, {systems.values(), dv}, false, {pairs(), c});
  }

  /// W, the solutions for dX = diag(e^gam) dO Sᵀ + (M * (dO Vᵀ)) K; to: of the chunk's first token.
  __device__ void solve(const Rule& rule, float* to, int64_t stride) {
    const int64_t c = systems.c, dk = n_.key_dim, dv = n_.value_dim;
    const bool has_state = systems.start.is_there();
    multiply_values();
    systems.weigh(pairs(), weighted());
    if (has_state) {
      block_product<false, true>(c, dk, dv, 1.0f, {d_o(), dv}, {systems.start.values, dv}, false, {d_x(), dk});
      block_rows(c, dk, [&](int64_t i, int64_t row, int64_t) { d_x()[i] *= systems.decays().start[row]; });
    }
    block_product<false, false>(c, dk, c, 1.0f, {weighted(), c}, {systems.keys(), dk}, has_state, {d_x(), dk});
    systems.solve(rule, d_x(), w());
    block_rows(c, dk, [&](int64_t i, int64_t row, int64_t column) { to[row * stride + column] = w()[i]; });
  }

  /// xs, ws: x and w of the chunk's first token.
  __device__ void gather_solutions(const float* xs, const float* ws, int64_t stride) {
    gather_rows(systems.c, n_.key_dim, xs, stride, 1.0f, x());
    gather_rows(systems.c, n_.key_dim, ws, stride, 1.0f, w());
  }

  /// behind: the gradient at the memory behind the chunk, or none. d_keys, d_values, and the gradients at beta and gam.
  /// dY = [-W | dO], E = dY [K | V]ᵀ.
  __device__ void differentiate(const Memory& behind, BlockReducer<double>& reduce) {
    const int64_t c = systems.c, dk = n_.key_dim, dv = n_.value_dim;
    multiply_values();
    block_product<false, true>(c, c, dk, 1.0f, {x(), dk}, {systems.keys(), dk}, false, {products(), c});
    block_product<false, true>(c, c, dk, -1.0f, {w(), dk}, {systems.keys(), dk}, true, {pairs(), c});
    systems.weigh(pairs(), weighted());
    block_product<true, false>(c, dk, c, 1.0f, {weighted(), c}, {x(), dk}, false, {d_keys(), dk});
    add_pairs();
    systems.weigh(products(), weighted());
    block_product<true, false>(c, dv, c, 1.0f, {weighted(), c}, {d_o(), dv}, false, {d_values(), dv});
    block_product<true, false>(c, dk, c, -1.0f, {weighted(), c}, {w(), dk}, true,
                               {d_keys(), dk});  // the pairs' keys as values of R
    if (systems.start.is_there()) { add_reads(); }
    if (behind.is_there()) { add_writes(behind, reduce); }
  }

  /// d_lambda -= sum_i w_i * x_i.
  __device__ void add_lambda(float* d_lambda) const {
    const int64_t dk = n_.key_dim;
    block_each(dk, [&](int64_t a) {
      float sum = d_lambda[a];
      for (int64_t i = 0; i < systems.c; ++i) { sum -= w()[i * dk + a] * x()[i * dk + a]; }
      d_lambda[a] = sum;
    });
  }

  /// next = e^gam_last behind + (diag(e^gam) X)ᵀ dY: the gradient at the memory before the chunk. Overwrites x.
  __device__ void advance(const Memory& behind, const Memory& next) {
    const int64_t c = systems.c, dk = n_.key_dim, dv = n_.value_dim;
    block_rows(c, dk, [&](int64_t i, int64_t row, int64_t) { x()[i] *= systems.decays().start[row]; });
    const bool adds = behind.is_there();
    if (adds) {
      const float last = systems.decays().last(c);
      block_each(n_.keys(), [&](int64_t i) { next.keys[i] = last * behind.keys[i]; });
      block_each(n_.values(), [&](int64_t i) { next.values[i] = last * behind.values[i]; });
    }
    block_product<true, false>(dk, dk, c, -1.0f, {x(), dk}, {w(), dk}, adds, {next.keys, dk});
    block_product<true, false>(dk, dv, c, 1.0f, {x(), dk}, {d_o(), dv}, adds, {next.values, dv});
  }

  __device__ void write_rows(float* d_q, float* d_k, int64_t key_stride, float* d_v, int64_t value_stride) const {
    const int64_t dk = n_.key_dim, dv = n_.value_dim;
    block_rows(systems.c, dk, [&](int64_t i, int64_t row, int64_t column) {
      const int64_t to = row * key_stride + column;
      d_q[to] = w()[i];
      d_k[to] = d_keys()[i];
    });
    block_rows(systems.c, dv,
               [&](int64_t i, int64_t row, int64_t column) { d_v[row * value_stride + column] = d_values()[i]; });
  }

  /// Gradients at the logits: dg_i = sum_{j>=i} dgam_j, da = dg sigmoid(-a), db = dbeta beta (1 - beta). Null: not
  /// wanted.
  __device__ void write_gates(const float* a, float* d_a, bool accumulate_a, float* d_b, bool accumulate_b,
                              int64_t stride) {
    block_each(1, [&](int64_t) {
      for (int64_t i = systems.c - 2; i >= 0; --i) { d_gam()[i] += d_gam()[i + 1]; }
    });
    block_each(systems.c, [&](int64_t i) {
      if (d_a != nullptr) {
        write(d_a[i * stride], static_cast<float>(d_gam()[i]) * logistic(-a[i * stride]), accumulate_a);
      }
      if (d_b != nullptr) {
        const float beta = systems.beta()[i];
        write(d_b[i * stride], static_cast<float>(d_beta()[i]) * beta * (1.0f - beta), accumulate_b);
      }
    });
  }

  ChunkSystems systems;

 private:
  /// The pairs' part of dbeta_j = sum_i D_ij Ps_ij E_ij and of dgam, row sums minus column sums of beta_j times the
  /// same. The diagonal cancels in dgam and is left out; sums are taken in double, since pairs of later tokens cancel
  /// in dg and their rounding would hide what a strong decay leaves of it.
  __device__ void add_pairs() {
    const int64_t c = systems.c;
    const auto pair = [&](int64_t i, int64_t j) {
      const int64_t at = i * c + j;
      return static_cast<double>(systems.decays().table[at] * products()[at] * pairs()[at]);
    };
    block_warps(c, [&](int64_t i, int lane) {
      double row = 0, column = 0;
      for (int64_t j = lane; j < c; j += 32) {
        if (j < i) {
          row += static_cast<double>(systems.beta()[j]) * pair(i, j);
        } else if (j > i) {
          column += pair(j, i);
        }
      }
      row = warp_sum(row);
      column = warp_sum(column);
      if (lane == 0) {
        d_gam()[i] = row - static_cast<double>(systems.beta()[i]) * column;
        d_beta()[i] = static_cast<double>(products()[i * c + i] * pairs()[i * c + i]) + column;
      }
    });
  }

  /// dgam_i += e^gam_i (x_i Z) . dY_i = e^gam_i x_i . (dO_i Sᵀ - w_i R).
  __device__ void add_reads() {
    const int64_t c = systems.c, dk = n_.key_dim, dv = n_.value_dim;
    block_product<false, true>(c, dk, dv, 1.0f, {d_o(), dv}, {systems.start.values, dv}, false, {read(), dk});
    block_product<false, true>(c, dk, dk, -1.0f, {w(), dk}, {systems.start.keys, dk}, true, {read(), dk});
    block_warps(c, [&](int64_t i, int lane) {
      const float along = warp_dot(dk, x() + i * dk, read() + i * dk, lane);
      if (lane == 0) { d_gam()[i] += static_cast<double>(systems.decays().start[i] * along); }
    });
  }

  /// What enters the memory behind the chunk: diag(e^(gam_last - gam) beta) of K dZ and of U dZᵀ.
  __device__ void add_writes(const Memory& behind, BlockReducer<double>& reduce) {
    const int64_t c = systems.c, dk = n_.key_dim, dv = n_.value_dim;
    block_product<false, false>(c, dv, dk, 1.0f, {systems.keys(), dk}, {behind.values, dv}, false, {value_read(), dv});
    block_product<false, true>(c, dk, dk, 1.0f, {systems.keys(), dk}, {behind.keys, dk}, false, {read(), dk});
    block_product<false, true>(c, dk, dv, 1.0f, {systems.values(), dv}, {behind.values, dv}, true, {read(), dk});
    block_product<false, false>(c, dk, dk, 1.0f, {systems.keys(), dk}, {behind.keys, dk}, false, {d_x(), dk});
    block_warps(c, [&](int64_t i, int lane) {
      const float along = warp_dot(dk, systems.keys() + i * dk, read() + i * dk, lane);
      if (lane == 0) {
        const double share = static_cast<double>(systems.decays().end[i] * along);
        d_beta()[i] += share;
        shares()[i] = static_cast<double>(systems.beta()[i]) * share;
        d_gam()[i] -= shares()[i];
      }
    });
    const auto factor = [&](int64_t i) { return systems.decays().end[i] * systems.beta()[i]; };
    block_rows(c, dv, [&](int64_t i, int64_t row, int64_t) { d_values()[i] += factor(row) * value_read()[i]; });
    block_rows(c, dk, [&](int64_t i, int64_t row, int64_t) { d_keys()[i] += factor(row) * (read()[i] + d_x()[i]); });
    double kept = 0;
    if (systems.start.is_there()) {
      for (int64_t i = threadIdx.x; i < n_.keys(); i += kBlockThreads) {
        kept += static_cast<double>(systems.start.keys[i] * behind.keys[i]);
      }
      for (int64_t i = threadIdx.x; i < n_.values(); i += kBlockThreads) {
        kept += static_cast<double>(systems.start.values[i] * behind.values[i]);
      }
    }
    kept = reduce.sum(kept);
    block_each(1, [&](int64_t) {
      double total = static_cast<double>(systems.decays().last(c)) * kept;
      for (int64_t i = 0; i < c; ++i) { total += shares()[i]; }
      d_gam()[c - 1] += total;
    });
  }

  __device__ float* x() const { return scratch_ + at_.x; }                    // [c, dk]
  __device__ float* w() const { return scratch_ + at_.w; }                    // [c, dk]
  __device__ float* d_o() const { return scratch_ + at_.d_o; }                // [c, dv]
  __device__ float* d_x() const { return scratch_ + at_.d_x; }                // [c, dk]
  __device__ float* d_keys() const { return scratch_ + at_.d_keys; }          // [c, dk]
  __device__ float* d_values() const { return scratch_ + at_.d_values; }      // [c, dv]
  __device__ float* read() const { return scratch_ + at_.read; }              // [c, dk]
  __device__ float* value_read() const { return scratch_ + at_.value_read; }  // [c, dv]
  __device__ float* products() const { return scratch_ + at_.products; }      // [c, c] X Kᵀ
  __device__ float* pairs() const { return scratch_ + at_.pairs_of_d; }       // [c, c] dO Vᵀ, then E
  __device__ float* weighted() const { return scratch_ + at_.weighted; }      // [c, c]
  __device__ double* doubles(int part) const { return reinterpret_cast<double*>(scratch_ + part); }
  __device__ double* d_gam() const { return doubles(at_.d_gam); }    // [c]
  __device__ double* d_beta() const { return doubles(at_.d_beta); }  // [c]
  __device__ double* shares() const { return doubles(at_.shares); }  // [c]

  const MesanetSizes& n_;
  const BackwardParts& at_;
  float* scratch_;
};

__global__ void __launch_bounds__(kBlockThreads, 2) mesanet_adjoint_solve_kernel(MesanetBackwardTask a) {
  const StateScan& s = a.scan;
  Adjoint adjoint(s.scratch + blockIdx.x * s.scratch_stride, a.parts, s.n, s.longest);
  for (int64_t task = blockIdx.x; task < a.count * s.n.heads; task += gridDim.x) {
    const DeltaChunk chunk = s.chunks.at(task / s.n.heads);
    const int64_t head = task % s.n.heads;
    const HeadInputs in = s.in.head(s.n, head);
    adjoint.systems.fill_lambda(a.rule, s.in.lambda_raw + head * s.n.key_dim);
    adjoint.enter(in, chunk, s.starts.at(s.n, chunk, head),
                  a.d_o + chunk.token * in.value_stride + head * s.n.value_dim);
    adjoint.solve(a.rule, a.solutions + chunk.token * in.key_stride + head * s.n.key_dim, in.key_stride);
  }
}

// One block a row and head: gradients at the chunks' starts, from the last to the first, and at lambda.
__global__ void __launch_bounds__(kBlockThreads, 2) mesanet_adjoint_starts_kernel(MesanetBackwardTask a) {
  const StateScan& s = a.scan;
  const MesanetSizes& n = s.n;
  const int64_t row = blockIdx.x / n.heads, head = blockIdx.x % n.heads;
  Adjoint adjoint(s.scratch + blockIdx.x * s.scratch_stride, a.parts, n, s.longest);
  const HeadInputs in = s.in.head(n, head);
  float* const d_lambda = a.lambda_sums + blockIdx.x * n.key_dim;
  block_each(n.key_dim, [&](int64_t i) { d_lambda[i] = 0; });
  for (int64_t i = s.chunks.rows[row + 1] - 1; i >= s.chunks.rows[row]; --i) {
    const DeltaChunk chunk = s.chunks.at(i);
    const int64_t key_at = chunk.token * in.key_stride + head * n.key_dim;
    adjoint.systems.enter_gates(in, chunk);
    adjoint.gather_solutions(a.x + key_at, a.solutions + key_at, in.key_stride);
    adjoint.add_lambda(d_lambda);
    if (chunk.state >= 0) {
      adjoint.gather_outputs(in, a.d_o + chunk.token * in.value_stride + head * n.value_dim);
      adjoint.advance(a.behind(i, head), a.d_starts.of(chunk.state * n.heads + head, n));
    }
  }
}

__global__ void __launch_bounds__(kBlockThreads, 2) mesanet_backward_kernel(MesanetBackwardTask a) {
  const StateScan& s = a.scan;
  const MesanetSizes& n = s.n;
  Adjoint adjoint(s.scratch + blockIdx.x * s.scratch_stride, a.parts, n, s.longest);
  BlockReducer<double> reduce;
  for (int64_t task = blockIdx.x; task < a.count * n.heads; task += gridDim.x) {
    const int64_t i = task / n.heads, head = task % n.heads;
    const DeltaChunk chunk = s.chunks.at(i);
    const HeadInputs in = s.in.head(n, head);
    const int64_t value_at = chunk.token * in.value_stride + head * n.value_dim,
                  gate_at = chunk.token * in.gate_stride + head,
                  key_at = chunk.token * in.key_stride + head * n.key_dim;
    adjoint.enter(in, chunk, s.starts.at(n, chunk, head), a.d_o + value_at);
    adjoint.gather_solutions(a.x + key_at, a.solutions + key_at, in.key_stride);
    adjoint.differentiate(a.behind(i, head), reduce);
    adjoint.write_rows(a.d_q + key_at, a.d_k + key_at, in.key_stride, a.d_v + value_at, in.value_stride);
    adjoint.write_gates(s.in.all.a + gate_at, a.d_a != nullptr ? a.d_a + gate_at : nullptr, a.accumulate_a,
                        a.d_b != nullptr ? a.d_b + gate_at : nullptr, a.accumulate_b, in.gate_stride);
  }
}

/// lambda = lambda_min + softplus(raw): d_raw += the rows' sums times the slope.
struct AddLambda {
  float* d_raw;
  const float *sums, *raw;
  int64_t rows, count;

  __device__ void operator()(int64_t, int64_t i) const {
    float total = 0;
    for (int64_t row = 0; row < rows; ++row) { total += sums[row * count + i]; }
    d_raw[i] += total * logistic(raw[i]);
  }
};

}  // namespace

void run(Stream& stream, const MesanetBackward& a, const MesanetBackwardScratch& scratch) {
  const MesanetSizes n(a.k, a.v);
  const int64_t rows = n.batch * n.heads, slots = scratch.work.size(0), count = a.grid.chunks.size(0);
  HEBB_ASSERT(a.v.dtype == DType::f32 && slots >= rows && scratch.solutions.defined());
  const StateScan scan{.n = n,
                       .in = Inputs(a, n),
                       .chunks = Chunks(a.grid),
                       .starts = Starts(scratch, Memory{}, a.doc_start),
                       .parts = MesanetParts(n, a.grid.longest),
                       .scratch = scratch.work.as<float>(),
                       .scratch_stride = scratch.work.size(1),
                       .longest = a.grid.longest};
  const MesanetBackwardTask b{.scan = scan,
                              .parts = BackwardParts(n, a.grid.longest),
                              .rule = Rule(a.rule),
                              .d_q = a.d_q.as<float>(),
                              .d_k = a.d_k.as<float>(),
                              .d_v = a.d_v.as<float>(),
                              .d_a = a.d_a.as<float>(),
                              .d_b = a.d_b.as<float>(),
                              .lambda_sums = scratch.lambda_sums.as<float>(),
                              .solutions = scratch.solutions.as<float>(),
                              .d_o = a.d_o.as<float>(),
                              .x = a.x.as<float>(),
                              .d_starts = {scratch.d_key_starts.as<float>(), scratch.d_value_starts.as<float>()},
                              .count = count,
                              .accumulate_a = a.accumulate_a,
                              .accumulate_b = a.accumulate_b};
  HEBB_ASSERT(scratch.work.size(1) >= b.parts.used());
  if (a.grid.states > 0) { HEBB_LAUNCH(mesanet_starts_kernel, blocks_for(rows, 1), kBlockThreads, 0, stream, scan); }
  const unsigned blocks = blocks_for(slots < count * n.heads ? slots : count * n.heads, 1);
  HEBB_LAUNCH(mesanet_adjoint_solve_kernel, blocks, kBlockThreads, 0, stream, b);
  HEBB_LAUNCH(mesanet_adjoint_starts_kernel, blocks_for(rows, 1), kBlockThreads, 0, stream, b);
  HEBB_LAUNCH(mesanet_backward_kernel, blocks, kBlockThreads, 0, stream, b);
  if (a.d_lambda_raw.defined()) {
    each_element("mesanet_lambda", stream, 1, n.heads * n.key_dim,
                 AddLambda{a.d_lambda_raw.as<float>(), scratch.lambda_sums.as<float>(), a.lambda_raw.as<float>(),
                           n.batch, n.heads * n.key_dim});
  }
}

}  // namespace hebb::HEBB_DEVICE
