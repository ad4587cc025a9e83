#include <cstdio>
#include <memory>
#include <optional>

#include "core/terminal.h"
#include "eval/evaluation.h"
#include "inspect/plan.h"
#include "inspect/rank_plan.h"
#include "kernels/common/cores.h"
#include "study/ladder/ladder.h"
#include "study/report/run_identity.h"
#include "tools/command_line.h"
#include "tools/config_arguments.h"
#include "tools/console.h"
#include "tools/verbs.h"
#include "train/model_source.h"

namespace hebb {
namespace {

struct Options {
  std::vector<std::string> words;
  PlanOptions plan;
  int ranks = 0, ranks_per_host = 0;
  std::string link = "nvlink:ib400";
  std::optional<int64_t> shared_memory;
  bool json = false, skip_data = false, diff = false;
};

/// A run configuration; without a micro-batch of its own, that of one of its lanes, or of so many ranks.
RunConfig resolved(Json source, int ranks) {
  RunConfig config = run_config_of(std::move(source), resolve_evaluations);
  const int64_t lanes = config.train.lanes.value_or(ranks);
  if (!config.train.micro_batch_size && config.train.batch_size % lanes == 0) {
    config.train.micro_batch_size = config.train.batch_size / lanes;
  }
  resolve(config, ranks, false);
  return config;
}

Plan plan_file(const std::string& path, const std::vector<std::string>& overrides, const PlanOptions& options) {
  ModelSource source = read_model_source(path, overrides);
  if (!source.is_run) {
    Plan plan = plan_model(source.model, options.length.value_or(4096));
    plan.name = path;
    return plan;
  }
  set_planned_device(source.config, options);
  return plan_run(resolved(std::move(source.config), 1), options);
}

bool is_sweep_file(const std::string& path) {
  return fs::is_regular_file(path) && fs::path(path).extension() == ".json" && is_sweep(load_config(path));
}

/// Sweeps among other files are left out, each with a line that says so.
std::vector<std::string> without_sweeps(std::vector<std::string> files) {
  std::erase_if(files, [](const std::string& file) {
    if (!is_sweep_file(file)) { return false; }
    std::fprintf(stderr, "left out, a sweep: %s (hebb plan %s)\n", file.c_str(), file.c_str());
    return true;
  });
  return files;
}

/// The plans of the files. One sweep alone means its runs.
std::vector<Plan> plan_files(const std::vector<std::string>& files, const std::vector<std::string>& overrides,
                             int ranks, const PlanOptions& options) {
  if (files.size() == 1 && is_sweep_file(files[0])) {
    if (!overrides.empty()) {
      throw ConfigError("hebb plan", "a sweep with " + overrides[0], "changes in the sweep itself (\"set\")");
    }
    LadderOptions ladder;
    ladder.ranks = ranks;
    return plan_runs(read_sweep(files[0]), ladder, options);
  }
  std::vector<Plan> plans;
  for (const std::string& file : without_sweeps(files)) { plans.push_back(plan_file(file, overrides, options)); }
  if (plans.empty()) { throw ConfigError("hebb plan", "several sweeps and nothing else", "one sweep alone"); }
  return plans;
}

/// What data parallel costs.
void print_ranks(const Options& o, const std::string& file, const std::vector<std::string>& overrides) {
  ModelSource source = read_model_source(file, overrides);
  if (!source.is_run) { throw ConfigError(file, "a model without a run", "a run configuration for --ranks"); }
  set_planned_device(source.config, o.plan);
  const RankPlanOptions options{.ranks = o.ranks,
                                .ranks_per_host = o.ranks_per_host,
                                .link = read_link(o.link),
                                .tokens_per_s = o.plan.tokens_per_s,
                                .tflops = o.plan.tflops};
  const RankPlan plan = plan_ranks(resolved(std::move(source.config), o.ranks), options);
  if (o.json) { return print_line(plan.json().dump(1)); }
  print_text(plan.text(stdout_columns()));
}

/// In what the configurations differ; in what their models do where one of them is a model alone.
void print_differences(const std::vector<std::string>& all, const std::vector<std::string>& overrides) {
  const std::vector<std::string> files = without_sweeps(all);
  if (files.size() < 2) { throw ConfigError("hebb plan", "--diff with one configuration", "two or more"); }
  std::vector<ModelSource> sources;
  for (const std::string& file : files) { sources.push_back(read_model_source(file, overrides)); }
  const bool are_runs = std::all_of(sources.begin(), sources.end(), [](const ModelSource& s) { return s.is_run; });
  std::vector<Json> configs;
  for (ModelSource& source : sources) {
    configs.push_back(are_runs ? to_json(resolved(std::move(source.config), 1))
                               : Json::object({{"model", Fields::write(source.model)}}));
  }
  const Table table = config_differences(files, configs);
  if (table.rows.empty()) { return print_line("no difference"); }
  std::vector<std::vector<std::string>> rows{table.titles()};
  for (const std::vector<Json>& cells : table.rows) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const Json& cell : cells) { row.push_back(cell.is_null() ? "-" : cell.as_string()); }
  }
  print_text(text_table(rows, stdout_columns()));
}

void run_plan(Options o) {
  std::vector<std::string> files, overrides;
  for (const std::string& word : o.words) { (is_override(word) ? overrides : files).push_back(word); }
  if (files.empty()) { throw ConfigError("hebb plan", "no configuration", "at least one file"); }
  if (o.diff) { return print_differences(files, overrides); }
  if (o.ranks > 0) {
    if (files.size() > 1) {
      throw ConfigError("hebb plan", "--ranks with " + std::to_string(files.size()) + " files", "one file");
    }
    if (!is_sweep_file(files[0])) { return print_ranks(o, files[0], overrides); }
  }
  std::optional<PlannedSharedMemory> gpu;
  if (o.shared_memory) { gpu.emplace(*o.shared_memory * 1024); }
  o.plan.open_data = !o.skip_data;
  const std::vector<Plan> plans = plan_files(files, overrides, o.ranks, o.plan);
  if (o.json) {
    Json list = Json::array();
    for (const Plan& p : plans) { list.push(p.json()); }
    print_line((plans.size() == 1 ? plans[0].json() : list).dump(1));
  } else {
    print_text(plans.size() == 1 ? plans[0].text(stdout_columns()) : compare_plans(plans, stdout_columns()));
  }
}

}  // namespace

void add_plan_verb(Command program) {
  Command verb =
      program.verb("plan", "Says what a configuration will cost: parameters, FLOPs, state, memory, data, time");
  verb.takes_overrides(run_sections());
  const auto o = std::make_shared<Options>();
  verb.option("CONFIG", o->words,
              "Configurations (a model object or a run), run folders or checkpoints, and changes as key=value")
      .required();
  const Option json = verb.flag("--json", o->json, "Machine-readable output");
  const Option diff =
      verb.flag("--diff", o->diff, "Print in what the configurations differ, and nothing else").excludes(json);
  verb.option("--memory", o->plan.memory_gib, "Find the largest micro-batch that fits, for each train.recompute [GiB]")
      .above(0)
      .excludes(diff);
  verb.option("--shared-memory", o->shared_memory,
              "Of a block of the GPU to plan for: 227 (9.0, 10.x), 163 (8.0), 99 (8.6, 8.9, 12.x) [KB]")
      .at_least(48);
  const Option tokens_per_s =
      verb.option("--tokens-per-s", o->plan.tokens_per_s, "Speed to estimate the time with [tokens/s]")
          .above(0)
          .excludes(diff);
  verb.option("--tflops", o->plan.tflops, "Or: the speed as FLOPs of training [TFLOP/s]")
      .above(0)
      .excludes(tokens_per_s)
      .excludes(diff);
  verb.option("--gpu", o->plan.gpu,
              "Plan for this GPU, on any machine: h100, h200, a100; what fits, and the time at an estimated speed")
      .excludes(diff);
  verb.option("--length", o->plan.length, "Row length for a model without a run (default 4096) [tokens]").at_least(1);
  verb.option("--ranks", o->ranks,
              "Plan data parallel over so many ranks, and over fewer; a sweep: its runs by so many")
      .excludes(diff)
      .at_least(1)
      .default_text("");
  verb.option("--ranks-per-host", o->ranks_per_host, "Ranks on a host (default: all)").at_least(1).default_text("");
  verb.option("--link", o->link,
              "Speed of a rank's links inside a host and out of it: presets (nvlink, pcie; ib400, eth100) or [GB/s]")
      .type_name("IN:OUT");
  verb.flag("--no-data", o->skip_data, "Do not open the data");
  verb.footer(
      "hebb plan configs/quickstart.json train.batch_size=64 --tokens-per-s 2e5\n"
      "hebb plan configs/sdm/*.json --gpu h100 --no-data\n"
      "hebb plan configs/fwpkm/gdn.json mine.json --diff\n"
      "Page: docs/verbs/plan.md");
  verb.runs([o] { run_plan(*o); });
}

}  // namespace hebb
