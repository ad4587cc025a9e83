#include "kernels/mesanet/chunk.cuh"
#include "kernels/mesanet/scratch.h"

// One block a row and head scans the chunks for R and S at their starts: 2 C dk (dk + dv) FLOPs a chunk. Then one block
// a chunk and head solves, as many at a time as scratch has slots: C (2 dk (dk + dv) + 2 dk dv + 2 C (dk + dv)) FLOPs
// and C (2 dk^2 + 4 C dk + 12 dk) a step of the solver. Bound: the steps' multiply-adds. Scratch is read through L1
// and L2.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace mesa;

struct ForwardParts : MesanetParts {
  ForwardParts(const MesanetSizes& n, int64_t c) : MesanetParts(n, c) {
    q = take(c * n.key_dim);
    x = take(c * n.key_dim);
    read = take(c * n.key_dim);
    pairs_of_x = take(c * c);
    output = take(c * n.value_dim);
  }
  int q, x, read, pairs_of_x, output;
};

struct MesanetForwardTask {
  StateScan scan;
  ForwardParts parts;
  Rule rule;
  float* o;
  float *x, *residual;
  int64_t count;  // of chunks
};

/// One chunk of one head.
struct ChunkForward {
  ChunkSystems systems;
  const ForwardParts& at;
  float* scratch;

  __device__ ChunkForward(float* scratch, const ForwardParts& parts, const MesanetSizes& n, int64_t longest)
      : systems(scratch, parts, n, longest), at(parts), scratch(scratch) {}
  __device__ float* q() const { return scratch + at.q; }               // [c, dk]
  __device__ float* x() const { return scratch + at.x; }               // [c, dk]
  __device__ float* read() const { return scratch + at.read; }         // [c, dk]
  __device__ float* pairs() const { return scratch + at.pairs_of_x; }  // [c, c]
  __device__ float* output() const { return scratch + at.output; }     // [c, dv]

  /// o = diag(e^gam) X S + (M * (X Kᵀ)) V
  __device__ void write_output(float* o, int64_t stride) {
    const int64_t c = systems.c, dk = systems.n.key_dim, dv = systems.n.value_dim;
    const bool has_state = systems.start.is_there();
    block_product<false, true>(c, c, dk, 1.0f, {x(), dk}, {systems.keys(), dk}, false, {pairs(), c});
    systems.weigh(pairs(), pairs());
    if (has_state) {
      block_rows(c, dk, [&](int64_t i, int64_t row, int64_t) { read()[i] = systems.decays().start[row] * x()[i]; });
      block_product<false, false>(c, dv, dk, 1.0f, {read(), dk}, {systems.start.values, dv}, false, {output(), dv});
    }
    block_product<false, false>(c, dv, c, 1.0f, {pairs(), c}, {systems.values(), dv}, has_state, {output(), dv});
    block_rows(c, dv, [&](int64_t i, int64_t row, int64_t column) { o[row * stride + column] = output()[i]; });
  }

  __device__ void write_residual(float* residual, int64_t stride) {
    const int64_t dk = systems.n.key_dim;
    systems.apply(x(), read());
    block_warps(systems.c, [&](int64_t i, int lane) {
      const float* const b = q() + i * dk;
      float left = 0;
      for (int64_t a = lane; a < dk; a += 32) {
        const float difference = read()[i * dk + a] - b[a];
        left += difference * difference;
      }
      left = warp_sum(left);
      const float length = warp_dot(dk, b, b, lane);
      if (lane == 0) { residual[i * stride] = length > 0.0f ? sqrtf(left) / sqrtf(length) : 0.0f; }
    });
  }
};

__global__ void __launch_bounds__(kBlockThreads, 2) mesanet_forward_kernel(MesanetForwardTask a) {
  const StateScan& s = a.scan;
  ChunkForward f(s.scratch + blockIdx.x * s.scratch_stride, a.parts, s.n, s.longest);
  const int64_t dk = s.n.key_dim;
  for (int64_t task = blockIdx.x; task < a.count * s.n.heads; task += gridDim.x) {
    const DeltaChunk chunk = s.chunks.at(task / s.n.heads);
    const int64_t head = task % s.n.heads;
    const HeadInputs in = s.in.head(s.n, head);
    f.systems.fill_lambda(a.rule, s.in.lambda_raw + head * dk);
    f.systems.enter(in, chunk, s.starts.at(s.n, chunk, head));
    f.systems.fill_weights();
    gather_rows(chunk.length, dk, in.q + chunk.token * in.key_stride, in.key_stride, 1.0f, f.q());
    f.systems.solve(a.rule, f.q(), f.x());
    if (a.x != nullptr) {
      float* const to = a.x + chunk.token * in.key_stride + head * dk;
      block_rows(chunk.length, dk,
                 [&](int64_t i, int64_t row, int64_t column) { to[row * in.key_stride + column] = f.x()[i]; });
    }
    f.write_output(a.o + chunk.token * in.value_stride + head * s.n.value_dim, in.value_stride);
    if (a.residual != nullptr) { f.write_residual(a.residual + chunk.token * in.gate_stride + head, in.gate_stride); }
  }
}

// One block a row and head: R and S after the row's last chunk.
__global__ void __launch_bounds__(kBlockThreads, 2) mesanet_carry_kernel(StateScan a) {
  const int64_t row = blockIdx.x / a.n.heads, head = blockIdx.x % a.n.heads;
  ChunkSystems systems(a.scratch + blockIdx.x * a.scratch_stride, a.parts, a.n, a.longest);
  const DeltaChunk last = a.chunks.at(a.chunks.rows[row + 1] - 1);
  systems.enter(a.in.head(a.n, head), last, a.starts.at(a.n, last, head));
  systems.advance(a.starts.carried.of(blockIdx.x, a.n));
}

struct Steps {
  MesanetSizes n;
  Inputs in;
  Rule rule;
  float* o;
  Memory memory;
  float* scratch;
  int64_t scratch_stride;
};

// Token by token, one block a row and head. Bound by the steps' chains of barriers: R stays in L1.
__global__ void __launch_bounds__(kBlockThreads, 2) mesanet_steps_kernel(Steps a) {
  const int64_t row = blockIdx.x / a.n.heads, head = blockIdx.x % a.n.heads, dk = a.n.key_dim, dv = a.n.value_dim;
  ScratchParts parts(a.scratch + blockIdx.x * a.scratch_stride);
  const Cholesky cholesky(parts.take(dk * dk), dk);
  float *const lambda = parts.take(dk), *const x = parts.take(dk);
  ConjugateGradients gradients(parts, 1, dk);
  const HeadInputs in = a.in.head(a.n, head);
  const Memory memory = a.memory.of(blockIdx.x, a.n);
  block_each(dk, [&](int64_t i) { lambda[i] = a.rule.lambda_min + softplus(a.in.lambda_raw[head * dk + i]); });
  for (int64_t t = 0; t < a.n.length; ++t) {
    const int64_t i = row * a.n.length + t;
    if (a.in.doc_start[i] == t) {
      block_each(a.n.keys(), [&](int64_t at) { memory.keys[at] = 0; });
      block_each(a.n.values(), [&](int64_t at) { memory.values[at] = 0; });
    }
    const float *const q = in.q + i * in.key_stride, *const k = in.k + i * in.key_stride,
                       *const v = in.v + i * in.value_stride;
    const float alpha = expf(log_logistic(in.a[i * in.gate_stride])), beta = logistic(in.b[i * in.gate_stride]);
    write_token(dk, dk, alpha, beta, k, k, memory.keys);
    write_token(dk, dv, alpha, beta, k, v, memory.values);
    gather_rows(1, dk, q, 0, 1.0f, gradients.input());
    if (a.rule.exact) {
      cholesky.solve(memory.keys, lambda, gradients.input(), x);
    } else {
      gradients.solve(1, a.rule, gradients.input(), x, [&](const float* p, float* product) {
        block_warps(dk, [&](int64_t r, int lane) {  // R is symmetric
          const float sum = warp_dot(dk, memory.keys + r * dk, p, lane);
          if (lane == 0) { product[r] = sum + p[r] * lambda[r]; }
        });
      });
    }
    float* const o = a.o + i * in.value_stride + head * dv;
    block_each(dv, [&](int64_t channel) {
      float sum = 0;
      for (int64_t r = 0; r < dk; ++r) { sum += x[r] * memory.values[r * dv + channel]; }
      o[channel] = sum;
    });
  }
}

}  // namespace

void run(Stream& stream, const MesanetForward& a, const MesanetForwardScratch& scratch) {
  const MesanetSizes n(a.k, a.v);
  const int64_t rows = n.batch * n.heads, slots = scratch.work.size(0), count = a.grid.chunks.size(0);
  HEBB_ASSERT(a.v.dtype == DType::f32 && slots >= rows && (a.grid.states == 0 || scratch.key_starts.defined()));
  const Memory carried{a.keys.as<float>(), a.values.as<float>()};
  const StateScan scan{.n = n,
                       .in = Inputs(a, n),
                       .chunks = Chunks(a.grid),
                       .starts = Starts(scratch, carried, a.doc_start),
                       .parts = MesanetParts(n, a.grid.longest),
                       .scratch = scratch.work.as<float>(),
                       .scratch_stride = scratch.work.size(1),
                       .longest = a.grid.longest};
  if (a.grid.states > 0) { HEBB_LAUNCH(mesanet_starts_kernel, blocks_for(rows, 1), kBlockThreads, 0, stream, scan); }
  const MesanetForwardTask f{.scan = scan,
                             .parts = ForwardParts(n, a.grid.longest),
                             .rule = Rule(a.rule),
                             .o = a.o.as<float>(),
                             .x = a.x.as<float>(),
                             .residual = a.residual.as<float>(),
                             .count = count};
  HEBB_ASSERT(scratch.work.size(1) >= f.parts.used());
  HEBB_LAUNCH(mesanet_forward_kernel, blocks_for(slots < count * n.heads ? slots : count * n.heads, 1), kBlockThreads,
              0, stream, f);
  if (a.keys.defined()) { HEBB_LAUNCH(mesanet_carry_kernel, blocks_for(rows, 1), kBlockThreads, 0, stream, scan); }
}

void run(Stream& stream, const MesanetSteps& a, const MesanetStepsScratch& scratch) {
  const MesanetSizes n(a.k, a.v);
  HEBB_ASSERT(a.v.dtype == DType::f32 && scratch.work.size(0) >= n.batch * n.heads);
  const Steps s{.n = n,
                .in = Inputs(a, n),
                .rule = Rule(a.rule),
                .o = a.o.as<float>(),
                .memory = {a.keys.as<float>(), a.values.as<float>()},
                .scratch = scratch.work.as<float>(),
                .scratch_stride = scratch.work.size(1)};
  HEBB_LAUNCH(mesanet_steps_kernel, blocks_for(n.batch * n.heads, 1), kBlockThreads, 0, stream, s);
}

}  // namespace hebb::HEBB_DEVICE
