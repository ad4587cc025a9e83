#include "study/report/run_results.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/json_line.h"
#include "core/mean.h"
#include "eval/comparison.h"
#include "eval/result_files.h"
#include "inspect/plan.h"
#include "study/report/group_by_seed.h"
#include "study/report/parts.h"
#include "study/report/report.h"
#include "study/report/run_identity.h"
#include "study/report/run_status.h"
#include "train/checkpoint.h"
#include "train/model_source.h"
#include "train/run_config.h"

namespace hebb {
namespace {

constexpr double kFinalShare = 0.05;  // of the steps (docs/verbs/report.md)

/// The mean of what was logged in the last share of the steps, the last value at least.
double mean_of_end(const Curve& curve) {
  Mean mean;
  const double from = (1 - kFinalShare) * curve.x.back();
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (curve.x[i] > from) { mean.add(curve.y[i]); }
  }
  return mean.value();
}

double median(std::vector<double> values) {
  if (values.empty()) { return NAN; }
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

void add_plan(Json& result, const Json& config, int64_t tokens) {
  const auto run = Fields::read<RunConfig>(config, "");
  const Plan plan = plan_model(run.model, run.train.sequence_length);
  const ParameterCounts& n = plan.parameters;
  for (const auto& [key, value] :
       {std::pair{"params.total", n.total}, std::pair{"params.non_embedding", n.non_embedding},
        std::pair{"params.state", n.state}, std::pair{"params.memory", n.memory},
        std::pair{"params.active", n.active}}) {
    result.set(key, value);
  }
  result.set("flops.forward_per_token", plan.flops_per_token);
  result.set("flops.total", 3 * plan.flops_per_token * static_cast<double>(tokens));
  for (const PaperFlops& p : plan.papers) {
    result.set("flops." + p.name + ".training_per_token", p.training_per_token);
  }
  for (size_t i = 0; i < plan.contexts.size(); ++i) {
    if (plan.contexts[i] == 4096 || plan.contexts[i] == 65536) {
      result.set(fmt::format("state_bytes.{:d}", plan.contexts[i]), plan.state_bytes[i]);
    }
  }
}

void add_evaluations(Json& result, const RunPlace& place) {
  for (const fs::path& file : evaluation_files(place)) {
    const Json json = read_evaluation(file);
    const Json* metrics = json.find("metrics");
    if (metrics == nullptr) { continue; }
    for (const auto& [name, metric] : metrics->members()) {
      const Json* value = metric.is_object() ? metric.find("value") : &metric;
      const std::string key = "eval." + file.stem().string() + "." + name;
      if (value != nullptr && value->is_number()) { result.set(key, *value); }
      for (const char* part : {"stderr", "low", "high"}) {
        const Json* bound = metric.is_object() ? metric.find(part) : nullptr;
        if (bound != nullptr && bound->is_number()) { result.set(key + "." + part, *bound); }
      }
    }
    if (const Json* source = json.find("source"); source != nullptr) {
      result.set("eval." + file.stem().string() + ".source", *source);
    }
    result.set("eval." + file.stem().string() + "@data", evaluation_data(json, false));
    if (is_per_token(member_text(json, "kind"), "")) {
      result.set("eval." + file.stem().string() + "@tokens", evaluation_data(json, true));
    }
  }
}

/// What the value under `key` was measured on: the identity key for it, or "".
std::string identity_of(const Json& result, const std::string& key) {
  if (key.starts_with("loss.")) { return "loss@data"; }
  if (key.starts_with("val.") || key.starts_with("ppl.")) { return "val" + key.substr(3) + "@data"; }
  for (const auto& [other, value] : result.members()) {
    const size_t at = other.find('@');
    if (at == std::string::npos || !key.starts_with(other.substr(0, at) + ".")) { continue; }
    const std::string tokens = other.substr(0, at) + "@tokens";
    const bool is_of_tokens = is_per_token("stream_ppl", key.substr(at + 1)) && result.find(tokens) != nullptr;
    return is_of_tokens ? tokens : other.substr(0, at) + "@data";
  }
  return "";
}

/// The values under `keys`, a row for each result.
Table table_of(const std::vector<Json>& results, const std::vector<std::string>& keys) {
  Table table;
  for (const std::string& key : keys) {
    const bool is_text = std::any_of(results.begin(), results.end(), [&](const Json& result) {
      const Json* value = result.find(key);
      return value != nullptr && value->is_string();
    });
    table.columns.emplace_back(key, is_text ? TableColumn::Kind::text : TableColumn::Kind::number);
  }
  for (const Json& result : results) {
    std::vector<Json>& row = table.rows.emplace_back();
    for (const std::string& key : keys) {
      const Json* value = result.find(key);
      row.push_back(value != nullptr ? *value : Json());
    }
  }
  return table;
}

/// Rows as columns; the first column has the titles.
Table transposed(const Table& table) {
  Table turned{{table.columns[0]}, {}};
  for (const auto& row : table.rows) { add_number_columns(turned, {row[0].as_string()}); }
  for (size_t k = 1; k < table.columns.size(); ++k) {
    std::vector<Json>& row = turned.rows.emplace_back();
    row.emplace_back(table.columns[k].title);
    for (const auto& r : table.rows) { row.push_back(r[k]); }
  }
  return turned;
}

/// Those that stand for an evaluation, by name.
std::vector<fs::path> result_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code none;  // no folder
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const fs::path& file = entry.path();
    if (file.extension() == ".json" && !has_fingerprint(file.stem().string())) { files.push_back(file); }
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Of results without a run.
Json result_of_results(const RunPlace& place, const std::string& id, const Json& tags) {
  Json result = Json::object({{"id", id}});
  for (const auto& [key, value] : tags.members()) { result.set(key, value); }
  const std::vector<fs::path> files = evaluation_files(place);
  for (const fs::path& file : files) {
    const Json json = read_evaluation(file);
    for (const char* key : {"step", "tokens"}) {
      if (json.integer_at(key, 0) > 0) { result.set(key, json.integer_at(key, 0)); }
    }
  }
  add_evaluations(result, place);
  return result;
}

}  // namespace

fs::path RunPlace::config() const {
  return (step ? run / "checkpoints" / CheckpointFolder::name_of(*step) : run) / "config.json";
}

RunPlace run_place(const fs::path& path) {
  fs::path folder = fs::absolute(path).lexically_normal();
  if (folder.filename().empty()) { folder = folder.parent_path(); }  // RUN/
  const fs::path checkpoints = folder.parent_path();
  const bool is_of_run = checkpoints.filename() == "checkpoints" && fs::exists(folder / "state.json") &&
                         fs::exists(checkpoints.parent_path() / "metrics.jsonl");
  if (!is_of_run) {
    if (fs::exists(folder / "metrics.jsonl")) { return {path}; }
    for (const fs::path& results : {folder, folder / "evals"}) {
      if (has_results(results)) { return {path, {}, results}; }
    }
    return {path};
  }
  return {checkpoints.parent_path(), read_run_state(folder).step};
}

std::vector<fs::path> evaluation_files(const RunPlace& place) {
  if (!place.results.empty()) { return result_files(place.results); }
  const fs::path& run = place.run;
  std::vector<fs::path> steps;
  if (fs::is_directory(run / "evals")) {
    for (const fs::directory_entry& entry : fs::directory_iterator(run / "evals")) {
      const bool is_asked = !place.step || entry.path().filename() == CheckpointFolder::name_of(*place.step);
      const bool is_of_ranks = entry.path().filename() == "logs";  // their flight records
      if (entry.is_directory() && is_asked && !is_of_ranks) { steps.push_back(entry.path()); }
    }
  }
  if (steps.empty()) { return {}; }
  return result_files(*std::max_element(steps.begin(), steps.end()));
}

bool has_results(const fs::path& folder) {
  const std::vector<fs::path> files = result_files(folder);
  return std::any_of(files.begin(), files.end(), [](const fs::path& file) {
    try {
      const Json json = parse_json_file(file.string());
      return !json.text_at("kind").empty() && !json.text_at("status").empty() && json.find("metrics") != nullptr;
    } catch (const Error&) { return false; }  // another file
  });
}

Json read_evaluation(const fs::path& file) {
  Json json;
  as_data([&] {
    json = parse_json(read_file(file), file.string());
    for (const char* key : {"kind", "status", "source"}) { json.text_at(key); }
    const auto each_member = [&json](const char* key, const auto& use) {
      const Json* part = json.find(key);
      for (const auto& [name, value] : part != nullptr ? part->members() : std::vector<Json::Member>{}) { use(value); }
    };
    each_member("metrics", [](const Json&) {});
    each_member("groups", [](const Json& group) { group.members(); });
    each_member("series", [](const Json& points) {
      for (const Json& point : points.items()) { point.members(); }
    });
  });
  return json;
}

Json result_of(const RunPlace& place, const std::string& id, const Json& tags) {
  const fs::path& run = place.run;
  if (!place.results.empty()) { return result_of_results(place, id, tags); }
  if (!fs::exists(place.config())) {
    throw DataError(run.string(), "no run folder", "a folder without config.json and results of hebb eval",
                    "a folder that hebb train made, or one of results");
  }
  Json config = parse_json(read_file(place.config()), place.config().string());
  drop_idle_keys(config);
  const RunMetrics metrics = place.step ? read_metrics(run, *place.step) : read_metrics(run);
  Json result = Json::object();
  result.set("id", id);
  for (const auto& [key, value] : tags.members()) { result.set(key, value); }
  if (!metrics.loss.y.empty()) { result.set("loss.final", mean_of_end(metrics.loss)); }
  for (const Curve& v : metrics.validation) {
    result.set("val." + v.name, v.y.back());
    result.set("ppl." + v.name, std::exp(v.y.back()));
  }
  const int64_t tokens = metrics.tokens.empty() ? 0 : static_cast<int64_t>(metrics.tokens.back());
  // Checkpoints at different steps are no repetitions of each other.
  result.set("setting",
             setting_of(without_data_places(config, place)) + (place.step ? fmt::format(":{:d}", *place.step) : ""));
  result.set("step", metrics.loss.x.empty() ? int64_t{0} : static_cast<int64_t>(metrics.loss.x.back()));
  result.set("tokens", tokens);
  add_plan(result, config, tokens);
  add_identity(result, config, place);
  add_evaluations(result, place);
  if (!metrics.tokens_per_s.empty()) {
    result.set("tokens_per_s", median(metrics.tokens_per_s));
    result.set("mem_bytes", metrics.mem_bytes);
  }
  if (const double seconds = read_status(run).seconds; seconds > 0) { result.set("seconds", seconds); }
  return result;
}

double result_number(const Json& result, const std::string& key) {
  const Json* v = result.find(key);
  return v != nullptr && v->is_number() ? v->as_double() : NAN;
}

std::vector<std::string> result_keys(const std::vector<Json>& results) {
  std::vector<std::string> keys;
  for (const Json& result : results) {
    for (const auto& [key, value] : result.members()) { add_once(keys, key); }
  }
  return keys;
}

std::string results_jsonl(const std::vector<Json>& results) {
  std::string text;
  for (const Json& result : results) { text += result.dump() + "\n"; }
  return text;
}

bool is_detail(const std::string& key) {
  if (precision_part(key) > 0) { return true; }  // beside its mean
  const bool is_flops = key.rfind("flops.", 0) == 0 && key != "flops.total",
             is_part = key == "params.state" || key == "params.active";
  const bool is_layer =
      key.rfind("eval.", 0) == 0 && std::count(key.begin(), key.end(), '.') > 2;  // eval.NAME.TYPE.STATISTIC
  return is_flops || is_part || is_layer || key == "mem_bytes" || key == "step" || key == "setting" || key == "seeds" ||
         key == "state_bytes.4096";
}

std::vector<Json> with_sources_apart(const std::vector<Json>& results) {
  std::map<std::string, std::set<std::string>> sources;         // by "eval.NAME."
  std::map<std::string, std::vector<std::string>> measured_on;  // by identity key
  const auto is_source = [](const std::string& key) { return key.starts_with("eval.") && key.ends_with(".source"); };
  for (const Json& result : results) {
    for (const auto& [key, value] : result.members()) {
      if (is_source(key)) { sources[key.substr(0, key.size() - 6)].insert(value.as_string()); }
      if (is_identity(key)) { measured_on[key].push_back(value.as_string()); }
    }
  }
  std::vector<Json> apart;
  for (const Json& result : results) {
    Json& row = apart.emplace_back(Json::object());
    for (const auto& [key, value] : result.members()) {
      if (is_source(key) || is_identity(key)) { continue; }
      const std::string precision = key.substr(key.size() - precision_part(key));
      std::string name = key.substr(0, key.size() - precision.size());
      const std::string identity = identity_of(result, name);
      for (const auto& [prefix, known] : sources) {
        const Json* own = result.find(prefix + "source");
        if (known.size() > 1 && own != nullptr && key.starts_with(prefix)) { name += " (" + own->as_string() + ")"; }
      }
      if (const Json* own = result.find(identity); own != nullptr) {
        name += data_letter(measured_on[identity], own->as_string());
      }
      row.set(name + precision, value);
    }
  }
  return apart;
}

Table results_table(const std::vector<Json>& all) {
  const std::vector<Json> results = with_sources_apart(all);
  return table_of(results, result_keys(results));
}

Table comparison_table(const std::vector<Json>& all) {
  constexpr size_t kFewRuns = 4, kManyKeys = 10;
  const std::vector<Json> results = with_sources_apart(all);
  std::vector<std::string> keys = result_keys(results);
  std::erase_if(keys, is_detail);
  const std::vector<std::string> found = keys;
  const auto place = [&](const std::string& key) {  // of the first that differs in its mark alone
    const std::string base = key.substr(0, key.find(" [data "));
    return std::find_if(found.begin(), found.end(),
                        [&](const std::string& k) { return k.substr(0, k.find(" [data ")) == base; }) -
           found.begin();
  };
  std::stable_sort(keys.begin(), keys.end(),
                   [&](const std::string& a, const std::string& b) { return place(a) < place(b); });
  Table table = table_of(results, keys);
  for (size_t r = 0; r < results.size(); ++r) {
    for (size_t k = 0; k < keys.size(); ++k) {
      const auto part = [&](const char* end) { return result_number(results[r], keys[k] + end); };
      if (std::isfinite(part(".half"))) {
        table.rows[r][k] = mean_text(part(""), part(".half"));
      } else if (const std::string text = with_error(part(""), {part(".stderr"), part(".low"), part(".high")});
                 !text.empty()) {
        table.rows[r][k] = text;
      }
    }
  }
  return results.size() <= kFewRuns && keys.size() > kManyKeys ? transposed(table) : table;
}

}  // namespace hebb
