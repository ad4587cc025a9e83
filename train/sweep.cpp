#include "train/sweep.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "train/expression.h"
#include "train/plan.h"
#include "train/run_config.h"

namespace hebb {
namespace {

struct SolveEntry {
  std::string path, quantity;
  Json equals;
  int64_t multiple_of = 1;
  std::string where;
};

struct RunEntry {
  std::string id;
  Json set = Json::object(), tags = Json::object();
  std::vector<SolveEntry> solve;
};

struct SweepFile {
  std::string name, base, evals;
  std::vector<RunEntry> runs;
  Json grid = Json::object(), derive = Json::object();
  std::vector<SolveEntry> solve;
  int64_t max_parallel = 1;
  std::optional<FitConfig> fit;
};

const std::vector<std::string>& quantities() {
  static const std::vector<std::string> names = {"params.total",  "params.non_embedding", "params.state", "params.fast",
                                                 "params.memory", "params.active",        "flops.forward_per_token"};
  return names;
}

bool is_folder_name(const std::string& s) {
  return !s.empty() && s.front() != '.' && s.find_first_of("/\\\n") == std::string::npos;
}

void fields(Fields& f, SolveEntry& s) {
  f.field("path", s.path).required().help("Value that is chosen.");
  f.field("quantity", s.quantity).required().one_of(quantities()).help("What it is chosen for.");
  f.field("equals", s.equals).required().help("A number, or the id of the run that has the wanted quantity.");
  f.require(s.equals.is_number() || s.equals.is_string(), "equals", "a number or a run id");
  f.field("multiple_of", s.multiple_of).min(1).help("The value is a multiple of this.");
  if (f.reading()) {
    s.where = f.json().origin().str() + ": " + f.path();
  }
}

void require_object(Fields& f, const char* name, const Json& value) { f.require(value.is_object(), name, "an object"); }

void fields(Fields& f, RunEntry& r) {
  f.field("id", r.id).required().help("Name of the run and of its folder.");
  f.require(is_folder_name(r.id), "id", "a name that can be a folder and does not start with a dot");
  f.field("set", r.set).help("Values by path.");
  require_object(f, "set", r.set);
  f.field("tags", r.tags).help("What the results say of the run, e.g. \"arch\".");
  require_object(f, "tags", r.tags);
  f.list("solve", r.solve).help("As in the sweep, for this run alone.");
}

void fields(Fields& f, SweepFile& s) {
  f.field("name", s.name).required().help("Name of the folder under runs/.");
  f.require(is_folder_name(s.name), "name", "a name that can be a folder and does not start with a dot");
  f.file("base", s.base).required().help("Run configuration that all runs start from.");
  f.list("runs", s.runs).help("The runs. Default: one, for `grid`.");
  f.field("grid", s.grid).help("Lists of values by path; every run is multiplied by all combinations.");
  require_object(f, "grid", s.grid);
  f.field("derive", s.derive).help("Expressions by path, in order.");
  require_object(f, "derive", s.derive);
  f.list("solve", s.solve).help("Values chosen to meet a quantity, after derive.");
  f.file("evals", s.evals).help("Evaluations of every run after its training.");
  f.field("max_parallel", s.max_parallel).min(1).help("Runs at the same time.");
  f.object("fit", s.fit).help("Power law over the results.");
  f.require(!s.runs.empty() || !s.grid.members().empty(), "runs", "at least one run, or a grid");
}

[[noreturn]] void fail(const Json& at, const std::string& path, const std::string& found, const std::string& expected) {
  const std::string origin = at.origin().str();
  throw ConfigError(origin.empty() ? path : origin + ": " + path, found, expected);
}

/// The value at a dotted path, or null.
const Json* value_at(const Json& root, const std::string& path) {
  const Json* at = &root;
  for (size_t begin = 0; at != nullptr && begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (at->is_array()) {
      const bool is_index = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
      const size_t index = is_index ? std::stoul(key) : at->items().size();
      at = index < at->items().size() ? &at->items()[index] : nullptr;
    } else {
      at = at->is_object() ? at->find(key) : nullptr;
    }
    begin = end + 1;
  }
  return at;
}

double quantity_of(const Json& config, const std::string& name) {
  ModelConfig model_config;
  const Json* json = config.find("model");
  Fields::read(json != nullptr ? *json : Json::object(), "model", model_config);
  const Model model(model_config);
  if (name == "flops.forward_per_token") {
    const Json* length = value_at(config, "train.sequence_length");
    if (length == nullptr || !length->is_integer()) {
      fail(config, "train.sequence_length", length == nullptr ? "nothing" : length->found(), "an integer, for flops.forward_per_token");
    }
    return model.flops_per_token(length->as_int());
  }
  const ParameterCounts n = count_parameters(model);
  const std::map<std::string, int64_t> values = {{"params.total", n.total}, {"params.non_embedding", n.non_embedding}, {"params.state", n.state},
                                                 {"params.fast", n.fast},   {"params.memory", n.memory},               {"params.active", n.active}};
  return static_cast<double>(values.at(name));
}

std::optional<double> look_up(const Json& config, const std::string& name) {
  if (std::find(quantities().begin(), quantities().end(), name) != quantities().end()) {
    return quantity_of(config, name);
  }
  const Json* v = value_at(config, name);
  return v != nullptr && v->is_number() ? std::optional(v->as_double()) : std::nullopt;
}

/// The multiple of `multiple_of` at `path` that brings the quantity nearest to `target`; the quantity must rise or fall
/// with it. Doubling, then bisection.
Solved solve(Json& config, const SolveEntry& s, double target) {
  const auto reach = [&](int64_t k) {
    set_path(config, s.path, Json(k * s.multiple_of));
    return quantity_of(config, s.quantity);
  };
  const double first = reach(1), sign = reach(2) >= first ? 1.0 : -1.0;
  int64_t low = 1, high = 1;
  constexpr int64_t kLargest = int64_t{1} << 40;
  while (sign * (reach(high) - target) < 0 && high * s.multiple_of < kLargest) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (sign * (reach(middle) - target) < 0 ? low : high) = middle;
  }
  const int64_t best = std::abs(reach(low) - target) <= std::abs(reach(high) - target) ? low : high;
  const Solved solved{s.path, s.quantity, best * s.multiple_of, target, reach(best)};
  if (std::abs(solved.reached - target) > 0.02 * std::abs(target)) {
    throw ConfigError(s.where, s.quantity + " = " + number_json(solved.reached).dump() + " at the nearest value, " + std::to_string(solved.value),
                      "at most 2 % from " + number_json(target).dump());
  }
  return solved;
}

std::string last_key(const std::string& path) { return path.substr(path.find_last_of("./") + 1); }  // npos + 1 is 0

/// A value in an id: numbers in shortest form, strings as they are.
std::string id_text(const Json& value) { return value.is_string() ? value.as_string() : value.dump(); }

class Composer {
 public:
  Composer(const SweepFile& file, Json base) : file_(file), base_(std::move(base)) {}

  std::vector<SweepRun> run() {
    std::vector<RunEntry> entries = file_.runs;
    if (entries.empty()) {
      entries.emplace_back();
    }
    for (const RunEntry& entry : entries) {
      expand(entry, 0, entry.id, {});
    }
    for (size_t i = 0; i < drafts_.size(); ++i) {
      complete(i);
    }
    std::vector<SweepRun> runs;
    for (Draft& draft : drafts_) {
      finish(draft.run);
      runs.push_back(std::move(draft.run));
    }
    return runs;
  }

 private:
  struct Draft {
    SweepRun run;
    std::string entry;  // id before the grid
    Json set;
    std::vector<std::pair<std::string, Json>> grid;
    std::vector<SolveEntry> solve;
    int progress = 0;  // 0: nothing, 1: being composed, 2: done
  };

  void expand(const RunEntry& entry, size_t key, const std::string& id, std::vector<std::pair<std::string, Json>> chosen) {
    if (key < file_.grid.members().size()) {
      const auto& [path, values] = file_.grid.members()[key];
      if (!values.is_array() || values.items().empty()) {
        fail(values, "grid." + path, values.is_array() ? "an empty list" : values.found(), "a list of values");
      }
      const std::string last = last_key(path);
      for (const Json& value : values.items()) {
        if (value.is_object() || value.is_array() || value.is_null()) {
          fail(value, "grid." + path, value.found(), "numbers, strings or booleans");
        }
        auto with = chosen;
        with.emplace_back(path, value);
        expand(entry, key + 1, (id.empty() ? "" : id + "_") + last + "=" + id_text(value), with);
      }
      return;
    }
    if (!is_folder_name(id)) {
      fail(file_.grid, "grid", "the run id \"" + id + "\"", "values that make a folder name");
    }
    if (find(id) != drafts_.size()) {
      fail(entry.set, "runs", "the id \"" + id + "\" twice", "different ids");
    }
    Json tags = entry.tags;  // results name what the grid chose
    for (const auto& [path, value] : chosen) {
      if (tags.find(last_key(path)) == nullptr) { tags.set(last_key(path), value); }
    }
    drafts_.push_back({{id, {}, std::move(tags), {}}, entry.id, entry.set, std::move(chosen), entry.solve});
  }

  size_t find(const std::string& id) const {
    return static_cast<size_t>(std::find_if(drafts_.begin(), drafts_.end(), [&](const Draft& d) { return d.run.id == id; }) - drafts_.begin());
  }

  void complete(size_t i) {
    Draft& draft = drafts_[i];
    if (draft.progress == 2) {
      return;
    }
    draft.progress = 1;
    Json& config = draft.run.config;
    config = base_;
    for (const auto& [path, value] : draft.set.members()) {
      set_path(config, path, value);
    }
    for (const auto& [path, value] : draft.grid) {
      set_path(config, path, value);
    }
    for (const auto& [path, text] : file_.derive.members()) {
      if (!text.is_string()) {
        fail(text, "derive." + path, text.found(), "an expression in quotes");
      }
      Json value = number_json(evaluate(text.as_string(), [&](const std::string& name) { return look_up(config, name); },
                                        text.origin().str() + ": derive." + path));
      value.set_origin(text.origin());
      set_path(config, path, std::move(value));
    }
    std::vector<SolveEntry> all = file_.solve;
    all.insert(all.end(), draft.solve.begin(), draft.solve.end());
    for (const SolveEntry& s : all) {
      if (!s.equals.is_string()) {
        draft.run.solved.push_back(solve(config, s, s.equals.as_double()));
      } else if (s.equals.as_string() != draft.run.id && s.equals.as_string() != draft.entry) {
        draft.run.solved.push_back(solve(config, s, quantity_of(reference(s, draft), s.quantity)));
      }
    }
    draft.progress = 2;
  }

  /// The configuration of the run that a solve entry names: an id, or one before the grid, which means the run with the
  /// values that the grid gave to `draft`.
  const Json& reference(const SolveEntry& s, const Draft& draft) {
    size_t i = find(s.equals.as_string());
    if (i == drafts_.size()) {
      const auto is_meant = [&](const Draft& d) { return d.entry == s.equals.as_string() && d.grid == draft.grid; };
      i = static_cast<size_t>(std::find_if(drafts_.begin(), drafts_.end(), is_meant) - drafts_.begin());
    }
    if (i == drafts_.size()) {
      throw ConfigError(s.where + ".equals", s.equals.found(), "a number or the id of a run of this sweep");
    }
    if (drafts_[i].progress == 1) {
      throw ConfigError(s.where + ".equals", s.equals.found() + ", which is solved from this run", "a run that does not depend on this one");
    }
    complete(i);
    return drafts_[i].run.config;
  }

  /// Reads the run strictly and writes it with absolute paths.
  static void finish(SweepRun& run) {
    run.config.set("name", Json(run.id));
    RunConfig config;
    Fields::read(run.config, "", config);
    const Model model(config.model);
    Json written = to_json(config);
    run.config = std::move(written);
  }

  const SweepFile& file_;
  Json base_;
  std::vector<Draft> drafts_;
};

}  // namespace

void fields(Fields& f, FitConfig& c) {
  f.field("x", c.x).help("Key of the results.");
  f.field("y", c.y).help("Key of the results.");
  f.field("by", c.by).help("Tag; one fit for each of its values.");
  f.field("fit_ids", c.fit_ids).help("Runs that are fitted (patterns).");
  f.field("predict_ids", c.predict_ids).help("Runs that are predicted and compared (patterns).");
  f.field("offset", c.offset).help("Fit a x^-b + c.");
  f.field("seed", c.seed).help("Seed of the bootstrap.");
}

Sweep read_sweep(const fs::path& path) {
  SweepFile file;
  Sweep sweep;
  sweep.source = load_config(path.string());
  Fields::read(sweep.source, "", file);
  sweep.name = file.name;
  sweep.evals = file.evals;
  sweep.max_parallel = file.max_parallel;
  sweep.fit = file.fit;
  sweep.runs = Composer(file, load_config(file.base)).run();
  return sweep;
}

bool matches(const std::string& pattern, const std::string& id) { return ::fnmatch(pattern.c_str(), id.c_str(), FNM_NOESCAPE) == 0; }

bool matches_any(const std::vector<std::string>& patterns, const std::string& id) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) { return matches(p, id); });
}

}  // namespace hebb
