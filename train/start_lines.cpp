#include "train/start_lines.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>

#include "core/device_timer.h"
#include "core/parallel.h"
#include "core/plural.h"
#include "core/progress.h"
#include "kernels/gemm/gemm.h"
#include "train/choose_device.h"
#include "train/device_peak.h"

namespace hebb {
namespace {

struct Moments {
  double sum = 0, squares = 0, lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
  int64_t count = 0;

  void add(double x) {
    sum += x;
    squares += x * x;
    lowest = std::min(lowest, x);
    highest = std::max(highest, x);
    ++count;
  }
  double mean() const { return sum / static_cast<double>(count); }
  double std() const { return std::sqrt(std::max(0.0, squares / static_cast<double>(count) - mean() * mean())); }
};

/// Tensors whose names differ in the block only.
struct Group {
  std::string name;  // blocks.*.mixer.q_proj.weight
  Shape shape;
  const char* kind;
  int64_t tensors = 0;
  Moments values;
};

std::string group_name(const std::string& name) {
  const std::string prefix = "blocks.";
  if (!name.starts_with(prefix)) { return name; }
  return prefix + "*" + name.substr(std::min(name.find('.', prefix.size()), name.size()));
}

void add_values(Stream& stream, const Tensor& tensor, Moments& moments) {
  constexpr int64_t kPiece = int64_t{1} << 18;  // 1 MiB of fp32 comes through pinned memory
  dispatch_real(tensor.dtype, [&]<class S>(S) {
    std::vector<S> piece;
    for (int64_t begin = 0; begin < tensor.numel(); begin += kPiece) {
      const int64_t count = std::min(kPiece, tensor.numel() - begin);
      piece.resize(static_cast<size_t>(count));
      copy_to_host(stream, piece.data(), tensor.slice(begin, {count}));
      for (const auto x : piece) { moments.add(static_cast<double>(x)); }
    }
  });
}

const char* kind_name(const Param& p, const Optimizer& optimizer) {
  switch (p.spec.kind) {
    case ParamKind::fast: return "fast";
    case ParamKind::state: return "state";
    case ParamKind::buffer: return "counter";
    case ParamKind::trained: break;
  }
  for (const Optimizer::Rule& rule : optimizer.rules()) {
    if (rule.param == &p) { return rule.weight_decay > 0 ? "decay" : "no decay"; }
  }
  return "";
}

std::string describe_run(const RunConfig& config, const TrainingState& training) {
  const TrainConfig& t = config.train;
  std::string text =
      fmt::format("device: {}, {} threads, precision {}", device_name(training.stream.device), threads(), *t.precision);
  if (training.stream.on_gpu() && *t.precision == "fp32" && t.allow_tf32) { text += ", TF32 in matrix products"; }
  const bool has_fallen_back = t.device == "auto" && !training.stream.on_gpu() && *t.precision != "fp64";
  text += t.device != "auto" ? "\n" : " (train.device is auto" + (has_fallen_back ? " " + gpu_problem() : "") + ")\n";
  if (training.stream.on_gpu()) {
    if (const std::string note = gpu_note(); !note.empty()) { text += note + "\n"; }
    const std::vector<std::string> reasons =
        reasons_against_graphs(config, training.own_lanes(), training.ranks.get(), training.model, training.stream);
    text += reasons.empty() ? "launches: as CUDA graphs\n" : "launches: one by one, not as CUDA graphs\n";
    for (const std::string& reason : reasons) { text += "  " + reason + "\n"; }
  }
  text += config.model.unused_text();
  for (const size_t i : training.optimizer->unused_groups()) {
    text += fmt::format("optimizer.groups.{:d} applies to no parameter\n", i);
  }
  for (size_t i = 0; i < config.optimizer.no_decay.size(); ++i) {
    const std::regex pattern(config.optimizer.no_decay[i], std::regex::ECMAScript);
    const auto matches = [&](const auto& p) { return std::regex_search(p->name(), pattern); };
    if (std::none_of(training.model.params().all().begin(), training.model.params().all().end(), matches)) {
      text += fmt::format("optimizer.no_decay.{:d} matches no parameter\n", i);
    }
  }
  if (config.schedule.warmup_steps > t.steps) {
    text += fmt::format("schedule.warmup_steps = {} is longer than the run\n", config.schedule.warmup_steps);
  }
  return text;
}

std::string describe_batches(const TrainConfig& t, int ranks) {
  const double tokens = static_cast<double>(t.steps) * static_cast<double>(t.tokens_per_step());
  return fmt::format("batch: {} rows x {} tokens = {} tokens a step; {} of {} on {}; {}, {:.4g} tokens\n", t.batch_size,
                     t.sequence_length, t.tokens_per_step(),
                     plural(t.batch_size / *t.micro_batch_size, "micro-batch", "micro-batches"),
                     plural(*t.micro_batch_size, "row"), plural(ranks, "rank"), plural(t.steps, "step"), tokens);
}

std::string describe_time(const RunConfig& config, TrainingState& training, double flops, int64_t step) {
  const auto peak = peak_flops(config);
  const double speed = peak ? *peak : measure_matrix_product(training);
  const double tokens =
      static_cast<double>(config.train.steps - step) * static_cast<double>(config.train.tokens_per_step());
  const double seconds = flops * tokens / speed;
  return fmt::format("estimated time: at least {}, at {} of {:.4g} GFLOP/s\n",
                     seconds < 1 ? "a fraction of a second" : format_duration(seconds),
                     peak ? "the device's dense peak" : "the speed of a matrix product measured here", speed * 1e-9);
}

std::string describe_counts(const ParamStore& params, const char* end) {
  return fmt::format("parameters: {} trained, {} in fast weights{}\n", params.count(ParamKind::trained),
                     params.count(ParamKind::fast), end);
}

/// The memory plan as one line.
std::string describe_briefly(const MemoryPlan& plan) {
  const auto bytes = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
  return fmt::format(
      "memory plan: {}: parameters {}, gradients {}, optimizer {}, activations and temporaries {} at the peak\n",
      bytes(plan.total_bytes()), bytes(plan.parameter_bytes), bytes(plan.gradient_bytes), bytes(plan.optimizer_bytes),
      bytes(plan.work_bytes));
}

}  // namespace

std::string describe_parameters(Stream& stream, const ParamStore& params, const Optimizer& optimizer) {
  std::vector<Group> groups;
  for (const auto& p : params.all()) {
    const std::string name = group_name(p->name());
    const char* kind = kind_name(*p, optimizer);
    auto it = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      return g.name == name && g.shape == p->spec.shape && g.kind == kind;
    });
    if (it == groups.end()) { it = groups.insert(groups.end(), {name, p->spec.shape, kind, 0, {}}); }
    ++it->tensors;
    if (p->spec.kind != ParamKind::buffer) { add_values(stream, p->value, it->values); }
  }
  std::string text = describe_counts(params, "");
  for (const Group& g : groups) {
    text += fmt::format("  {:<44} {:3} x {:<18} {:<8}", g.name, g.tensors, g.shape.str(), g.kind);
    if (g.values.count > 0) {
      text += fmt::format(" mean {: .2e} std {:.2e} min {: .2e} max {: .2e}", g.values.mean(), g.values.std(),
                          g.values.lowest, g.values.highest);
    }
    text += "\n";
  }
  return text;
}

double training_flops_per_token(const RunConfig& config, const Model& model) {
  return 3 * model.flops_per_token(config.train.sequence_length);
}

std::optional<double> peak_flops(const RunConfig& config) {
  if (config.train.peak_tflops) { return *config.train.peak_tflops * 1e12; }
  return device_peak({device_of(config), dtype_of_precision(*config.train.precision)}, config.train.allow_tf32);
}

int64_t measured_product_size(const std::string& machine) {
  // Fits in the CPU's caches and keeps its threads busy; the emulated GPU takes a fraction of a second. On a GPU that
  // would be the time of a launch: there a product has 256 tiles of 128 x 128, and three matrices leave room.
  return machine == "cpu" || machine == "SIMT emulator" ? 384 : 2048;
}

double measure_matrix_product(TrainingState& training) {
  constexpr int kAtOnce = 8;  // more than the host needs to stay ahead of a GPU
  constexpr double kMilliseconds = 20;
  const int64_t n = measured_product_size(machine_name(training.stream.device));
  const DType dtype = training.model.params().dtype();
  const Shape square{n, n};
  Arena arena(training.stream.device, "measurement");
  const Buffer a(arena, square, dtype, "a"), b(arena, square, dtype, "b"), c(arena, square, dtype, "c");
  fill_zero(training.stream, a);
  fill_zero(training.stream, b);
  const auto product = [&] {
    run(training.stream, Gemm{.c = c, .a = a, .b = b, .m = n, .n = n, .k = n, .trans_b = true});
  };
  product();
  DeviceTimer timer;
  int64_t runs = 0;
  double milliseconds = 0;
  const int at_once = n > 384 ? kAtOnce : 1;
  while (milliseconds < kMilliseconds) {
    timer.start(training.stream);
    for (int i = 0; i < at_once; ++i) { product(); }
    milliseconds += timer.stop(training.stream);
    runs += at_once;
  }
  return 2.0 * static_cast<double>(n * n * n) * static_cast<double>(runs) / (milliseconds * 1e-3);
}

/// "rows" beside a number gives a source nearly all or nearly none of the rows.
std::string weights_note(const DataConfig& data) {
  const auto counts_rows = [](const SourceConfig& source) { return source.weight.is_string(); };
  const auto n = std::count_if(data.sources.begin(), data.sources.end(), counts_rows);
  const bool is_mixed = n > 0 && n < static_cast<ptrdiff_t>(data.sources.size());
  return is_mixed ? "note: the weight \"rows\" is a number of rows, beside weights that are numbers themselves\n" : "";
}

std::string first_lines(const std::string& text, size_t count) {
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  if (lines <= count) { return text; }
  size_t end = 0;
  for (size_t i = 0; i < count; ++i) { end = text.find('\n', end) + 1; }
  return text.substr(0, end) + fmt::format("and {:d} more\n", lines - count);
}

StartText startup_report(const RunConfig& config, TrainingState& training, const MemoryPlan& plan, const Loader& loader,
                         int64_t step, int ranks) {
  constexpr size_t kSources = 4;
  const double flops = training_flops_per_token(config, training.model);
  const std::string head = describe_run(config, training);
  const std::string middle = fmt::format("FLOPs per token: {:.4g} forward, {:.4g} in training\n", flops / 3, flops) +
                             describe_batches(config.train, ranks);
  const std::string data = loader.describe(config.train.steps * config.train.batch_size);
  const std::string end = weights_note(config.data) + describe_time(config, training, flops, step);
  const ParamStore& params = training.model.params();
  return {
      head + describe_parameters(training.stream, params, *training.optimizer) + middle + describe(plan) + data + end,
      head + describe_counts(params, " (train.log has each tensor)") + middle + describe_briefly(plan) +
          first_lines(data, kSources) + end};
}

}  // namespace hebb
