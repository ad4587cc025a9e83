#pragma once
// Chunks of the mesa recurrence of one head, by one block; matrices of a chunk lie in the block's scratch, row-major
// without gaps. The algebra is docs/layers/mesanet.md, Chunk form, in the order of the CPU's kernels.
#include "kernels/gated_delta/chunk_scan.cuh"
#include "kernels/mesanet/mesanet.h"
#include "kernels/mesanet/sizes.h"

namespace hebb::HEBB_DEVICE::mesa {

using delta::Chunks;
using delta::gather_rows;

/// Where the parts of a block's scratch begin, in floats: numbers of the kernel's arguments instead of pointers in
/// registers, which would be spilled across calls. The same parts, hence the same room, as in the CPU's kernels.
class MesanetParts {
 public:
  MesanetParts(const MesanetSizes& n, int64_t longest) {
    const int64_t c = longest, dk = n.key_dim;
    decays = take(2 * c);
    take(c);
    take(c);
    take(c * c);
    g = take(c);
    beta = take(c);
    keys = take(c * dk);
    values = take(c * n.value_dim);
    weights = take(c * c);
    lambda = take(dk);
    pairs = take(c * c);
    scaled = take(c * dk);
    gradients = take_gradients(c, dk);
    running = take(dk * dk);
    factor = take(dk * dk);
  }

  int64_t used() const { return used_; }

  int decays, g, beta, keys, values, weights, lambda, pairs, scaled, gradients, running, factor;

 protected:
  int take(int64_t count) {
    const int part = used_;
    used_ += static_cast<int>((count + 15) / 16 * 16);
    return part;
  }
  int take_gradients(int64_t rows, int64_t n) {
    const int part = used_;
    for (int i = 0; i < 6; ++i) { take(i < 3 ? rows * n : rows); }
    return part;
  }

 private:
  int used_ = 0;
};

struct Rule {
  bool exact;
  int64_t steps;
  float epsilon, lambda_min;

  explicit Rule(const MesanetRule& rule)
      : exact(rule.exact),
        steps(rule.steps),
        epsilon(static_cast<float>(rule.epsilon)),
        lambda_min(static_cast<float>(rule.lambda_min)) {}
};

/// Where the tokens of one head lie: token i of the batch at pointer + i * stride.
struct HeadInputs {
  const float *q, *k, *v, *a, *b;
  int64_t key_stride, value_stride, gate_stride;
};

/// Inputs of all heads.
struct Inputs {
  HeadInputs all;
  const float* lambda_raw;
  const int32_t* doc_start;

  template <class Args>
  Inputs(const Args& a, const MesanetSizes& n)
      : all{a.q.template as<float>(), a.k.template as<float>(), a.v.template as<float>(), a.a.template as<float>(),
            a.b.template as<float>(), n.heads * n.key_dim,      n.heads * n.value_dim,    n.heads},
        lambda_raw(a.lambda_raw.template as<float>()),
        doc_start(a.doc_start.template as<int32_t>()) {}
  __device__ HeadInputs head(const MesanetSizes& n, int64_t head) const {
    HeadInputs in = all;
    in.q += head * n.key_dim;
    in.k += head * n.key_dim;
    in.v += head * n.value_dim;
    in.a += head;
    in.b += head;
    return in;
  }
};

/// R and S: carried, of a chunk's start, or gradients.
struct Memory {
  float *keys = nullptr, *values = nullptr;  // [dk, dk] [dk, dv]

  __device__ bool is_there() const { return keys != nullptr; }
  __device__ Memory of(int64_t at, const MesanetSizes& n) const {
    return {keys + at * n.keys(), values + at * n.values()};
  }
};

/// R and S at the chunks' starts.
struct Starts {
  Memory kept, carried;  // of all chunks with a number, of all rows; carried may be null
  const int32_t* doc_start;

  template <class Scratch>
  Starts(const Scratch& scratch, Memory carried, const Tensor& doc_start)
      : kept{scratch.key_starts.template as<float>(), scratch.value_starts.template as<float>()},
        carried(carried),
        doc_start(doc_start.as<int32_t>()) {}
  /// None: 0.
  __device__ Memory at(const MesanetSizes& n, const DeltaChunk& chunk, int64_t head) const {
    const int64_t row = chunk.token / n.length;
    if (chunk.state >= 0) { return kept.of(chunk.state * n.heads + head, n); }
    return carried.is_there() && doc_start[chunk.token] < chunk.token - row * n.length
               ? carried.of(row * n.heads + head, n)
               : Memory{};
  }
};

/// Conjugate gradients on up to `rows` systems of n unknowns together, each on scalars of its own and by a warp.
class ConjugateGradients {
 public:
  __device__ ConjugateGradients(ScratchParts parts, int64_t rows, int64_t n)
      : n_(n),
        residual_(parts.take(rows * n)),
        direction_(parts.take(rows * n)),
        product_(parts.take(rows * n)),
        power_(parts.take(rows)),
        first_(parts.take(rows)),
        square_(parts.take(rows)) {}

  /// Room for right-hand sides, [rows, n].
  __device__ float* input() const { return product_; }

  /// x [rows, n] from b [rows, n], which may be input(). apply(p, t): t [rows, n] = p A, rows by their own A.
  template <class Apply>
  __device__ __forceinline__ void solve(int64_t rows, const Rule& rule, const float* b, float* x, Apply&& apply) {
    block_warps(rows, [&](int64_t i, int lane) { begin(i, lane, b + i * n_, x + i * n_); });
    for (int64_t step = 0; step < rule.steps && is_unfinished(rows); ++step) {
      apply(direction_, product_);
      block_warps(rows, [&](int64_t i, int lane) {
        if (square_[i] != 0.0f) { advance(i, lane, rule.epsilon, x + i * n_); }
      });
    }
    block_rows(rows, n_, [&](int64_t i, int64_t row, int64_t) { x[i] *= 1.0f / power_[row]; });
  }

 private:
  /// The same in all warps; what they read changes only behind the next barriers.
  __device__ bool is_unfinished(int64_t rows) const {
    bool found = false;
    for (int64_t i = threadIdx.x % 32; i < rows; i += 32) { found = found || square_[i] != 0.0f; }
    return __any_sync(kAllLanes, found);
  }

  /// Right-hand sides are scaled by powers of two, which changes no digit: squares of small ones would underflow.
  __device__ void begin(int64_t i, int lane, const float* b, float* x) {
    float largest = 0, squares = 0;
    for (int64_t c = lane; c < n_; c += 32) { largest = fmaxf(largest, fabsf(b[c])); }
    largest = warp_max(largest);
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    const int shift = -exponent < 126 ? -exponent : 126;
    const float power = largest > 0.0f ? __uint_as_float(static_cast<uint32_t>(shift + 127) << 23) : 1.0f;
    for (int64_t c = lane; c < n_; c += 32) {
      const float scaled = power * b[c];
      residual_[i * n_ + c] = direction_[i * n_ + c] = scaled;
      x[c] = 0;
      squares += scaled * scaled;
    }
    squares = warp_sum(squares);
    if (lane == 0) {
      power_[i] = power;
      first_[i] = square_[i] = squares;
    }
  }

  __device__ void advance(int64_t i, int lane, float epsilon, float* x) {
    float *const r = residual_ + i * n_, *const p = direction_ + i * n_;
    const float* const t = product_ + i * n_;
    const float first = first_[i], old = square_[i], damping = epsilon * first;
    const float alpha = old / (warp_dot(n_, p, t, lane) + damping);
    float square = 0;
    for (int64_t c = lane; c < n_; c += 32) {
      x[c] += alpha * p[c];
      r[c] -= alpha * t[c];
      square += r[c] * r[c];
    }
    square = warp_sum(square);
    const float beta = square / (old + damping);
    for (int64_t c = lane; c < n_; c += 32) { p[c] = r[c] + beta * p[c]; }
    constexpr float kUnit = 1.1920929e-7f;
    __syncwarp();  // all have read it
    if (lane == 0) {
      square_[i] = square <= kUnit * kUnit * first ? 0.0f : square;  // 0: frozen
    }
  }

  int64_t n_;
  float *residual_, *direction_, *product_;
  float *power_, *first_, *square_;  // [rows]: the scale, r.r at the start and now
};

/// x A = b for one symmetric positive definite A = matrix + diag(lambda), of which the lower triangle is read. 3
/// barriers a column.
class Cholesky {
 public:
  __device__ Cholesky(float* factor, int64_t n) : n_(n), factor_(factor) {}

  __device__ void solve(const float* matrix, const float* lambda, const float* b, float* x) const {
    const int64_t n = n_;
    float* const f = factor_;
    block_rows(n, n, [&](int64_t i, int64_t row, int64_t column) {
      f[i] = matrix[i] + (row == column ? lambda[column] : 0.0f);
    });
    for (int64_t j = 0; j < n; ++j) {
      block_each(1, [&](int64_t) { f[j * n + j] = sqrtf(f[j * n + j]); });
      block_each(n - 1 - j, [&](int64_t i) { f[(j + 1 + i) * n + j] /= f[j * n + j]; });
      const int64_t rest = n - 1 - j;
      block_rows(rest, rest, [&](int64_t, int64_t r, int64_t c) {
        const int64_t row = j + 1 + r, column = j + 1 + c;
        if (column <= row) { f[row * n + column] -= f[row * n + j] * f[column * n + j]; }
      });
    }
    block_warps(1, [&](int64_t, int lane) {
      for (int64_t i = 0; i < n; ++i) {
        const float left = warp_dot(i, f + i * n, x, lane);
        if (lane == 0) { x[i] = (b[i] - left) / f[i * n + i]; }
        __syncwarp();
      }
      for (int64_t i = n - 1; i >= 0; --i) {
        const float own = x[i] / f[i * n + i];
        __syncwarp();
        for (int64_t c = lane; c <= i; c += 32) { x[c] = c == i ? own : x[c] - own * f[i * n + c]; }
        __syncwarp();
      }
    });
  }

 private:
  int64_t n_;
  float* factor_;  // [n, n], lower triangle
};

/// memory [rows, columns] = alpha memory + beta keyᵀ value.
__device__ __forceinline__ void write_token(int64_t rows, int64_t columns, float alpha, float beta, const float* key,
                                            const float* value, float* memory) {
  block_rows(rows, columns, [&](int64_t i, int64_t row, int64_t column) {
    memory[i] = alpha * memory[i] + beta * key[row] * value[column];
  });
}

/// One chunk of one head: its rows, decays and systems A_i = R_i + diag(lambda).
class ChunkSystems {
 public:
  __device__ ChunkSystems(float* scratch, const MesanetParts& parts, const MesanetSizes& sizes, int64_t longest)
      : n(sizes), scratch_(scratch), at_(parts), longest_(longest) {}

  __device__ float* g() const { return scratch_ + at_.g; }
  __device__ float* beta() const { return scratch_ + at_.beta; }        // [c]
  __device__ float* keys() const { return scratch_ + at_.keys; }        // [c, dk]
  __device__ float* values() const { return scratch_ + at_.values; }    // [c, dv]
  __device__ float* weights() const { return scratch_ + at_.weights; }  // [c, c] M, 0 above the diagonal
  __device__ float* lambda() const { return scratch_ + at_.lambda; }    // [dk]
  __device__ delta::Decays decays() const {
    ScratchParts parts(scratch_ + at_.decays);
    return delta::Decays(parts, longest_);
  }

  __device__ void fill_lambda(const Rule& rule, const float* raw) {
    block_each(n.key_dim, [&](int64_t i) { lambda()[i] = rule.lambda_min + softplus(raw[i]); });
  }

  /// start: R and S before the chunk, or none for 0.
  __device__ void enter(const HeadInputs& in, const DeltaChunk& chunk, const Memory& before) {
    enter_gates(in, chunk);
    start = before;
    gather_rows(c, n.key_dim, in.k + chunk.token * in.key_stride, in.key_stride, 1.0f, keys());
    gather_rows(c, n.value_dim, in.v + chunk.token * in.value_stride, in.value_stride, 1.0f, values());
  }

  /// Without keys and values.
  __device__ void enter_gates(const HeadInputs& in, const DeltaChunk& chunk) {
    c = chunk.length;
    block_each(c, [&](int64_t i) {
      g()[i] = log_logistic(in.a[(chunk.token + i) * in.gate_stride]);
      beta()[i] = logistic(in.b[(chunk.token + i) * in.gate_stride]);
    });
    decays().load(g(), 1, c);
  }

  /// M, for solve, apply and what reads the chunk.
  __device__ void fill_weights() {
    block_rows(c, c, [&](int64_t i, int64_t, int64_t column) { weights()[i] = decays().table[i] * beta()[column]; });
  }

  /// out = M * pairs; both [c, c], out may be pairs.
  __device__ void weigh(const float* pairs, float* out) const {
    block_rows(
        c, c, [&](int64_t i, int64_t row, int64_t column) { out[i] = column <= row ? weights()[i] * pairs[i] : 0.0f; });
  }

  /// x_i A_i = b_i for all rows; x, b [c, dk], not the same memory.
  __device__ void solve(const Rule& rule, const float* b, float* x) {
    if (rule.exact) {
      solve_exactly(b, x);
    } else {
      ConjugateGradients(ScratchParts(scratch_ + at_.gradients), longest_, n.key_dim)
          .solve(c, rule, b, x, [&](const float* p, float* t) { apply(p, t); });
    }
  }

  /// t_i = p_i A_i.
  __device__ void apply(const float* p, float* t) {
    const int64_t dk = n.key_dim;
    float* const left = const_cast<float*>(p);
    block_product<false, true>(c, c, dk, 1.0f, {left, dk}, {keys(), dk}, false, {pairs(), c});
    weigh(pairs(), pairs());
    block_rows(c, dk, [&](int64_t i, int64_t row, int64_t column) {
      t[i] = p[i] * lambda()[column];
      if (start.is_there()) { scaled()[i] = decays().start[row] * p[i]; }
    });
    if (start.is_there()) {
      block_product<false, false>(c, dk, dk, 1.0f, {scaled(), dk}, {start.keys, dk}, true, {t, dk});
    }
    block_product<false, false>(c, dk, c, 1.0f, {pairs(), c}, {keys(), dk}, true, {t, dk});
  }

  /// next (may be `start`) = R and S after the chunk. Overwrites the values.
  __device__ void advance(const Memory& next) {
    const int64_t dk = n.key_dim, dv = n.value_dim;
    block_rows(c, dv, [&](int64_t i, int64_t row, int64_t) { values()[i] *= decays().end[row] * beta()[row]; });
    block_rows(c, dk,
               [&](int64_t i, int64_t row, int64_t) { scaled()[i] = decays().end[row] * beta()[row] * keys()[i]; });
    const bool has_start = start.is_there();
    if (has_start) {
      const float last = decays().last(c);
      block_each(n.keys(), [&](int64_t i) { next.keys[i] = last * start.keys[i]; });
      block_each(n.values(), [&](int64_t i) { next.values[i] = last * start.values[i]; });
    }
    block_product<true, false>(dk, dv, c, 1.0f, {keys(), dk}, {values(), dv}, has_start, {next.values, dv});
    block_product<true, false>(dk, dk, c, 1.0f, {keys(), dk}, {scaled(), dk}, has_start, {next.keys, dk});
  }

  const MesanetSizes& n;
  Memory start;
  int64_t c = 0;

 private:
  /// Token by token with R of its own.
  __device__ void solve_exactly(const float* b, float* x) {
    const int64_t dk = n.key_dim;
    float* const running = scratch_ + at_.running;
    block_each(n.keys(), [&](int64_t i) { running[i] = start.is_there() ? start.keys[i] : 0.0f; });
    for (int64_t i = 0; i < c; ++i) {
      write_token(dk, dk, expf(g()[i]), beta()[i], keys() + i * dk, keys() + i * dk, running);
      Cholesky(scratch_ + at_.factor, dk).solve(running, lambda(), b + i * dk, x + i * dk);
    }
  }

  __device__ float* pairs() const { return scratch_ + at_.pairs; }    // [c, c]
  __device__ float* scaled() const { return scratch_ + at_.scaled; }  // [c, dk]

  float* scratch_;
  const MesanetParts& at_;
  int64_t longest_;
};

/// What the kernels that scan chunk starts read.
struct StateScan {
  MesanetSizes n;
  Inputs in;
  Chunks chunks;
  Starts starts;
  MesanetParts parts;
  float* scratch;
  int64_t scratch_stride, longest;
};

// One block a row and head: R and S at the starts of its chunks, one after the other.
static __global__ void __launch_bounds__(kBlockThreads, 2) mesanet_starts_kernel(StateScan a) {
  const int64_t row = blockIdx.x / a.n.heads, head = blockIdx.x % a.n.heads;
  ChunkSystems systems(a.scratch + blockIdx.x * a.scratch_stride, a.parts, a.n, a.longest);
  const HeadInputs in = a.in.head(a.n, head);
  for (int64_t i = a.chunks.rows[row]; i + 1 < a.chunks.rows[row + 1]; ++i) {
    const DeltaChunk chunk = a.chunks.at(i), next = a.chunks.at(i + 1);
    if (next.state >= 0) {
      systems.enter(in, chunk, a.starts.at(a.n, chunk, head));
      systems.advance(a.starts.at(a.n, next, head));
    }
  }
}

}  // namespace hebb::HEBB_DEVICE::mesa
