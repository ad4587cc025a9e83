#include <fmt/printf.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "comm/launched_rank.h"
#include "comm/load_mpi.h"
#include "comm/thread_communicator.h"
#include "core/join.h"
#include "core/json.h"
#include "core/parallel.h"
#include "core/suggest.h"
#include "core/terminal.h"
#include "inspect/bench.h"
#include "inspect/bench_comm.h"
#include "inspect/bench_operations.h"
#include "kernels/gemm/bench.h"
#include "tools/command_line.h"
#include "tools/console.h"
#include "tools/options.h"
#include "tools/train_ranks.h"
#include "tools/verbs.h"
#include "train/model_source.h"

namespace hebb {
namespace {

struct Options {
  std::vector<std::string> models;
  BenchSteps work;
  int64_t context = 1024;
  DeviceOptions device;
  std::optional<int64_t> tokens;
  std::string against;
  bool json = false, kernels = false, decode = false, layers = false, profile = false;
  bool comm = false;  // what follows is of --comm
  int ranks = 0;
  std::string engine;
  int64_t bucket_mib = 64;
  double seconds = 0.3;
};

ModelConfig find_model(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& list : {bench_models(), bench_layers()}) {
    for (const BenchModel& m : list) {
      if (m.name == name) { return Fields::read<ModelConfig>(parse_json(m.json, name), "model"); }
      names.push_back(m.name);
    }
  }
  std::error_code error;
  if (!fs::exists(name, error)) {
    const std::string nearest = nearest_name(name, names);
    throw ConfigError("MODEL", "\"" + name + "\"",
                      "a built-in model (see hebb bench --help) or a configuration file" +
                          (nearest.empty() ? "" : " (did you mean " + nearest + "?)"));
  }
  return read_model_config(name);
}

std::string names_of(const std::vector<BenchModel>& models) {
  return join(models, ", ", [](const BenchModel& m) { return m.name; });
}

/// Matrix products beside the peak of multiply-adds in registers: x W^T, dy W and dy^T x of the shapes that 2,048
/// tokens of a small model make.
Json gemm_rates(bool quiet) {
  const std::vector<cpu::GemmShape> shapes = {{false, true, 2048, 256, 256},  {false, true, 2048, 768, 256},
                                              {false, true, 2048, 3072, 768}, {false, false, 2048, 256, 768},
                                              {true, false, 256, 768, 2048},  {false, true, 2048, 2048, 2048}};
  Json rates = Json::array();
  for (const cpu::GemmRate& r : cpu::measure_gemm(DType::f32, shapes, 0.3)) {
    const std::string name = fmt::format("{}{} {} x {} x {}", r.shape.trans_a ? "T" : "N", r.shape.trans_b ? "T" : "N",
                                         r.shape.m, r.shape.n, r.shape.k);
    if (!quiet) {
      std::printf("gemm f32 %-21s %8.1f GFLOP/s  %5.1f%% of the FMA peak of %.0f\n", name.c_str(), r.gflops,
                  100 * r.gflops / r.peak_gflops, r.peak_gflops);
    }
    rates.push(Json::object({{"name", name}, {"gflops", r.gflops}, {"peak_gflops", r.peak_gflops}}));
  }
  return rates;
}

/// Those that leave a GPU's tensor cores idle.
Json plain_cores(const std::vector<std::string>& operations, bool quiet) {
  for (const std::string& operation : operations) {
    if (!quiet) { std::printf("runs on plain cores: %s\n", operation.c_str()); }
  }
  return Json::array({operations.begin(), operations.end()});
}

/// Operations beside their bounds.
Json kernel_rates(const OperationSpeeds& speeds, bool quiet) {
  if (!quiet) {
    std::printf("copy %.1f GB/s; best product %.2f TFLOP/s; bounds from these two\n", speeds.copy_gb_per_s,
                speeds.best_tflops);
  }
  std::vector<std::vector<std::string>> table = {{"", "ms", "TFLOP/s", "GB/s", "of bound", "bound"}};
  Json rows = Json::array();
  for (const auto* list : {&speeds.products, &speeds.operations}) {
    for (const OperationSpeed& s : *list) {
      table.push_back({s.name, fmt::format("{:.4f}", s.ms), fmt::format("{:.3f}", s.tflops()),
                       fmt::format("{:.1f}", s.gb_per_s()), fmt::format("{:.1f}%", 100 * s.share()),
                       s.memory_bound ? "memory" : "compute"});
      rows.push(Json::object({{"name", s.name},
                              {"ms", s.ms},
                              {"tflops", s.tflops()},
                              {"gb_per_s", s.gb_per_s()},
                              {"bound", s.memory_bound ? "memory" : "compute"},
                              {"share_of_bound", s.share()}}));
    }
  }
  if (!quiet) { print_text(text_table(table, stdout_columns())); }
  return Json::object({{"copy_gb_per_s", speeds.copy_gb_per_s},
                       {"best_tflops", speeds.best_tflops},
                       {"rows", rows},
                       {"plain_cores", plain_cores(speeds.plain_cores, quiet)}});
}

/// Operations of one training step; those of less than a hundredth of it together.
Json step_profile(const StepProfile& profile, bool quiet) {
  std::vector<std::vector<std::string>> table = {{"", "launches", "ms", "of step", "GFLOP/s", "GB/s"}};
  Json rows = Json::array();
  const auto row = [&](const std::string& name, int64_t launches, double ms) -> std::vector<std::string>& {
    table.push_back({name, launches > 0 ? std::to_string(launches) : "", fmt::format("{:.3f}", ms),
                     fmt::format("{:.1f}%", 100 * ms / profile.step_ms), "", ""});
    return table.back();
  };
  double small_ms = 0;
  int64_t small = 0;
  for (const OperationSpeed& o : profile.operations) {
    if (o.ms >= 0.01 * profile.step_ms) {
      std::vector<std::string>& cells = row(o.name, o.launches, o.ms);
      if (o.flops > 0) { cells[4] = fmt::format("{:.1f}", 1e3 * o.tflops()); }
      cells[5] = fmt::format("{:.1f}", o.gb_per_s());
    } else {
      small_ms += o.ms;
      small += o.launches;
    }
    rows.push(Json::object(
        {{"name", o.name}, {"launches", o.launches}, {"ms", o.ms}, {"flops", o.flops}, {"bytes", o.bytes}}));
  }
  if (small > 0) { row("others", small, small_ms); }
  row("between operations", 0, profile.rest_ms);
  if (!quiet) { print_text(text_table(table, stdout_columns())); }
  return Json::object({{"step_ms", profile.step_ms}, {"rest_ms", profile.rest_ms}, {"operations", rows}});
}

constexpr int kDefaultRanks = 4;

CommBench comm_bench(const Options& o) {
  CommBench bench{.sizes = {}, .seconds = o.seconds};
  for (const int64_t mib : {int64_t{1}, int64_t{4}, int64_t{16}, int64_t{64}, o.bucket_mib}) {
    bench.sizes.push_back(mib << 20);
  }
  return bench;
}

/// As one of several ranks.
void measure_rank(Communicator& communicator, const Options& o, const CommBench& bench) {
  const std::vector<CommSpeed> speeds = measure_comm(communicator, bench);
  if (communicator.rank() != 0) { return; }
  if (o.json) {
    const Json json = Json::object(
        {{"ranks", communicator.size()}, {"engine", communicator.engine()}, {"collectives", to_json(speeds)}});
    std::printf("%s\n", json.dump(1).c_str());
  } else {
    std::printf("%s", describe(speeds, communicator.size(), communicator.engine()).c_str());
  }
  std::fflush(stdout);
}

/// Ranks are threads of this process, or processes that mpirun starts, here or by the user.
int run_comm(const Options& o) {
  CommBench bench = comm_bench(o);
  const LaunchedRank launched = read_launched_rank([](const char* name) -> const char* { return std::getenv(name); });
  const int ranks = o.ranks > 0 ? o.ranks : kDefaultRanks;
  if (launched.size > 1) {
    set_threads(std::max(1, threads() / launched.local_size.value_or(launched.size)));
    const std::unique_ptr<Communicator> communicator = load_mpi_communicator();
    bench.reduce_scatter = mpi_reduce_scatter;
    measure_rank(*communicator, o, bench);
    return 0;
  }
  if (o.engine == "mpi" || (o.engine.empty() && has_mpi())) { return start_ranks(ranks, false); }
  set_threads(1);
  run_ranks(ranks, [&](Communicator& communicator) { measure_rank(communicator, o, bench); });
  return 0;
}

int run_bench(Options o) {
  if (o.comm) { return run_comm(o); }
  if (o.ranks > 0) { throw ConfigError("--ranks", "needs --comm"); }
  const Compute compute = set_up_compute(o.device);
  if (o.layers) {
    for (const BenchModel& m : bench_layers()) { o.models.push_back(m.name); }
    if (o.against.empty()) { o.against = "gdn"; }
  }
  if (o.models.empty() && !o.kernels) {
    for (const BenchModel& m : bench_models()) { o.models.push_back(m.name); }
  }
  // A name that is none is an error before anything is measured.
  for (const std::string& name : o.models) { find_model(name); }
  if (!o.against.empty()) { find_model(o.against); }
  print_fallback(o.device, compute);
  Json out = Json::object({{"threads", threads()}});
  const auto line = [&](const char* format, auto... values) {
    if (!o.json) { print_text(fmt::sprintf(format, values...)); }
  };
  if (o.kernels) {
    if (compute.dtype == DType::f64) { throw ConfigError("--kernels", "--precision fp64", "fp32 or bf16"); }
    if (compute.device == DeviceKind::cpu) { out.set("gemm", gemm_rates(o.json)); }
    const int64_t tokens = o.tokens.value_or(compute.device == DeviceKind::cpu ? 2048 : 16384);
    out.set("kernels", kernel_rates(measure_operations(compute, tokens, 0.2), o.json));
  }
  if (o.profile) {
    const OperationSpeeds bounds = measure_bounds(compute, compute.device == DeviceKind::cpu ? 2048 : 16384, 0.1);
    line("copy %.1f GB/s; best product %.1f GFLOP/s\n", bounds.copy_gb_per_s, 1e3 * bounds.best_tflops);
    out.set("copy_gb_per_s", bounds.copy_gb_per_s);
    out.set("best_tflops", bounds.best_tflops);
  }
  Json list = Json::array();
  for (const std::string& name : o.models) {
    double baseline = 0;  // tokens/s, measured just before: speeds drift
    if (!o.against.empty()) { baseline = measure_model(find_model(o.against), compute, o.work).tokens_per_s(); }
    const ModelSpeed s = measure_model(find_model(name), compute, o.work);
    line(
        "%-24s %lld x %lld: %9.0f tokens/s best, %9.0f median, %6.1f GFLOP/s; step %.1f ms (alone: forward %.1f, "
        "optimizer %.1f)\n",
        name.c_str(), static_cast<long long>(s.rows), static_cast<long long>(s.length), s.tokens_per_s(),
        s.median_tokens_per_s(), s.gflops(), s.best_ms, s.forward_ms, s.optimizer_ms);
    Json j = Json::object();
    if (baseline > 0) {
      line("%-24s %.2f of %s's %.0f tokens/s\n", "", s.tokens_per_s() / baseline, o.against.c_str(), baseline);
      j.set("against", o.against);
      j.set("against_tokens_per_s", baseline);
    }
    j.set("model", name);
    j.set("rows", s.rows);
    j.set("length", s.length);
    j.set("tokens_per_s", s.tokens_per_s());
    j.set("median_tokens_per_s", s.median_tokens_per_s());
    j.set("gflops", s.gflops());
    j.set("step_ms", s.best_ms);
    if (s.tuning.products > 0) {
      for (const std::string& note : s.tuning_notes) { line("%-24s %s\n", "", note.c_str()); }
      line("%-24s %s\n", "", s.tuning.text().c_str());
      j.set("autotune_seconds", s.tuning.seconds);
      j.set("autotune_faster", s.tuning.faster);
    }
    j.set("plain_cores", plain_cores(s.plain_cores, o.json));
    if (o.decode) {
      const DecodeSpeed d = measure_decode(find_model(name), compute, o.context);
      line("%-24s prefill %9.0f tokens/s, decode %.3f ms a token at context %lld\n", "", d.prefill_tokens_per_s,
           d.ms_per_token, static_cast<long long>(o.context));
      j.set("prefill_tokens_per_s", d.prefill_tokens_per_s);
      j.set("decode_ms_per_token", d.ms_per_token);
    }
    if (o.profile) { j.set("profile", step_profile(profile_model(find_model(name), compute, o.work), o.json)); }
    list.push(j);
  }
  out.set("models", list);
  if (o.json) { std::printf("%s\n", out.dump(1).c_str()); }
  return 0;
}

}  // namespace

void add_bench_verb(Command program) {
  Command verb = program.verb("bench", "Measures kernels and training steps on this machine");
  const auto o = std::make_shared<Options>();
  verb.option("MODEL", o->models,
              "Built-in models (" + names_of(bench_models()) + "; the last with one layer of another type: " +
                  names_of(bench_layers()) + ") or configuration files; default: the first built-in ones");
  verb.flag("--layers", o->layers, "All built-in models with one layer of another type, against gdn");
  verb.option("--against", o->against, "Also measure this model before each, and print the ratio").type_name("MODEL");
  verb.flag("--kernels", o->kernels,
            "Copy bandwidth, matrix products, norms, attention, ... each beside its bound on this device");
  verb.option("--tokens", o->tokens, "Tokens of --kernels (default: 2048 on the CPU, 16384 on a GPU)").at_least(1);
  verb.flag("--comm", o->comm, "Collectives between ranks on CPUs, beside MPI_Reduce_scatter");
  verb.option("--ranks", o->ranks, "Ranks of --comm (default: 4)").at_least(2).default_text("");
  verb.option("--engine", o->engine, "mpi or threads (default: mpi where this build has it)")
      .one_of({"mpi", "threads"})
      .default_text("");
  verb.option("--bucket", o->bucket_mib, "Also measure this size, that of train.comm.bucket_mib [MiB]").at_least(1);
  verb.option("--seconds", o->seconds, "Time for each collective and size, at least 5 times [s]").above(0);
  verb.flag("--profile", o->profile, "Also the time of each operation of a step, each kernel launched by itself");
  verb.flag("--decode", o->decode, "Also prefill and decoding speed");
  verb.option("--context", o->context, "Context of --decode [tokens]").at_least(1);
  verb.option("--rows", o->work.rows, "Rows per step").at_least(1);
  verb.option("--length", o->work.length, "Row length [tokens]").at_least(1);
  verb.option("--steps", o->work.steps, "Measured steps; the best and the median are reported").at_least(1);
  verb.option("--warmup", o->work.warmup, "Steps before").at_least(0);
  verb.flag("!--no-autotune", o->work.autotune,
            "GPU: do not measure the algorithms of matrix products first, as train.autotune does");
  verb.option("--recompute", o->work.recompute, "As train.recompute").one_of({"none", "block", "mixer", "ffn"});
  add_device_options(verb, o->device);
  add_graphs_option(verb, o->device);
  verb.flag("--json", o->json, "Machine-readable output");
  verb.runs([o] { run_bench(*o); });
}

}  // namespace hebb
