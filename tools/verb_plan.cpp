#include <cstdio>
#include <memory>

#include "inspect/plan.h"
#include "tools/command_line.h"
#include "tools/config_arguments.h"
#include "tools/verbs.h"
#include "train/model_source.h"

namespace hebb {
namespace {

struct Options {
  std::vector<std::string> words;
  PlanOptions plan;
  bool json = false, skip_data = false;
};

Plan plan_file(const std::string& path, const std::vector<std::string>& overrides, const PlanOptions& options) {
  const ModelSource source = read_model_source(path, overrides);
  if (!source.is_run) {
    Plan plan = plan_model(source.model, options.length.value_or(4096));
    plan.name = path;
    return plan;
  }
  RunConfig config = read_run_config(path, overrides);
  resolve(config, World{}, false);
  return plan_run(config, options);
}

void run_plan(Options o) {
  std::vector<std::string> files, overrides;
  for (const std::string& word : o.words) { (is_override(word) ? overrides : files).push_back(word); }
  if (files.empty()) { throw ConfigError("hebb plan", "no configuration", "at least one file"); }
  o.plan.open_data = !o.skip_data;
  std::vector<Plan> plans;
  for (const std::string& file : files) { plans.push_back(plan_file(file, overrides, o.plan)); }
  if (o.json) {
    Json list = Json::array();
    for (const Plan& p : plans) { list.push(p.json()); }
    std::printf("%s\n", (plans.size() == 1 ? plans[0].json() : list).dump(1).c_str());
  } else {
    std::printf("%s", (plans.size() == 1 ? plans[0].text() : compare_plans(plans)).c_str());
  }
}

}  // namespace

void add_plan_verb(Command program) {
  Command verb =
      program.verb("plan", "Says what a configuration will cost: parameters, FLOPs, state, memory, data, time");
  const auto o = std::make_shared<Options>();
  verb.option("CONFIG", o->words, "Configurations (a model object or a run), and changes to them as key=value")
      .required();
  verb.flag("--json", o->json, "Machine-readable output");
  verb.option("--memory", o->plan.memory_gib, "Find the largest micro-batch that fits [GiB]").above(0);
  verb.option("--tokens-per-s", o->plan.tokens_per_s, "Speed to estimate the time with [tokens/s]").above(0);
  verb.option("--length", o->plan.length, "Row length for a model without a run (default 4096) [tokens]").at_least(1);
  verb.flag("--no-data", o->skip_data, "Do not open the data");
  verb.runs([o] { run_plan(*o); });
}

}  // namespace hebb
