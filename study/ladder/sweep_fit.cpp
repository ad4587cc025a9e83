// What a sweep says of the fit over its results.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/fields.h"
#include "core/suggest.h"
#include "eval/evaluation.h"
#include "study/ladder/sweep_file.h"
#include "study/report/name_pattern.h"
#include "study/report/run_results.h"

namespace hebb {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Of all runs, those that are only planned among them.
std::vector<std::string> ids_of(const Sweep& sweep) {
  std::vector<std::string> ids;
  for (const auto* runs : {&sweep.runs, &sweep.planned}) {
    for (const SweepRun& run : *runs) { ids.push_back(run.id); }
  }
  return ids;
}

/// Tags of the runs, in order of first appearance.
std::vector<std::string> tags_of(const std::vector<SweepRun>& runs) {
  std::vector<std::string> tags;
  for (const SweepRun& run : runs) {
    for (const auto& [tag, value] : run.tags.members()) {
      if (!contains(tags, tag)) { tags.push_back(tag); }
    }
  }
  return tags;
}

/// "eval.NAME." of every evaluation that runs of the sweep take; what follows is known when they have been taken.
std::vector<std::string> evaluations_of(const Sweep& sweep) {
  std::vector<std::string> names;
  const auto add = [&](const Json& json) {
    for (const Evaluation& e : read_evaluations(json, "")) { names.push_back("eval." + e.name + "."); }
  };
  if (!sweep.evals.empty()) { add(load_config(sweep.evals)); }
  for (const SweepRun& run : sweep.runs) {
    if (const Json* eval = run.config.find("eval"); eval != nullptr && !eval->is_null()) { add(*eval); }
  }
  return names;
}

/// Keys with numbers that results of the sweep will have (study/report/run_results.h), those of evaluations aside.
std::vector<std::string> result_numbers(const Sweep& sweep) {
  std::vector<std::string> keys = {"flops.total",
                                   "flops.forward_per_token",
                                   "params.total",
                                   "params.non_embedding",
                                   "params.state",
                                   "params.memory",
                                   "params.active",
                                   "tokens",
                                   "step",
                                   "tokens_per_s",
                                   "mem_bytes",
                                   "seconds",
                                   "loss.final",
                                   "state_bytes.4096",
                                   "state_bytes.65536"};
  for (const std::string& tag : tags_of(sweep.runs)) { keys.push_back(tag); }
  for (const SweepRun& run : sweep.runs) {
    const Json* sets = run.config.at("data").find("validation");
    for (const Json& set : sets != nullptr && sets->is_array() ? sets->items() : std::vector<Json>()) {
      for (const char* group : {"val.", "ppl."}) {
        const std::string key = group + set.at("name").as_string();
        if (!contains(keys, key)) { keys.push_back(key); }
      }
    }
  }
  return keys;
}

void require_key(const Sweep& sweep, const char* name) {
  const Json* key = sweep.source.at("fit").find(name);
  if (key == nullptr) { return; }
  const std::vector<std::string> keys = result_numbers(sweep), evaluations = evaluations_of(sweep);
  const std::string& text = key->as_string();
  const bool is_paper = text.starts_with("flops.") && text.ends_with(".training_per_token");
  const bool is_eval =
      std::any_of(evaluations.begin(), evaluations.end(), [&](const std::string& e) { return text.starts_with(e); });
  if (!contains(keys, text) && !is_paper && !is_eval) {
    const std::string near = nearest_name(text, keys);
    fail_at(key->origin(), std::string("fit.") + name, key->found(),
            "a key of the results: params.*, flops.*, loss.final, tokens, a tag, val.NAME, ppl.NAME or "
            "eval.NAME.METRIC of the runs" +
                (near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
  }
}

void require_tag(const Sweep& sweep, const char* name) {
  const Json* tag = sweep.source.at("fit").find(name);
  const std::vector<std::string> tags = tags_of(sweep.runs);
  if (tag != nullptr && !tag->as_string().empty() && !contains(tags, tag->as_string())) {
    fail_at(tag->origin(), std::string("fit.") + name, tag->found(),
            tags.empty() ? "a tag; the runs have none" : "a tag of the runs: " + quoted_list(tags));
  }
}

void require_matches(const Sweep& sweep, const char* name) {
  const Json* patterns = sweep.source.at("fit").find(name);
  const std::vector<std::string> ids = ids_of(sweep);
  for (const Json& pattern : patterns != nullptr ? patterns->items() : std::vector<Json>()) {
    if (std::none_of(ids.begin(), ids.end(),
                     [&](const std::string& id) { return NamePattern(pattern.as_string()).matches(id); })) {
      fail_at(pattern.origin(), std::string("fit.") + name, pattern.found(),
              "a pattern that fits the id of a run: " + quoted_list(ids));
    }
  }
}

/// Errors: ConfigError for a fit of which a group will have too few points, where the plan of a run has its x.
void check_points(const Sweep& sweep) {
  const FitConfig& fit = *sweep.fit;
  std::vector<std::string> groups;
  std::vector<std::set<double>> points;
  for (const SweepRun& run : sweep.runs) {
    if (!matches_any(fit.fit_ids, run.id) || matches_any(fit.predict_ids, run.id)) { continue; }
    const double x = result_number(run.tags.find(fit.x) != nullptr ? run.tags : planned_result(run), fit.x);
    if (std::isnan(x)) { return; }  // of what the run will have measured
    const Json* tag = fit.by.empty() ? nullptr : run.tags.find(fit.by);
    const std::string group = tag != nullptr ? tag->text() : "";
    const auto at = std::find(groups.begin(), groups.end(), group) - groups.begin();
    if (at == std::ssize(groups)) {
      groups.push_back(group);
      points.emplace_back();
    }
    points[static_cast<size_t>(at)].insert(x);
  }
  const size_t needed = fit.offset ? 3 : 2;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (points[i].size() >= needed) { continue; }
    const Json& place = sweep.source.at("fit");
    fail_at(
        place.origin(), "fit",
        fmt::format("{} of {}{}", points[i].size() == 1 ? "one value" : fmt::format("{:d} values", points[i].size()),
                    fit.x, groups[i].empty() ? "" : fmt::format(" in the group {} = \"{}\"", fit.by, groups[i])),
        fmt::format("at least {:d} in each group; \"fit_ids\" chooses runs, \"by\" and \"x\" groups and points",
                    needed));
  }
}

}  // namespace

void check_published(const Sweep& sweep) {
  const std::vector<std::string> names = ids_of(sweep);
  std::vector<Json> ids;
  for (const std::string& name : names) { ids.push_back(Json::object({{"id", name}})); }
  for (const auto& [row, values] : sweep.published->rows.members()) {
    if (results_of_row(row, ids).empty()) {
      fail_at(values.key_origin(), "published.rows", "\"" + row + "\"", "the id of a run: " + quoted_list(names));
    }
  }
}

void complete_fit(Sweep& sweep, const std::vector<Dimension>& dimensions) {
  for (const char* name : {"x", "y"}) { require_key(sweep, name); }
  for (const char* name : {"by", "level"}) { require_tag(sweep, name); }
  for (const char* name : {"fit_ids", "predict_ids"}) { require_matches(sweep, name); }
  std::vector<std::string> others;
  for (const Dimension& d : dimensions) {
    if (d.kind == Dimension::Kind::axis && d.name != sweep.fit->by) { others.push_back(d.name); }
  }
  if (sweep.source.at("fit").find("level") == nullptr && others.size() == 1 && !sweep.fit->by.empty()) {
    sweep.fit->level = others[0];
  }
  check_points(sweep);
}

}  // namespace hebb
