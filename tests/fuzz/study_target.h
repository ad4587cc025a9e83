#pragma once
// What the libFuzzer programs for sweeps and folders of ladders, and the tests of their kept inputs, run.
#include <cmath>
#include <regex>

#include "study/ladder/expression.h"
#include "study/ladder/launcher.h"
#include "study/ladder/runs.h"
#include "study/ladder/submission.h"
#include "study/ladder/sweep.h"
#include "study/report/name_pattern.h"
#include "study/report/run_results.h"
#include "tests/fuzz/run_target.h"

namespace hebb::fuzz {

/// A sweep and what it extends, up to the configurations of its runs.
inline bool sweep(std::string_view input) {
  const Folder folder(input, {"sweep.json", "base.json"});
  return is_read([&] {
    for (const char* name : {"sweep.json", "base.json"}) {
      if (fs::exists(folder / name) && !is_small(parse_json_file((folder / name).string()))) { return; }
    }
    const Sweep read = read_sweep(folder / "sweep.json");
    for (const SweepRun& run : read.runs) { expect(!run.id.empty(), "a run has an id"); }
  });
}

/// An expression, and the same text as a pattern and as a name.
inline bool expression(std::string_view text) {
  const std::string whole(text);
  const bool is_good = is_read([&] {
    const double value = evaluate(
        whole, [](const std::string& name) { return name.size() < 8 ? std::optional(2.5) : std::nullopt; }, "fuzz");
    expect(std::isfinite(value), "a value is finite");
  });
  const std::string pattern = whole.substr(0, whole.find('\n'));
  matches_any({pattern}, "d=1,size=small");
  matches_any({"*d=*"}, whole);
  tags_in_name(pattern, "d-1-small");
  return is_good;
}

/// The folder of a ladder: its sweep, the state of a run, what was submitted.
inline bool ladder(std::string_view input) {
  const Folder folder(input, {"sweep.json", "run/status.json", "jobs/0001.json", "jobs/0002.json"});
  const bool is_ladder = is_read([&] { read_ladder(folder.path()); });
  is_read([&] { was_killed(read_status(folder / "run")); });
  is_read([&] {
    for (const Submission& s : read_submissions(folder.path())) { s.run_at("0"); }
    next_submission(folder.path());
  });
  return is_ladder;
}

/// The folder of a run, as results and reports read it.
inline bool results(std::string_view input) {
  const Folder folder(input, {"config.json", "metrics.jsonl", "evals/step_00000002/e.json", "status.json"});
  return is_read([&] {
    const Json result = result_of({folder.path()}, "run", Json::object());
    expect(!results_jsonl({result}).empty(), "a result has a line");
    results_table({result});
    comparison_table({result, result});
  });
}

}  // namespace hebb::fuzz
