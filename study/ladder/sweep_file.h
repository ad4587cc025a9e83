#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "study/ladder/sweep.h"

namespace hebb {

/// One entry of `solve`.
struct SolveEntry {
  std::string path, quantity;
  Json equals;  // a number, or the id of a run or a part of it
  int64_t multiple_of = 1;
  std::string where;
  Origin at;
};

/// What a run, a choice of an axis or a value of a grid says of the runs that have it.
struct Choice {
  std::string name;    // its part of their ids
  std::string config;  // of a run: the run configuration that it starts from; empty: the sweep's base
  Json set = Json::object(), derive = Json::object(), tags = Json::object(), cluster = Json::object();
  std::vector<SolveEntry> solve;
  bool train = true;
  std::string path;  // in the sweep: "axes.arch.gdn"
  Origin at;
};

void fields(Fields& f, SolveEntry& entry);
void fields(Fields& f, Choice& choice);

/// A list of which every run of the sweep has one choice: `runs`, an axis, or one key of `grid`.
struct Dimension {
  enum class Kind { runs, axis, grid };
  Kind kind = Kind::runs;
  std::string name;  // of an axis; last part of a grid's path
  std::vector<Choice> choices;
};

/// A sweep as written. Its runs are the product of its dimensions, in their order; the last varies fastest.
struct SweepFile {
  std::string name, base, evals;
  std::vector<Dimension> dimensions;  // runs, axes, grid
  Json derive = Json::object(), cluster = Json::object();
  std::vector<SolveEntry> solve;
  int64_t max_parallel = 1, ranks = 1;
  std::optional<FitConfig> fit;
  std::optional<PublishedTable> published;
};

/// Reads and checks what can be without building models.
/// Errors: ConfigError at the place in the sweep that is wrong.
SweepFile read_sweep_file(const Json& source);

/// Checks that `fit` speaks of keys of results, tags and runs of this sweep. `level`, if not written, is the axis
/// beside `by` where there is one such.
void complete_fit(Sweep& sweep, const std::vector<Dimension>& dimensions);

/// Names the quantities that expressions and `solve` know.
const std::vector<std::string>& sweep_quantities();

/// ConfigError at `at`.
[[noreturn]] void fail_at(const Origin& at, const std::string& path, const std::string& found,
                          const std::string& expected);

/// Files and folders that a ladder writes beside its runs, by their names.
bool is_ladder_file(const std::string& s);

/// Names that can be a folder (is_file_name()) and have no dot in front.
bool is_folder_name(const std::string& s);

/// Checks that every row of `published` is a run of this sweep.
void check_published(const Sweep& sweep);

/// "a", "b", "c" for messages; after `most` of them "…".
std::string quoted_list(const std::vector<std::string>& names, size_t most = 8);

}  // namespace hebb
