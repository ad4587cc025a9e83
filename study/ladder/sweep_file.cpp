// What a sweep file says: its keys, and its runs, axes and grid as one list of dimensions.
#include "study/ladder/sweep_file.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "core/fields.h"
#include "core/names.h"
#include "core/read_all.h"
#include "study/ladder/cluster_config.h"
#include "study/report/name_pattern.h"

namespace hebb {
namespace {

/// Columns of results.jsonl that are no tags.
bool is_result_key(const std::string& s) {
  static const std::set<std::string> keys = {"id",     "runs",         "setting",   "step",
                                             "tokens", "tokens_per_s", "mem_bytes", "seconds"};
  static const std::vector<std::string> groups = {"params.", "flops.", "loss.",       "val.",
                                                  "ppl.",    "eval.",  "state_bytes."};
  return keys.count(s) > 0 ||
         std::any_of(groups.begin(), groups.end(), [&](const std::string& g) { return s.starts_with(g); });
}

/// A file that exists under its own name is no pattern.
bool is_pattern(const std::string& path) {
  std::error_code error;
  return fs::path(path).filename().string().find_first_of("*?[{") != std::string::npos && !fs::exists(path, error);
}

void object_field(Fields& f, const char* name, Json& value, const char* help) {
  f.field(name, value).help(help);
  f.require(value.is_object(), name, "an object");
}

/// Checked where it is written: a misspelt key shows without a cluster.
void cluster_field(Fields& f, Json& value, const char* help) {
  object_field(f, "cluster", value, help);
  ClusterConfig ignored;
  if (f.reading()) { Fields::read(value, f.path().empty() ? "cluster" : f.path() + ".cluster", ignored); }
}

/// A run is a choice with a name of its own.
struct Run {
  Choice choice;
};

void fields(Fields& f, Run& r) {
  f.file("config", r.choice.config)
      .help("Run configuration instead of `base`. A pattern (*, ?, [..], {tag}) stands for a run for each file.");
  f.field("id", r.choice.name).help("Name of the run and of its folder. Default: the name of `config`.");
  f.field("train", r.choice.train).help("false: the run is planned and predicted by the fit, and not trained.");
  fields(f, r.choice);
  if (!f.reading()) { return; }
  if (r.choice.config.empty()) {
    f.require(!r.choice.name.empty(), "id", "the name of the run");
  } else if (is_pattern(r.choice.config)) {
    f.require(r.choice.name.empty(), "id", "no id: the runs of a pattern are named after their files");
    return;
  } else if (r.choice.name.empty()) {
    r.choice.name = fs::path(r.choice.config).stem().string();
  }
  f.require(is_folder_name(r.choice.name), "id", "a name that can be a folder and does not start with a dot");
}

/// The choices of a run with a pattern: one for each file, by name.
std::vector<Choice> choices_of_pattern(const Choice& choice) {
  const fs::path pattern = choice.config, folder = pattern.parent_path();
  std::vector<Choice> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const auto tags = tags_in_name(pattern.filename().string(), entry.path().filename().string());
    if (!entry.is_regular_file() || !tags) { continue; }
    Choice& run = found.emplace_back(choice);
    run.config = entry.path().string();
    run.name = entry.path().stem().string();
    for (const auto& [tag, value] : tags->members()) { run.tags.set(tag, value); }
  }
  if (found.empty()) {
    fail_at(choice.at, choice.path + ".config", "no file that matches " + choice.config, "at least one");
  }
  std::sort(found.begin(), found.end(), [](const Choice& a, const Choice& b) { return a.name < b.name; });
  return found;
}

struct Keys {
  SweepFile file;
  std::vector<Run> runs;
  Json axes = Json::object(), grid = Json::object();
};

void fields(Fields& f, Keys& k) {
  SweepFile& s = k.file;
  f.field("name", s.name).required().help("Name of the folder under runs/.");
  f.require(is_folder_name(s.name), "name", "a name that can be a folder and does not start with a dot");
  f.file("base", s.base).help("Run configuration that the runs start from.");
  f.list("runs", k.runs).help("The runs. Default: one, for `axes` and `grid`.");
  object_field(f, "axes", k.axes, "Named choices by axis; every run is multiplied by all combinations.");
  object_field(f, "grid", k.grid, "Lists of values by path; every run is multiplied by all combinations.");
  object_field(f, "derive", s.derive, "Expressions by path, in order.");
  f.list("solve", s.solve).help("Values chosen to meet a quantity.");
  f.file("evals", s.evals).help("Evaluations of every run after its training.");
  f.field("max_parallel", s.max_parallel).min(1).help("Runs at the same time.");
  f.field("ranks", s.ranks).min(1).max(kMostRanks).help("Processes that train a run together.");
  cluster_field(f, s.cluster, "What jobs ask a cluster for.");
  f.object("fit", s.fit).help("Power law over the results.");
  f.object("published", s.published).help("Numbers of a paper, which the report puts beside those of the runs.");
  f.require(!k.runs.empty() || !k.axes.members().empty() || !k.grid.members().empty(), "runs",
            "at least one run, an axis or a grid");
  const bool all_have_files = !k.runs.empty() && std::none_of(k.runs.begin(), k.runs.end(),
                                                              [](const Run& r) { return r.choice.config.empty(); });
  f.require(!s.base.empty() || all_have_files, "base", "a run configuration, or a config of each run");
  f.require(s.base.empty() || !all_have_files, "base", "no base where each run has a config");
}

Dimension dimension_of(std::vector<Run>& runs) {
  Dimension d;
  for (Run& run : runs) {
    if (is_pattern(run.choice.config)) {
      for (Choice& choice : choices_of_pattern(run.choice)) { d.choices.push_back(std::move(choice)); }
    } else {
      d.choices.push_back(std::move(run.choice));
    }
  }
  return d;
}

[[noreturn]] void fail_tag(const Origin& at, const std::string& path, const std::string& found,
                           const std::string& axis) {
  fail_at(at, path, found, "another name: the axis \"" + axis + "\" is a tag");
}

Dimension dimension_of_axis(const std::string& axis, const Json& choices) {
  const std::string path = "axes." + axis;
  if (axis.empty() || is_result_key(axis) || !is_printable(axis)) {
    fail_at(choices.origin(), path,
            axis.empty()          ? "an empty name"
            : is_result_key(axis) ? "a name that results have already"
                                  : "a name with control characters",
            "a name of its own");
  }
  if (!choices.is_object() || choices.members().empty()) {
    fail_at(choices.origin(), path, choices.is_object() ? "an axis without choices" : choices.found(),
            "an object of choices, each an object with set, derive, solve or tags");
  }
  Dimension d{Dimension::Kind::axis, axis, {}};
  for (const auto& [name, json] : choices.members()) {
    if (!is_folder_name(name)) {
      fail_at(json.origin(), path + "." + name, "the name \"" + name + "\"",
              "a name that can be a folder and does not start with a dot");
    }
    auto choice = Fields::read<Choice>(json, path + "." + name);
    choice.name = name;
    if (const Json* tag = choice.tags.find(axis)) {
      fail_tag(tag->origin(), choice.path + ".tags." + axis, tag->found(), axis);
    }
    choice.tags.set(axis, Json(name));
    d.choices.push_back(std::move(choice));
  }
  return d;
}

Dimension dimension_of_grid(const Json::Member& key) {
  const auto& [path, values] = key;
  if (!values.is_array() || values.items().empty()) {
    fail_at(values.origin(), "grid." + path, values.is_array() ? "an empty list" : values.found(), "a list of values");
  }
  const std::string last = path.substr(path.find_last_of("./") + 1);  // npos + 1 is 0
  Dimension d{Dimension::Kind::grid, last, {}};
  for (const Json& value : values.items()) {
    if (value.is_object() || value.is_array() || value.is_null()) {
      fail_at(value.origin(), "grid." + path, value.found(), "numbers, strings or booleans");
    }
    Choice choice;
    choice.name = last + "=" + value.text();
    if (!is_folder_name(choice.name)) {
      fail_at(value.origin(), "grid." + path, value.found(), "values that make a folder name");
    }
    choice.set.set(path, value).set_origin(value.origin(), value.origin());
    choice.path = "grid";
    choice.at = value.origin();
    d.choices.push_back(std::move(choice));
  }
  return d;
}

void check_names(const Dimension& d) {
  std::set<std::string> names;
  for (const Choice& c : d.choices) {
    if (!names.insert(c.name).second) { fail_at(c.at, c.path, "the id \"" + c.name + "\" twice", "different ids"); }
  }
}

/// "/a/b" and "a.b" are one path.
std::string dotted(std::string path) {
  if (path.starts_with('/')) {
    path.erase(0, 1);
    std::replace(path.begin(), path.end(), '/', '.');
  }
  return path;
}

bool overlap(const std::string& a, const std::string& b) {
  const std::string x = dotted(a) + ".", y = dotted(b) + ".";
  return x.starts_with(y) || y.starts_with(x);
}

/// The paths that a choice writes, with their keys in the sweep. What `solve` writes may have a value from elsewhere.
struct Written {
  std::string path, where;
  Origin at;
};

std::vector<Written> written_by(const Choice& c) {
  std::vector<Written> all;
  for (const auto& [key, values] : {std::pair{"set", &c.set}, std::pair{"derive", &c.derive}}) {
    for (const auto& [path, value] : values->members()) {
      const std::string within = c.path == "grid" ? "." : std::string(".") + key + ".";
      all.push_back({path, c.path + within + path, value.key_origin()});
    }
  }
  return all;
}

/// Axes are independent of each other, of the runs and of the grid: what one sets no other does, so that the order does
/// not matter.
void check_apart(const Dimension& a, const Dimension& b) {
  for (const Choice& first : a.choices) {
    for (const Written& one : written_by(first)) {
      for (const Choice& second : b.choices) {
        for (const Written& other : written_by(second)) {
          if (overlap(one.path, other.path)) {
            fail_at(other.at, other.where, "a path that " + one.where + " sets as well",
                    "a path that one of them sets");
          }
        }
      }
    }
  }
}

/// An axis is a tag of its own: no run, other axis or grid has a tag of that name.
void check_tags(const Dimension& axis, const Dimension& other) {
  if (other.kind == Dimension::Kind::grid && other.name == axis.name) {
    fail_tag(other.choices[0].at, "grid", "a key whose last part is \"" + other.name + "\"", axis.name);
  }
  for (const Choice& c : other.choices) {
    if (const Json* tag = c.tags.find(axis.name)) {
      fail_tag(tag->origin(), c.path + ".tags." + axis.name, tag->found(), axis.name);
    }
  }
}

void check_dimensions(const std::vector<Dimension>& dimensions) {
  for (size_t i = 0; i < dimensions.size(); ++i) {
    check_names(dimensions[i]);
    for (size_t j = 0; j < dimensions.size(); ++j) {
      if (i == j || dimensions[i].kind != Dimension::Kind::axis) { continue; }
      check_tags(dimensions[i], dimensions[j]);
      check_apart(dimensions[std::min(i, j)], dimensions[std::max(i, j)]);
    }
  }
}

}  // namespace

void fields(Fields& f, SolveEntry& s) {
  f.field("path", s.path).required().help("Value that is chosen.");
  f.field("quantity", s.quantity).required().one_of(sweep_quantities()).help("What it is chosen for.");
  f.field("equals", s.equals)
      .required()
      .help("A number, or the id of the run that has the wanted quantity, or a part of it.");
  f.require(s.equals.is_number() || s.equals.is_string(), "equals", "a number or a run id");
  f.field("multiple_of", s.multiple_of).min(1).help("The value is a multiple of this.");
  if (f.reading()) {
    s.at = f.json().origin();
    s.where = s.at.str() + ": " + f.path();
  }
}

void fields(Fields& f, Choice& c) {
  object_field(f, "set", c.set, "Values by path.");
  object_field(f, "derive", c.derive, "As in the sweep, for the runs that have this choice.");
  f.list("solve", c.solve).help("As in the sweep, for the runs that have this choice.");
  cluster_field(f, c.cluster, "As in the sweep, for the runs that have this choice.");
  object_field(f, "tags", c.tags, "What the results say of the run, e.g. \"arch\".");
  for (const auto& [key, value] : c.tags.members()) {
    if (is_result_key(key)) {
      fail_at(value.origin(), f.path() + ".tags." + key, "a name that results have already", "another name");
    }
    if (value.is_object() || value.is_array() || value.is_null()) {
      fail_at(value.origin(), f.path() + ".tags." + key, value.found(), "a number, a string or a boolean");
    }
    if (!is_printable(key) || (value.is_string() && !is_printable(value.as_string()))) {
      fail_at(value.origin(), f.path() + ".tags." + printable(key), value.found(), "text without control characters");
    }
  }
  if (f.reading()) {
    c.path = f.path();
    c.at = f.json().origin();
  }
}

void fail_at(const Origin& at, const std::string& path, const std::string& found, const std::string& expected) {
  throw ConfigError(located(at.str(), path), found, expected);
}

bool is_ladder_file(const std::string& s) {
  static const std::set<std::string> names = {"lock", "plots", "jobs", "corpus", "shrunk.txt"};
  static const std::set<std::string> endings = {".json", ".jsonl", ".csv", ".md", ".html"};
  return names.count(s) > 0 || endings.count(fs::path(s).extension().string()) > 0;
}

bool is_folder_name(const std::string& s) { return is_file_name(s) && s.front() != '.'; }

std::string quoted_list(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i) { text += (i == 0 ? "\"" : ", \"") + names[i] + "\""; }
  return text + (names.size() > most ? ", …" : "");
}

SweepFile read_sweep_file(const Json& source) {
  Keys keys;
  read_all(source, [&](const Json& json) {
    keys = Keys();
    Fields::read(json, "", keys);
  });
  SweepFile& file = keys.file;
  if (!keys.runs.empty()) { file.dimensions.push_back(dimension_of(keys.runs)); }
  for (const auto& [axis, choices] : keys.axes.members()) {
    file.dimensions.push_back(dimension_of_axis(axis, choices));
  }
  for (const Json::Member& key : keys.grid.members()) { file.dimensions.push_back(dimension_of_grid(key)); }
  check_dimensions(file.dimensions);
  return std::move(file);
}

}  // namespace hebb
