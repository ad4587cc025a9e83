#include "study/ladder/sweep.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "eval/evaluation.h"
#include "inspect/plan.h"
#include "study/ladder/expression.h"
#include "study/ladder/sweep_file.h"
#include "study/report/name_pattern.h"
#include "train/run_config.h"

namespace hebb {
namespace {

constexpr int kMostRuns = 10'000;

double quantity_of(const Json& config, const std::string& name) {
  const Json* json = config.find("model");
  const auto model_config = Fields::read<ModelConfig>(json != nullptr ? *json : Json::object(), "model");
  const Model model(model_config);
  if (name == "flops.forward_per_token") {
    const Json* length = config.find_path("train.sequence_length");
    if (length == nullptr || !length->is_integer()) {
      fail_at(config.origin(), "train.sequence_length", length == nullptr ? "nothing" : length->found(),
              "an integer, for flops.forward_per_token");
    }
    return model.flops_per_token(length->as_int());
  }
  const ParameterCounts n = count_parameters(model);
  const std::map<std::string, int64_t> values = {{"params.total", n.total},   {"params.non_embedding", n.non_embedding},
                                                 {"params.state", n.state},   {"params.fast", n.fast},
                                                 {"params.memory", n.memory}, {"params.active", n.active}};
  return static_cast<double>(values.at(name));
}

std::optional<double> look_up(const Json& config, const std::string& name) {
  if (std::find(sweep_quantities().begin(), sweep_quantities().end(), name) != sweep_quantities().end()) {
    return quantity_of(config, name);
  }
  const Json* v = config.find_path(name);
  return v != nullptr && v->is_number() ? std::optional(v->as_double()) : std::nullopt;
}

/// The multiple of `multiple_of` that brings `quantity_at(value)` nearest to `target`; it must rise or fall with the
/// value. Doubling, then bisection.
int64_t nearest_multiple(int64_t multiple_of, double target, const std::function<double(int64_t)>& quantity_at) {
  const auto reach = [&](int64_t k) { return quantity_at(k * multiple_of); };
  const double sign = reach(2) >= reach(1) ? 1.0 : -1.0;
  int64_t low = 1, high = 1;
  constexpr int64_t kLargest = int64_t{1} << 40;
  while (sign * (reach(high) - target) < 0 && high * multiple_of < kLargest) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (sign * (reach(middle) - target) < 0 ? low : high) = middle;
  }
  return multiple_of * (std::abs(reach(low) - target) <= std::abs(reach(high) - target) ? low : high);
}

/// What a sweep keeps equal may differ by 2 %. More means that the values are too far apart for the target.
void require_near(const Solved& s, const std::string& where) {
  if (!(std::abs(s.reached - s.target) <= 0.02 * std::abs(s.target))) {
    throw ConfigError(
        where, fmt::format("{} = {} at the nearest value, {:d}", s.quantity, number_json(s.reached).dump(), s.value),
        "at most 2 % from " + number_json(s.target).dump());
  }
}

/// The product of a sweep's dimensions, and the configuration of each run.
class Composer {
 public:
  explicit Composer(const SweepFile& file) : file_(file) {
    if (!file.base.empty()) { bases_[""] = load_config(file.base); }
    for (const Dimension& d : file.dimensions) {
      for (const Choice& choice : d.choices) {
        if (!choice.config.empty()) { bases_[choice.config] = load_config(choice.config); }
      }
    }
  }

  /// Runs that are trained, then those that are only planned.
  std::pair<std::vector<SweepRun>, std::vector<SweepRun>> run() {
    require_few_runs();
    expand({});
    for (size_t i = 0; i < drafts_.size(); ++i) {
      try {
        complete(i);
        finish(drafts_[i].run);
      } catch (const ConfigError& error) {
        throw ConfigError(error.what(), "in the run " + drafts_[i].run.id);  // choices may be wrong in some runs only
      }
    }
    std::pair<std::vector<SweepRun>, std::vector<SweepRun>> runs;
    for (Draft& draft : drafts_) {
      const bool trains =
          std::all_of(draft.chosen.begin(), draft.chosen.end(), [](const Choice* c) { return c->train; });
      (trains ? runs.first : runs.second).push_back(std::move(draft.run));
    }
    return runs;
  }

 private:
  using Choices = std::vector<const Choice*>;  // of a run, by dimension

  struct Draft {
    SweepRun run;
    Choices chosen;
    int progress = 0;  // 0: nothing, 1: being composed, 2: done
  };

  /// Before any of them takes memory.
  void require_few_runs() const {
    double runs = 1;
    for (const Dimension& d : file_.dimensions) { runs *= static_cast<double>(d.choices.size()); }
    if (runs > kMostRuns) {
      throw ConfigError("runs, axes and grid", fmt::format("{:.6g} runs, all combinations", runs),
                        fmt::format("at most {:d}", kMostRuns));
    }
  }

  void expand(const Choices& chosen) {
    if (chosen.size() < file_.dimensions.size()) {
      for (const Choice& choice : file_.dimensions[chosen.size()].choices) {
        Choices with = chosen;
        with.push_back(&choice);
        expand(with);
      }
      return;
    }
    const std::string id = id_of(chosen, 0, chosen.size());
    if (!is_folder_name(id) || is_ladder_file(id)) {
      fail_at(chosen.front()->at, chosen.front()->path, "the id " + Json(id).found(),
              is_ladder_file(id) ? "another name: a ladder has a file of its own that is called so"
                                 : "a name of at most 255 bytes that can be a folder");
    }
    if (!ids_.insert({id, drafts_.size()}).second) {
      fail_at(chosen.front()->at, chosen.front()->path, "the id \"" + id + "\" twice", "names that make different ids");
    }
    drafts_.push_back({{id, {}, {}, tags_of(chosen), {}, cluster_of(chosen)}, chosen});
  }

  /// Names of the choices of dimensions `from` to `to`: of runs and axes joined by "-", of the grid by "_".
  std::string id_of(const Choices& chosen, size_t from, size_t to) const {
    std::string id;
    for (size_t i = from; i < to; ++i) {
      id += (i == from ? "" : file_.dimensions[i].kind == Dimension::Kind::grid ? "_" : "-") + chosen[i]->name;
    }
    return id;
  }

  Json cluster_of(const Choices& chosen) const {
    Json cluster = file_.ranks > 1 ? Json::object({{"ranks", file_.ranks}}) : Json::object();
    merge_json(cluster, file_.cluster);
    for (const Choice* choice : chosen) { merge_json(cluster, choice->cluster); }
    return cluster;
  }

  /// Results name what axes and the grid chose; a tag of the sweep keeps its name.
  Json tags_of(const Choices& chosen) const {
    Json tags = Json::object();
    for (const Choice* choice : chosen) {
      for (const auto& [name, value] : choice->tags.members()) { tags.set(name, value); }
    }
    for (size_t i = 0; i < chosen.size(); ++i) {
      const Dimension& d = file_.dimensions[i];
      if (d.kind == Dimension::Kind::grid && tags.find(d.name) == nullptr) {
        tags.set(d.name, chosen[i]->set.members()[0].second);
      }
    }
    return tags;
  }

  /// The run's file or base, `set` and the grid's values, what is solved so far, `derive`: expressions follow solved
  /// values and do not replace them.
  Json compose(const Draft& draft, const std::vector<std::pair<std::string, Json>>& solved) const {
    const auto with_file = std::find_if(draft.chosen.begin(), draft.chosen.end(),
                                        [](const Choice* choice) { return !choice->config.empty(); });
    Json config = bases_.at(with_file != draft.chosen.end() ? (*with_file)->config : "");
    for (const Choice* choice : draft.chosen) {
      for (const auto& [path, value] : choice->set.members()) { set_path(config, path, value); }
    }
    for (const auto& [path, value] : solved) { set_path(config, path, value); }
    const auto derive = [&](const Json& expressions, const std::string& where) {
      for (const auto& [path, text] : expressions.members()) {
        const auto is_path = [&p = path](const auto& s) { return s.first == p; };
        if (std::none_of(solved.begin(), solved.end(), is_path)) {
          set_path(config, path, derived(config, text, where + path));
        }
      }
    };
    for (const Choice* choice : draft.chosen) { derive(choice->derive, choice->path + ".derive."); }
    derive(file_.derive, "derive.");
    return config;
  }

  static Json derived(const Json& config, const Json& text, const std::string& where) {
    if (!text.is_string()) { fail_at(text.origin(), where, text.found(), "an expression in quotes"); }
    const auto value_of = [&](const std::string& name) { return look_up(config, name); };
    Json value = number_json(evaluate(text.as_string(), value_of, text.origin().str() + ": " + where));
    value.set_origin(text.origin(), text.key_origin());
    return value;
  }

  void complete(size_t i) {
    Draft& draft = drafts_[i];
    if (draft.progress == 2) { return; }
    draft.progress = 1;
    std::vector<const SolveEntry*> entries;
    for (const Choice* choice : draft.chosen) {
      for (const SolveEntry& s : choice->solve) { entries.push_back(&s); }
    }
    for (const SolveEntry& s : file_.solve) { entries.push_back(&s); }
    std::vector<std::pair<std::string, Json>> solved;
    std::vector<const SolveEntry*> used;
    for (const SolveEntry* s : entries) {
      const std::optional<double> target = target_of(*s, i);
      if (!target) { continue; }
      if (std::any_of(solved.begin(), solved.end(), [&](const auto& other) { return other.first == s->path; })) {
        throw ConfigError(s->where + ".path", s->path + ", which another entry solves",
                          "a path that is solved once in a run");
      }
      Json& value = solved.emplace_back(s->path, Json()).second;
      const auto put = [&](int64_t number) {
        value = number;
        value.set_origin(s->at, s->at);
      };
      put(nearest_multiple(s->multiple_of, *target, [&](int64_t number) {
        put(number);
        return quantity_of(compose(draft, solved), s->quantity);
      }));
      draft.run.solved.push_back({s->path, s->quantity, value.as_int(), *target, 0});
      used.push_back(s);
    }
    draft.run.config = compose(draft, solved);
    for (size_t k = 0; k < used.size(); ++k) {
      draft.run.solved[k].reached = quantity_of(draft.run.config, used[k]->quantity);
      require_near(draft.run.solved[k], used[k]->where);
    }
    draft.progress = 2;
  }

  /// What `s` asks of a run; nothing when that is the run itself.
  std::optional<double> target_of(const SolveEntry& s, size_t i) {
    if (!s.equals.is_string()) { return s.equals.as_double(); }
    const size_t meant = reference(s, drafts_[i]);
    if (meant == i) { return std::nullopt; }
    if (drafts_[meant].progress == 1) {
      throw ConfigError(s.where + ".equals", s.equals.found() + ", which is solved from this run",
                        "a run that does not depend on this one");
    }
    complete(meant);
    return quantity_of(drafts_[meant].run.config, s.quantity);
  }

  /// The run that a solve entry names: by its id, or by a part of it (a run, a choice, several in their order), which
  /// means the run that has the rest in common with `draft`.
  size_t reference(const SolveEntry& s, const Draft& draft) const {
    const std::string& name = s.equals.as_string();
    if (const auto it = ids_.find(name); it != ids_.end()) { return it->second; }
    std::vector<size_t> found;
    for (size_t i = 0; i < drafts_.size(); ++i) {
      if (drafts_[i].run.id.find(name) != std::string::npos && has_part(drafts_[i].chosen, draft.chosen, name)) {
        found.push_back(i);
      }
    }
    if (found.empty()) {
      throw ConfigError(s.where + ".equals", s.equals.found(),
                        "a number, or the id of a run of this sweep or a part of it: " + names());
    }
    if (found.size() > 1) {
      throw ConfigError(s.where + ".equals",
                        s.equals.found() + ", which for " + draft.run.id + " is " + drafts_[found[0]].run.id + " or " +
                            drafts_[found[1]].run.id,
                        "the id of one run or a part of it");
    }
    return found[0];
  }

  /// Whether a part of the id is `name` and the rest of the choices is that of `other`.
  bool has_part(const Choices& chosen, const Choices& other, const std::string& name) const {
    for (size_t from = 0; from < chosen.size(); ++from) {
      for (size_t to = from + 1; to <= chosen.size(); ++to) {
        const bool rest_agrees =
            std::equal(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(from), other.begin()) &&
            std::equal(chosen.begin() + static_cast<std::ptrdiff_t>(to), chosen.end(),
                       other.begin() + static_cast<std::ptrdiff_t>(to));
        if (rest_agrees && id_of(chosen, from, to) == name) { return true; }
      }
    }
    return false;
  }

  std::string names() const {
    std::vector<std::string> all;
    for (const Dimension& d : file_.dimensions) {
      for (const Choice& c : d.choices) { all.push_back(c.name); }
    }
    return quoted_list(all);
  }

  /// Reads the run strictly and writes it with absolute paths.
  static void finish(SweepRun& run) {
    run.config.set("name", Json(run.id));
    auto config = Fields::read<RunConfig>(run.config, "");
    if (!config.eval.is_null()) { config.eval = resolve_evaluations(config.eval, "eval."); }
    const Model model(config.model);
    run.written = std::exchange(run.config, to_json(config));
  }

  const SweepFile& file_;
  std::map<std::string, Json> bases_;  // by file; "": the sweep's base
  std::vector<Draft> drafts_;
  std::map<std::string, size_t> ids_;
};

}  // namespace

const std::vector<std::string>& sweep_quantities() {
  static const std::vector<std::string> names = {
      "params.total",  "params.non_embedding", "params.state",           "params.fast",
      "params.memory", "params.active",        "flops.forward_per_token"};
  return names;
}

Sweep read_sweep(const fs::path& path) {
  Sweep sweep;
  sweep.source = load_config(path.string());
  if (sweep.source.is_object() && sweep.source.find("model") != nullptr) {
    throw ConfigError(path.string(), "the configuration of one run (it has \"model\")",
                      "a sweep; hebb train trains one run");
  }
  const SweepFile file = read_sweep_file(sweep.source);
  sweep.name = file.name;
  sweep.evals = file.evals;
  sweep.max_parallel = file.max_parallel;
  sweep.ranks = file.ranks;
  sweep.fit = file.fit;
  sweep.published = file.published;
  std::tie(sweep.runs, sweep.planned) = Composer(file).run();
  if (sweep.runs.empty()) { fail_at(sweep.source.origin(), "runs", "no run that is trained", "at least one"); }
  if (!sweep.evals.empty()) {
    if (read_evaluations(load_config(sweep.evals), "").empty()) {  // what is wrong shows before anything runs
      throw ConfigError(sweep.evals + ": evaluations", "an empty list", "at least one evaluation");
    }
  }
  if (sweep.fit) { complete_fit(sweep, file.dimensions); }
  if (sweep.published) { check_published(sweep); }
  return sweep;
}

Json planned_result(const SweepRun& run) {
  const auto config = Fields::read<RunConfig>(run.config, "");
  const Model model(config.model);
  const ParameterCounts n = count_parameters(model);
  const double tokens = static_cast<double>(config.train.steps) * static_cast<double>(config.train.tokens_per_step());
  const double forward = model.flops_per_token(config.train.sequence_length);
  Json json = Json::object({{"id", run.id}});
  for (const auto& [tag, value] : run.tags.members()) { json.set(tag, value); }
  json.set("params.total", n.total);
  json.set("params.non_embedding", n.non_embedding);
  json.set("params.active", n.active);
  json.set("flops.forward_per_token", forward);
  json.set("flops.total", 3 * forward * tokens);
  json.set("tokens", tokens);
  return json;
}

}  // namespace hebb
