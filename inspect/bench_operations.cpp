#include "inspect/bench_operations.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

#include "core/bfloat.h"
#include "core/device_timer.h"
#include "core/elapsed.h"
#include "core/random.h"
#include "kernels/adamw/adamw.h"
#include "kernels/common/cores.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/gemm/gemm.h"
#include "kernels/ordered_sum/ordered_sum.h"
#include "layers/ops/activation.h"
#include "layers/ops/attention.h"
#include "layers/ops/gated_delta.h"
#include "layers/ops/norm.h"

namespace hebb {
namespace {

/// A value that an earlier operation would have made: it wants a gradient and costs nothing backward.
struct SourceNode final : Node {
  Var value;
  void backward(Tape&) override {}
};

/// 64 MiB hold more than the L2 of a GPU. Eight copies take an H100 about 0.4 ms (an estimate), in which the host
/// enqueues more than any operation launches.
constexpr int64_t kAheadBytes = int64_t{64} << 20;
constexpr int kCopies = 8;

class Bench {
 public:
  Bench(const Compute& compute, double seconds)
      : dtype_(compute.dtype), seconds_(seconds), stream_{compute.device}, arena_(compute.device, "bench") {
    if (stream_.on_gpu()) {
      ahead_from_ = Buffer(arena_, {kAheadBytes}, DType::u8, "copied ahead");
      ahead_to_ = Buffer(arena_, {kAheadBytes}, DType::u8, "copied ahead");
      fill_zero(stream_, ahead_from_);
    }
  }

  Stream& stream() { return stream_; }
  Arena& arena() { return arena_; }
  DType dtype() const { return dtype_; }
  DType state() const { return sum_dtype(dtype_); }
  double element() const { return static_cast<double>(dtype_bytes(dtype_)); }

  /// Normal numbers, which repeat after a million: making hundreds of millions would take longer than all measurements.
  Buffer random(Shape shape, DType dtype, double scale = 1.0) {
    constexpr size_t kPeriod = 1000003;
    Buffer buffer(arena_, shape, dtype, "bench");
    Rng rng(1, "bench");
    std::vector<float> values(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = i < kPeriod ? static_cast<float>(scale * rng.normal()) : values[i - kPeriod];
    }
    if (dtype == DType::bf16) {
      std::vector<bf16> rounded(values.size());
      std::transform(values.begin(), values.end(), rounded.begin(), nearest_bf16);
      copy_to_device(stream_, buffer, rounded.data());
    } else {
      copy_to_device(stream_, buffer, values.data());
    }
    return buffer;
  }

  /// What the device spends on f. On a GPU copies go before: while they last the host enqueues f, so that its launches
  /// cost the device nothing, and they leave nothing of f's operands in the caches.
  double ms(const std::function<void()>& f) {
    for (int i = 0; stream_.on_gpu() && i < kCopies; ++i) { copy(stream_, ahead_to_, ahead_from_); }
    timer_.start(stream_);
    f();
    return timer_.stop(stream_);
  }

  /// Repeats until the time is used, at least three times.
  template <class F> void repeat(F&& once) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 3 || seconds_since(start) < seconds_; ++i) { once(); }
  }

  double best_ms(const std::function<void()>& f) {
    double best = std::numeric_limits<double>::infinity();
    repeat([&] { best = std::min(best, ms(f)); });
    return best;
  }

  /// An operation on values that earlier ones would have made: f gets the tape and them.
  struct Times {
    double forward = std::numeric_limits<double>::infinity(), backward = forward;
  };
  Times operation(const std::vector<Tensor>& inputs, const std::function<Var(Tape&, const std::vector<Var>&)>& f,
                  const Tensor& gradient) {
    Times best;
    repeat([&] {
      Tape tape(stream_, arena_, true);
      std::vector<Var> sources;
      for (const Tensor& input : inputs) { sources.push_back(source(tape, input)); }
      Var out;
      best.forward = std::min(best.forward, ms([&] { out = f(tape, sources); }));
      tape.seed_grad(out, gradient);
      best.backward = std::min(best.backward, ms([&] { tape.backward(); }));
    });
    return best;
  }

 private:
  Var source(Tape& tape, const Tensor& value) {
    SourceNode node;
    node.value = tape.output(value.shape, value.dtype, "source");
    const Var v = node.value;
    copy(stream_, tape.value(v), value);
    tape.record(std::move(node));
    return v;
  }

  DType dtype_;
  double seconds_;
  Stream stream_;
  Arena arena_;
  DeviceTimer timer_;
  Buffer ahead_from_, ahead_to_;
};

/// FLOPs and elements moved of the forward and the backward pass.
struct Work {
  double flops, moved, backward_flops, backward_moved;
};

class Suite {
 public:
  Suite(Bench& bench, int64_t tokens) : bench_(bench), tokens_(tokens) {}

  OperationSpeeds bounds() {
    measure_copy();
    for (const int64_t d : {int64_t{256}, int64_t{1024}}) { measure_products(d); }
    for (const OperationSpeed& p : out_.products) { out_.best_tflops = std::max(out_.best_tflops, p.tflops()); }
    return out_;
  }
  OperationSpeeds run() {
    bounds();
    measure_norm(1024);
    measure_swiglu(2816);
    measure_attention(64);
    measure_attention(128);
    measure_delta();
    measure_cross_entropy(32000);
    measure_adamw();
    measure_ordered_sum();
    for (auto* list : {&out_.products, &out_.operations}) {
      for (OperationSpeed& s : *list) { set_bound(s); }
    }
    return std::move(out_);
  }

 private:
  void measure_copy() {
    constexpr int64_t kBytes = int64_t{128} << 20;
    const Buffer from(bench_.arena(), {kBytes}, DType::u8, "from"), to(bench_.arena(), {kBytes}, DType::u8, "to");
    fill_zero(bench_.stream(), from);
    out_.copy_gb_per_s = 2.0 * kBytes / bench_.best_ms([&] { copy(bench_.stream(), to, from); }) * 1e-6;
  }

  /// x W^T, dy W and dy^T x of a square matrix and of one four times as wide.
  void measure_products(int64_t d) {
    const int64_t n = tokens_;
    for (const int64_t wide : {d, 4 * d}) {
      product(false, true, n, wide, d);
      product(false, false, n, d, wide);
      product(true, false, wide, d, n);
    }
  }
  void product(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k) {
    const DType dtype = bench_.dtype();
    const DType out = trans_a ? bench_.state() : dtype;  // gradients of matrices
    const Buffer a = bench_.random({m * k}, dtype), b = bench_.random({k * n}, dtype),
                 c(bench_.arena(), {m * n}, out, "c");
    OperationSpeed s{fmt::format("product {}{} {} x {} x {}", trans_a ? "T" : "N", trans_b ? "T" : "N", m, n, k)};
    s.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    s.bytes = bench_.element() * static_cast<double>(m * k + k * n) + static_cast<double>(dtype_bytes(out) * m * n);
    s.ms = bench_.best_ms([&] {
      hebb::run(bench_.stream(),
                Gemm{.c = c, .a = a, .b = b, .m = m, .n = n, .k = k, .trans_a = trans_a, .trans_b = trans_b});
    });
    out_.products.push_back(s);
  }

  void measure_norm(int64_t d) {
    const double moved =
        4.0 * static_cast<double>(tokens_ * d);  // reads h and branch, writes h and norm; the same backward
    const Buffer h = bench_.random({tokens_, d}, bench_.dtype()), branch = bench_.random({tokens_, d}, bench_.dtype());
    const Buffer weight = bench_.random({d}, bench_.state());
    add("residual + RMSNorm",
        {5.0 * static_cast<double>(tokens_ * d), moved, 10.0 * static_cast<double>(tokens_ * d), moved},
        bench_.operation(
            {h, branch},
            [&](Tape& t, const std::vector<Var>& x) {
              return residual_norm(t, x[0], x[1], 1.0, t.constant(weight), {}, 1e-5, NormKind::rms).y;
            },
            h));
  }

  void measure_swiglu(int64_t n) {
    const double size = static_cast<double>(tokens_ * n);
    const Buffer gate = bench_.random({tokens_, n}, bench_.dtype()), up = bench_.random({tokens_, n}, bench_.dtype());
    add("SwiGLU", {10 * size, 3 * size, 20 * size, 5 * size},
        bench_.operation(
            {gate, up}, [](Tape& t, const std::vector<Var>& x) { return swiglu(t, x[0], x[1]); }, gate));
  }

  /// Causal attention over rows of 1,024 tokens or all there are.
  void measure_attention(int64_t head_dim) {
    const int64_t length = std::min<int64_t>(tokens_, 1024), batch = tokens_ / length, heads = 1024 / head_dim;
    const Buffer q = bench_.random({tokens_, 1024}, bench_.dtype()), k = bench_.random({tokens_, 1024}, bench_.dtype()),
                 v = bench_.random({tokens_, 1024}, bench_.dtype());
    const Rows rows = Rows::streams(bench_.stream(), bench_.arena(), batch, length);
    const double pairs = static_cast<double>(batch * heads) * 0.5 * static_cast<double>(length * (length + 1));
    const double flops = 4.0 * static_cast<double>(head_dim) * pairs, moved = static_cast<double>(tokens_) * 1024;
    add("attention, heads of " + std::to_string(head_dim), {flops, 4 * moved, 2.5 * flops, 8 * moved},
        bench_.operation(
            {q, k, v},
            [&](Tape& t, const std::vector<Var>& x) {
              Pass pass{t, rows};
              const KeyIntervals visible = visible_keys(pass, KeyRange{});
              const AttentionShape shape{.batch = batch,
                                         .length = length,
                                         .spaces = batch,
                                         .keys = length,
                                         .heads = heads,
                                         .kv_heads = heads,
                                         .head_dim = head_dim,
                                         .value_head_dim = head_dim};
              return attention(t, x[0], x[1], x[2], shape, visible, 1.0 / std::sqrt(static_cast<double>(head_dim)));
            },
            q));
  }

  /// Six heads with keys of 128 and values of 256, as in the 340M hybrid, with convolutions and norms.
  void measure_delta() {
    DeltaConfig config;
    config.key_heads = config.value_heads = 6;
    config.key_dim = 128;
    config.value_dim = 256;
    config.conv_size = 4;
    const int64_t length = std::min<int64_t>(tokens_, 1024), batch = tokens_ / length;
    const int64_t keys = config.key_channels(), values = config.value_channels();
    const DType dtype = bench_.dtype(), state = bench_.state();
    const Buffer q = bench_.random({tokens_, keys}, dtype), k = bench_.random({tokens_, keys}, dtype),
                 v = bench_.random({tokens_, values}, dtype), a = bench_.random({tokens_, 6}, dtype),
                 b = bench_.random({tokens_, 6}, dtype);
    const Buffer q_conv = bench_.random({keys, 4}, state, 0.3), k_conv = bench_.random({keys, 4}, state, 0.3),
                 v_conv = bench_.random({values, 4}, state, 0.3), a_log = bench_.random({6}, state),
                 dt_bias = bench_.random({6}, state);
    const Rows rows = Rows::streams(bench_.stream(), bench_.arena(), batch, length);
    const double n = static_cast<double>(tokens_), dk = 128, dv = 256, heads = 6,
                 chunk = static_cast<double>(config.chunk);
    const double flops = 6 * heads * dk * dv * n;
    const double moved = n * (31 * heads * dk + 32 * heads * dv + 3 * heads * chunk + 6 * heads * dk * dv / chunk);
    add("gated delta rule, 6 heads of 128 x 256", {flops, moved / 3, 2 * flops, 2 * moved / 3},
        bench_.operation(
            {q, k, v, a, b},
            [&](Tape& t, const std::vector<Var>& x) {
              Pass pass{t, rows};
              DeltaInputs in;
              in.q = {x[0], t.constant(q_conv), {}};
              in.k = {x[1], t.constant(k_conv), {}};
              in.v = {x[2], t.constant(v_conv), {}};
              in.a = x[3];
              in.b = x[4];
              in.a_log = t.constant(a_log);
              in.dt_bias = t.constant(dt_bias);
              return gated_delta(pass, in, config, nullptr);
            },
            v));
  }

  void measure_cross_entropy(int64_t vocab) {
    const int64_t rows = std::min<int64_t>(tokens_, 1024);
    const Buffer logits = bench_.random({rows, vocab}, bench_.state());
    const Buffer loss(bench_.arena(), {rows}, DType::f64, "loss"),
        targets(bench_.arena(), {rows}, DType::i32, "targets");
    fill_zero(bench_.stream(), targets);
    OperationSpeed s{"cross-entropy with gradient, vocabulary of " + std::to_string(vocab)};
    s.flops = 10.0 * static_cast<double>(rows * vocab);
    s.bytes = 3.0 * static_cast<double>(rows * vocab * dtype_bytes(bench_.state()));
    s.ms = bench_.best_ms([&] {
      hebb::run(bench_.stream(),
                CrossEntropy{.loss = loss, .gradient = logits, .logits = logits, .targets = targets, .scale = 1e-3});
    });
    out_.operations.push_back(s);
  }

  void measure_adamw() {
    constexpr int64_t kCount = int64_t{4} << 20;
    const DType state = bench_.state();
    const Buffer p = bench_.random({kCount}, state), m(bench_.arena(), {kCount}, state, "m"),
                 v(bench_.arena(), {kCount}, state, "v"), grad = bench_.random({kCount}, state);
    fill_zero(bench_.stream(), m);
    fill_zero(bench_.stream(), v);
    const double rates[kAdamWRates] = {1 - 1e-3 * 0.1, 1e-3 / 0.1, 1 / 0.05};
    const Buffer of_step(bench_.arena(), {kAdamWRates}, DType::f64, "rates");
    copy_to_device(bench_.stream(), of_step, rates);
    OperationSpeed s{"AdamW, 4 Mi parameters"};
    s.flops = 20.0 * kCount;
    s.bytes = 28.0 * kCount;
    s.ms = bench_.best_ms([&] {
      hebb::run(
          bench_.stream(),
          AdamW{.p = p, .m = m, .v = v, .grad = grad, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .rates = of_step});
    });
    out_.operations.push_back(s);
  }

  /// What several ranks add to the kernels of a step.
  void measure_ordered_sum() {
    constexpr int64_t kParts = 8, kCount = int64_t{4} << 20;
    const DType state = bench_.state();
    const Buffer to(bench_.arena(), {kCount}, state, "sum"), parts = bench_.random({kParts, kCount}, state);
    OperationSpeed s{"ordered sum, 8 x 4 Mi"};
    s.flops = static_cast<double>((kParts - 1) * kCount);
    s.bytes = static_cast<double>((kParts + 1) * kCount * dtype_bytes(state));
    s.ms = bench_.best_ms([&] { hebb::run(bench_.stream(), OrderedSum{.to = to, .parts = parts}); });
    out_.operations.push_back(s);
  }

  void add(const std::string& name, const Work& work, const Bench::Times& times) {
    out_.operations.push_back({name + ", forward", times.forward, work.flops, work.moved * bench_.element()});
    out_.operations.push_back(
        {name + ", backward", times.backward, work.backward_flops, work.backward_moved * bench_.element()});
  }

  void set_bound(OperationSpeed& s) const {
    const double compute = s.flops / out_.best_tflops * 1e-9, memory = s.bytes / out_.copy_gb_per_s * 1e-6;  // ms
    s.bound_ms = std::max(compute, memory);
    s.memory_bound = memory > compute;
  }

  Bench& bench_;
  int64_t tokens_;
  OperationSpeeds out_;
};

}  // namespace

OperationSpeeds measure_bounds(const Compute& compute, int64_t tokens, double seconds) {
  Bench bench(compute, seconds);
  return Suite(bench, tokens).bounds();
}

OperationSpeeds measure_operations(const Compute& compute, int64_t tokens, double seconds) {
  const FallbackLog log;
  Bench bench(compute, seconds);
  OperationSpeeds speeds = Suite(bench, tokens).run();
  speeds.plain_cores = log.lines();
  return speeds;
}

}  // namespace hebb
