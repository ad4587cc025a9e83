#include "study/report/group_by_seed.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "study/report/run_identity.h"
#include "study/report/run_results.h"
#include "train/run_config.h"

namespace hebb {
namespace {

/// What ids share: their beginning, without the "_seed=" that is left of the grid's part.
std::string common_id(const std::vector<Json>& runs) {
  std::string id = runs[0].at("id").as_string();
  if (runs.size() == 1) { return id; }
  for (const Json& run : runs) {
    const std::string& other = run.at("id").as_string();
    const auto end = std::mismatch(id.begin(), id.end(), other.begin(), other.end()).first;
    id.erase(end, id.end());
  }
  if (id.ends_with("=")) { id.erase(id.find_last_of('_') == std::string::npos ? 0 : id.find_last_of('_')); }
  while (!id.empty() && std::string("-_. ").find(id.back()) != std::string::npos) { id.pop_back(); }
  return id.empty() ? runs[0].at("id").as_string() + ", …" : id;
}

/// A key that is null is like one that is absent: another version may not have had it.
void drop_null(Json& json) {
  if (json.is_array()) {
    for (Json& item : json.items()) { drop_null(item); }
  }
  if (!json.is_object()) { return; }
  std::erase_if(json.members(), [](const Json::Member& member) { return member.second.is_null(); });
  for (auto& [key, value] : json.members()) { drop_null(value); }
}

void add_measured(Json& row, const std::string& key, const std::vector<Json>& runs) {
  std::vector<double> values;
  for (const Json& run : runs) {
    if (const double v = result_number(run, key); std::isfinite(v)) { values.push_back(v); }
  }
  if (values.size() < runs.size()) {
    return;  // a mean over some of the runs would compare with nothing
  }
  const SampleMean sample = sample_mean(values);
  row.set(key, sample.mean);
  if (sample.deviation) {
    row.set(key + ".std", *sample.deviation);
    row.set(key + ".half", *sample.half);
  }
}

Json row_of(const SeedGroup& group) {
  const std::vector<Json>& runs = group.runs;
  Json row = Json::object();
  for (const std::string& key : result_keys(runs)) {
    const Json* first = runs[0].find(key);
    if (key == "id") {
      row.set("id", group.id);
      row.set("runs", static_cast<int64_t>(runs.size()));
    } else if (is_measured(key) && runs.size() > 1) {
      add_measured(row, key, runs);
    } else if (first != nullptr && std::all_of(runs.begin(), runs.end(), [&](const Json& r) {
                 return r.find(key) != nullptr && *r.find(key) == *first;
               })) {
      row.set(key, *first);
    }
  }
  return row;
}

}  // namespace

bool is_measured(const std::string& key) {
  if (is_identity(key) || key.ends_with(".source") || precision_part(key) > 0) { return false; }
  return key.starts_with("loss.") || key.starts_with("val.") || key.starts_with("ppl.") || key.starts_with("eval.") ||
         key == "tokens_per_s" || key == "seconds";
}

std::string setting_of(const Json& config) {
  Json rest = config;
  drop_null(rest);
  rest.erase("name");
  if (Json* train = rest.find("train"); train != nullptr && train->is_object()) {
    for (const char* key : {"seed", "threads", "device", "checkpoint", "max_minutes", "exit_code_on_stop"}) {
      train->erase(key);
    }
  }
  if (Json* data = rest.find("data"); data != nullptr && data->is_object()) {
    data->erase("seed");
    data->erase("tokenizer");  // a copy in each run folder; shards of another one are other files
    if (Json* sources = data->find("sources"); sources != nullptr && sources->is_array()) {
      for (Json& source : sources->items()) { source.erase("seed"); }
    }
  }
  return config_hash(rest);
}

bool has_same_seeds(const Json& a, const Json& b) {
  const std::string setting = a.text_at("setting"), seeds = a.text_at("seeds");
  return !setting.empty() && setting == b.text_at("setting") && !seeds.empty() && seeds == b.text_at("seeds");
}

std::vector<SeedGroup> seed_groups(const std::vector<Json>& results) {
  std::vector<SeedGroup> groups;
  for (const Json& result : results) {
    const std::string setting = result.text_at("setting");
    const auto it = std::find_if(groups.begin(), groups.end(), [&](const SeedGroup& g) {
      return !setting.empty() && g.runs[0].text_at("setting") == setting;
    });
    SeedGroup& group = it != groups.end() ? *it : groups.emplace_back();
    if (std::none_of(group.runs.begin(), group.runs.end(), [&](const Json& r) { return has_same_seeds(r, result); })) {
      group.runs.push_back(result);
    }
  }
  for (SeedGroup& group : groups) { group.id = common_id(group.runs); }
  return groups;
}

std::vector<Json> over_seeds(const std::vector<Json>& results) {
  std::vector<Json> rows;
  for (const SeedGroup& group : seed_groups(results)) { rows.push_back(row_of(group)); }
  return rows;
}

bool has_seeds(const std::vector<Json>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const Json& row) { return result_number(row, "runs") > 1; });
}

size_t precision_part(const std::string& key) {
  for (const std::string_view end : {".std", ".half", ".stderr", ".low", ".high"}) {
    if (key.ends_with(end)) { return end.size(); }
  }
  return 0;
}

std::string with_error(double value, const Precision& precision) {
  if (precision.error > 0) { return mean_text(value, precision.error); }
  if (!std::isfinite(precision.low)) { return ""; }
  return fmt::format("{:.5g} [{:.2g}, {:.2g}]", value, precision.low, precision.high);
}

std::string mean_text(double mean, double spread) {
  const auto place = [](double v) { return v != 0 ? static_cast<int>(std::floor(std::log10(std::abs(v)))) : 0; };
  const int of_mean = 4 - place(mean),
            decimals = std::clamp(spread > 0 ? std::min(1 - place(spread), of_mean) : of_mean, 0, 9);
  return fmt::format("{:.{}f} ± {:.{}f}", mean, decimals, spread, decimals);
}

}  // namespace hebb
