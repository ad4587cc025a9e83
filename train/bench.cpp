#include "train/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/parallel.h"
#include "core/random.h"
#include "layers/model.h"
#include "optim/optimizer.h"

namespace hebb {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab) {
  Rng rng(1, "bench");
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab)));
  }
  return ids;
}

struct StepTimes {
  double forward, backward, optimizer;
  double total() const { return forward + backward + optimizer; }
};

}  // namespace

ModelSpeed measure_model(const ModelConfig& config, const Compute& compute, int64_t rows, int64_t length, int64_t warmup,
                         int64_t steps) {
  Stream stream;
  stream.device = compute.device;
  Arena state(compute.device, "state"), work(compute.device, "work");
  Model model(config);
  model.params().allocate(state, compute.dtype, true);
  model.params().initialize(stream, 1);
  OptimizerConfig optimizer_config;
  optimizer_config.lr = 1e-3;
  Optimizer optimizer(optimizer_config, Schedule(ScheduleConfig{}, 1e-3, warmup + steps), model.params(), state);
  const int64_t n = rows * length;
  const std::vector<int32_t> ids = random_tokens(n + 1, config.vocab_size);
  const Buffer inputs(work, {n}, DType::i32, "inputs"), targets(work, {n}, DType::i32, "targets"), losses(work, {n}, DType::f64, "losses");
  copy_to_device(stream, inputs, ids.data());
  copy_to_device(stream, targets, ids.data() + 1);
  const Rows structure = Rows::streams(stream, work, rows, length);
  std::vector<StepTimes> times;
  const auto finish = [&] {  // a GPU's kernels have only been enqueued
    double loss;
    copy_to_host(stream, &loss, losses.tensor().slice(0, {1}));
  };
  for (int64_t s = 0; s < warmup + steps; ++s) {
    const auto start = Clock::now();
    model.params().zero_grads(stream);
    model.begin_step(stream, s);
    Tape tape(stream, work, true);
    Pass pass{tape, structure};
    pass.training = true;
    pass.step = s;
    model.loss(pass, model.hidden(pass, inputs), targets, losses, 1.0 / static_cast<double>(n));
    finish();
    const double forward = ms_since(start);
    tape.backward();
    finish();
    const double backward = ms_since(start);
    optimizer.step(stream, s);
    model.after_step(stream, s, optimizer.applies());
    optimizer.finish(stream);
    const double end = ms_since(start);
    if (s >= warmup) {
      times.push_back({forward, backward - forward, end - backward});
    }
  }
  std::sort(times.begin(), times.end(), [](const StepTimes& a, const StepTimes& b) { return a.total() < b.total(); });
  ModelSpeed speed;
  speed.rows = rows;
  speed.length = length;
  speed.steps = steps;
  speed.threads = threads();
  speed.best_ms = times.front().total();
  speed.median_ms = times[times.size() / 2].total();
  speed.forward_ms = times.front().forward;
  speed.backward_ms = times.front().backward;
  speed.optimizer_ms = times.front().optimizer;
  speed.flops_per_token = 3.0 * model.flops_per_token(length);
  speed.peak_bytes = state.peak_bytes() + work.peak_bytes();
  return speed;
}

DecodeSpeed measure_decode(const ModelConfig& config, const Compute& compute, int64_t context) {
  Stream stream;
  stream.device = compute.device;
  Arena arena(compute.device);
  Model model(config);
  model.params().allocate(arena, compute.dtype, false);
  model.params().initialize(stream, 1);
  return measure_decode(model, stream, arena, 1, context);
}

DecodeSpeed measure_decode(Model& model, Stream& stream, Arena& arena, int64_t rows, int64_t context) {
  constexpr int64_t kWarmup = 8, kSteps = 64, kSegment = 1024;
  const std::vector<int32_t> ids = random_tokens(rows * (context + kWarmup + kSteps), model.config().vocab_size);
  const auto state = model.make_state(arena, rows);
  const auto feed = [&](int64_t begin, int64_t n) {
    const Rows structure = Rows::streams(stream, arena, rows, n, state->tokens);
    const Buffer input(arena, {rows * n}, DType::i32, "inputs");
    copy_to_device(stream, input, ids.data() + rows * begin);
    Tape tape(stream, arena, false);
    Pass pass{tape, structure};
    pass.fast_mode = FastMode::chunk;
    const Var hidden = model.hidden(pass, input, state.get());
    const int64_t d = model.config().hidden_size;
    const Var last = tape.constant(tape.value(hidden).slice((rows * n - 1) * d, {1, d}));
    const Tensor logits = tape.value(model.logits(pass, n == 1 ? hidden : last));
    uint8_t byte;  // waits for a GPU, whose kernels have only been enqueued
    copy_to_host(stream, &byte, Tensor{logits.data, DType::u8, {1}});
  };
  auto start = Clock::now();
  for (int64_t begin = 0; begin < context; begin += kSegment) {
    feed(begin, std::min(kSegment, context - begin));
  }
  DecodeSpeed speed;
  speed.prefill_tokens_per_s = static_cast<double>(rows * context) / (ms_since(start) * 1e-3);
  std::vector<double> times;
  for (int64_t i = 0; i < kWarmup + kSteps; ++i) {
    start = Clock::now();
    feed(context + i, 1);
    if (i >= kWarmup) {
      times.push_back(ms_since(start));
    }
  }
  std::sort(times.begin(), times.end());
  speed.ms_per_token = times[times.size() / 2];
  return speed;
}

namespace {

/// d 256, 6 blocks, vocabulary 4096: `layers` adds to the layers that every benchmark model knows.
std::string small_model(const std::string& layers, const std::string& pattern) {
  return R"({"vocab_size": 4096, "hidden_size": 256, "num_layers": 6, "layers": {
    "mlp": {"type": "swiglu", "intermediate_size": 768},
    "full": {"type": "attention", "num_heads": 4, "head_dim": 64, "rope": {"theta": 10000.0}},
    "gdn": {"type": "gdn", "num_heads": 4, "key_head_dim": 64, "value_head_dim": 64, "conv_size": 4})" + layers + R"(},
    "pattern": )" + pattern + "}";
}

/// The model `gdn` with `layer` in its third block: in place of the mixer or the feed-forward layer, or as
/// the block's memory. Named after the layer's type.
BenchModel one_layer_model(const std::string& type, const std::string& role, const std::string& settings) {
  const std::string gdn = R"({"mixer": "gdn", "ffn": "mlp"})";
  std::string changed = R"({"mixer": "gdn", "ffn": "mlp", "memory": "x"})";
  if (role == "mixer") { changed = R"({"mixer": "x", "ffn": "mlp"})"; }
  if (role == "ffn") { changed = R"({"mixer": "gdn", "ffn": "x"})"; }
  const std::string pattern = "[" + gdn + "," + gdn + "," + changed + "," + gdn + "," + gdn + "," + gdn + "]";
  return {type, small_model(R"(, "x": {"type": ")" + type + R"(", )" + settings + "}", pattern)};
}

}  // namespace

std::vector<BenchModel> bench_models() {
  const std::string gdn = R"({"mixer": "gdn", "ffn": "mlp"})", full = R"({"mixer": "full", "ffn": "mlp"})";
  return {{"transformer", small_model("", "[" + full + "]")},
          {"gdn-hybrid", small_model("", "[" + gdn + "," + gdn + "," + gdn + "," + gdn + "," + gdn + "," + full + "]")},
          {"gdn", small_model("", "[" + gdn + "]")}};
}

std::vector<BenchModel> bench_layers() {
  const std::string heads = R"("num_heads": 4, "head_dim": 64)";
  return {one_layer_model("attention", "mixer", heads + R"(, "rope": {"theta": 10000.0})"),
          one_layer_model("sdm", "mixer", R"("slots_per_head": 1024, "num_writes": 16, "num_reads": 16)"),
          one_layer_model("fwpkm", "memory", R"("num_subkeys": 64, "key_dim": 256, "value_dim": 256)"),
          one_layer_model("fwmlp", "memory", R"("key_dim": 256, "value_dim": 256, "fast_dim": 256)"),
          one_layer_model("pkm", "ffn", R"("num_subkeys": 64, "key_dim": 256, "value_dim": 256)"),
          one_layer_model("ovq", "mixer", heads + R"(, "max_centroids": 1024)"),
          one_layer_model("kvm", "mixer", heads + R"(, "chunk_size": 256, "state": {"mode": "fixed", "rows": 256},
            "rope": {"theta": 10000.0, "dims": 32})"),
          one_layer_model("vq", "mixer", heads + R"(, "codebook_size": 1024)"),
          one_layer_model("mamba2", "mixer", heads + R"(, "state_dim": 64, "num_groups": 4)"),
          one_layer_model("mesanet", "mixer", R"("num_heads": 4, "key_head_dim": 64)"),
          one_layer_model("lact", "mixer", R"("num_heads": 4, "window": 512, "chunk_size": 256)"),
          one_layer_model("ham", "mixer", R"("rnn": {"num_heads": 4, "key_head_dim": 64, "value_head_dim": 64},
            "kv": {"num_heads": 4, "key_head_dim": 64, "value_head_dim": 64, "rope": {"theta": 10000.0}})"),
          one_layer_model("relu2", "ffn", R"("intermediate_size": 1152)")};
}

}  // namespace hebb
