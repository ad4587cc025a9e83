#include "eval/evaluation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/hash.h"
#include "core/names.h"
#include "core/statistics.h"
#include "eval/result_files.h"
#include "train/run_config.h"

namespace hebb {

void fields(Fields& f, Evaluation& e) {
  f.field("name", e.name).required().help("Name of the result file.");
  f.require(is_file_name(e.name) && e.name[0] != '.', "name",
            "a name without / and control characters that can be a file and does not start with a dot");
  f.require(!has_fingerprint(e.name), "name", "a name that does not end in a dot and 16 hexadecimal digits");
  std::vector<std::string> kinds;
  for (const EvalKind& k : eval_kinds()) { kinds.push_back(k.name); }
  f.field("kind", e.kind).required().one_of(kinds).help("What to evaluate.");
  f.field("seed", e.seed).help("Seed of the task's draws.");
  fields(f, e.reading);
  f.object("thresholds", e.thresholds).help("What replaces the thresholds of ham layers.");
  for (const EvalKind& k : eval_kinds()) {
    if (k.name == e.kind) {
      if (f.reading() || e.task == nullptr) { e.task = k.make(); }
      e.task->fields(f);
    }
  }
}

namespace {

/// Names of the keys that an evaluation of this kind reads.
std::set<std::string> keys_of(const std::string& kind) {
  Evaluation e;
  e.kind = kind;
  std::set<std::string> keys;
  for (const Fields::Description& d : Fields::describe_value("", e)) {
    keys.insert(d.path.substr(0, d.path.find('.')));
  }
  return keys;
}

/// The list, with the defaults merged in that each kind knows.
std::vector<Evaluation> read_list(const Json& json, const std::string& path) {
  const Json* list = json.is_object() ? json.find("evaluations") : nullptr;
  if (list == nullptr || !list->is_array()) {
    throw ConfigError((list == nullptr ? json : *list).origin().str() + ": " + path + "evaluations",
                      list == nullptr ? "nothing" : list->found(), "a list of evaluations (required)");
  }
  std::vector<Evaluation> result;
  std::set<std::string> names, read = keys_of("");
  for (size_t i = 0; i < list->items().size(); ++i) {
    const std::string where = fmt::format("{}evaluations.{:d}", path, i);
    if (!list->items()[i].is_object()) {
      throw ConfigError(list->items()[i].origin().str() + ": " + where, list->items()[i].found(), "an object");
    }
    const Json* kind = list->items()[i].find("kind");
    kind = kind != nullptr ? kind : json.find("kind");
    const std::set<std::string> keys = keys_of(kind != nullptr && kind->is_string() ? kind->as_string() : "");
    read.insert(keys.begin(), keys.end());
    Json merged = Json::object();
    merged.set_origin(list->items()[i].origin());
    for (const auto& [key, value] : json.members()) {
      if (keys.count(key) > 0) { merged.set(key, value); }
    }
    merge_json(merged, list->items()[i]);
    Evaluation& e = result.emplace_back(Fields::read<Evaluation>(merged, where));
    e.config = std::move(merged);
    if (!names.insert(e.name).second) {
      throw ConfigError(list->items()[i].origin().str() + ": " + where + ".name", "\"" + e.name + "\" again",
                        "a name that no other evaluation has");
    }
  }
  for (const auto& [key, value] : json.members()) {
    if (key != "evaluations" && read.count(key) == 0) {
      throw ConfigError(value.origin().str() + ": " + path + key, "no evaluation has such a key");
    }
  }
  return result;
}

}  // namespace

using MakeTask = std::unique_ptr<EvalTask>();  // one a kind, defined in its file
MakeTask make_adapt, make_answer_ppl, make_choice, make_cloze, make_efficiency, make_generate, make_icl, make_icr,
    make_memory_stats, make_mqar, make_niah, make_partial, make_position_ppl, make_rolling, make_ruler, make_selection,
    make_stream_ppl;

const std::vector<EvalKind>& eval_kinds() {
  static const std::vector<EvalKind> kinds = {
      {"stream_ppl", make_stream_ppl},
      {"position_ppl", make_position_ppl},
      {"choice", make_choice},
      {"partial", make_partial},
      {"cloze", make_cloze},
      {"rolling", make_rolling},
      {"answer_ppl", make_answer_ppl},
      {"icr", make_icr},
      {"icl", make_icl},
      {"mqar", make_mqar},
      {"adapt", make_adapt},
      {"memory_stats", make_memory_stats},
      {"selection", make_selection},
      {"generate", make_generate},
      {"niah", make_niah},
      {"ruler", make_ruler},
      {"efficiency", make_efficiency},
  };
  return kinds;
}

const Tokenizer& EvalContext::text_tokenizer() const {
  static_cast<void>(premises().text_tokenizer());  // the error
  return *tokenizer;
}

const Tokenizer& EvalPremises::text_tokenizer() const {
  if (tokenizer == nullptr) {
    throw ConfigError("--tokenizer", "a checkpoint whose configuration names no tokenizer",
                      "a SentencePiece .model file, a tokenizer.json or \"bytes\", since this evaluation reads text");
  }
  return *tokenizer;
}

int64_t EvalContext::length_of(const std::optional<int64_t>& own, std::string_view key, const std::string& what) const {
  const int64_t length = own.value_or(sequence_length);
  if (length < 1) {
    throw ConfigError(key, "nothing", what + ", since the configuration has no train.sequence_length");
  }
  return length;
}

void EvalContext::log_sample(const std::string& id, std::span<const int32_t> tokens, Json rest) {
  if (!logs_samples) { return; }
  const uint64_t hash = fnv1a64({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
  Json line = Json::object({{"id", id}, {"input_hash", fmt::format("{:016x}", hash)}});
  for (const auto& [key, value] : rest.members()) { line.set(key, value); }
  samples += line.dump() + "\n";
}

EvalResult EvalResult::failed(const std::string& reason) {
  EvalResult r;
  r.status = "failed";
  r.reason = reason;
  return r;
}

void EvalResult::metric(const std::string& name, double value, int64_t n) {
  metrics.set(name, Json::object({{"value", value}, {"n", n}}));
}

Json mean_metric(std::span<const double> values) {
  const SampleMean sample = sample_mean(values);
  Json m = Json::object({{"value", sample.mean}});
  if (const auto error = sample.standard_error()) { m.set("stderr", *error); }
  if (std::all_of(values.begin(), values.end(), [](double v) { return v == 0 || v == 1; })) {
    const Interval interval = wilson(sample.mean, static_cast<double>(sample.n));
    m.set("low", interval.low);
    m.set("high", interval.high);
  }
  m.set("n", sample.n);
  return m;
}

Json parts_metric(const std::vector<Json>& parts, const std::string& of) {
  double sum = 0, squares = 0;
  bool has_errors = true;
  for (const Json& part : parts) {
    const Json* error = part.find("stderr");
    sum += part.at("value").as_double();
    has_errors = has_errors && error != nullptr;
    squares += error != nullptr ? error->as_double() * error->as_double() : 0;
  }
  const auto n = static_cast<double>(parts.size());
  Json m = Json::object({{"value", sum / n}});
  if (has_errors && squares > 0) { m.set("stderr", std::sqrt(squares) / n); }
  m.set("n", static_cast<int64_t>(parts.size()));
  m.set("of", of);
  return m;
}

void set_mean(Json& point, const std::string& name, std::span<const double> values) {
  const Json m = mean_metric(values);
  const bool is_share = m.find("low") != nullptr;
  point.set(name, m.at("value"));
  for (const char* part : {"stderr", "low", "high"}) {
    const Json* value = m.find(part);
    if (value != nullptr && is_share == (std::string_view(part) != "stderr")) { point.set(name + "_" + part, *value); }
  }
}

void EvalResult::mean_of_parts(const std::string& name, const std::vector<Json>& parts, const std::string& of) {
  metrics.set(name, parts_metric(parts, of));
}

void EvalResult::mean(const std::string& name, std::span<const double> values) {
  metrics.set(name, mean_metric(values));
  items.push_back({name, "", examples, {values.begin(), values.end()}, {}});
}

void EvalResult::ratio(const std::string& name, const std::string& exp_name, const RatioOfSums& mean) {
  const double value = mean.value();
  const std::optional<double> error = mean.standard_error();
  const auto add = [&](const std::string& metric_name, double number, double slope) {
    metric(metric_name, number, static_cast<int64_t>(mean.count()));
    if (error) { metrics.find(metric_name)->set("stderr", slope * *error); }
  };
  if (!name.empty()) { add(name, value, 1); }
  if (!exp_name.empty()) { add(exp_name, std::exp(value), std::exp(value)); }
  items.push_back({name, exp_name, examples, mean.sums, mean.counts});
}

void EvalResult::left_out(const Json& parts, bool is_all) {
  if (!parts.items().empty()) { series.set("skipped", parts); }
  if (!is_all) { return; }
  status = "skipped";
  reason = "nothing of it can be evaluated";
  for (const std::string& why : reasons_of(parts)) { reason += "; " + why; }
}

std::vector<std::string> reasons_of(const Json& parts) {
  std::vector<std::string> reasons;
  for (const Json& part : parts.items()) { reasons.push_back(part.at("reason").as_string()); }
  return reasons;
}

void RatioOfSums::add(double sum, double count) {
  sums.push_back(sum);
  counts.push_back(count);
}
double RatioOfSums::count() const { return std::accumulate(counts.begin(), counts.end(), 0.0); }
double RatioOfSums::value() const { return std::accumulate(sums.begin(), sums.end(), 0.0) / count(); }
std::optional<double> RatioOfSums::standard_error() const {
  if (sums.size() < 2) { return std::nullopt; }
  const double groups = static_cast<double>(sums.size()), mean = value();
  double squares = 0;
  for (size_t g = 0; g < sums.size(); ++g) {
    const double rest = sums[g] - mean * counts[g];
    squares += rest * rest;
  }
  return std::sqrt(squares * groups / (groups - 1)) / count();
}

std::vector<Evaluation> read_evaluations(const Json& json, const std::string& path) {
  std::vector<Evaluation> result = read_list(json, path);
  const Json resolved = resolve_evaluations(json, path);  // of a list of its own: writing fills in what is absent
  for (size_t i = 0; i < result.size(); ++i) { result[i].resolved = resolved.at("evaluations").items()[i]; }
  return result;
}

Json resolve_evaluations(const Json& json, const std::string& path) {
  Json list = Json::array();
  for (const Evaluation& e : read_list(json, path)) { list.push(Fields::write(e)); }
  return Json::object({{"evaluations", list}});
}

}  // namespace hebb
