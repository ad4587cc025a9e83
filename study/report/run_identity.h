#pragma once
// What must be the same for two runs' numbers to be compared (docs/verbs/report.md, Comparisons).
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "study/report/run_results.h"
#include "study/report/table.h"

namespace hebb {

/// Adds to a result, beside the values, what they were measured on: "loss@data", "val.NAME@data" (the fingerprint that
/// state.json of the checkpoint has of the source, else names and sizes of the files; or the options of a synthetic
/// source; and the tokenizer) and "seeds", all seeds of the run.
void add_identity(Json& result, const Json& config, const RunPlace& place);

/// A configuration in which the data's paths are what the files there are, by the same rule.
Json without_data_places(Json config, const RunPlace& place);

/// What an evaluation was measured on, from its result file: data and configuration; with the tokenizer where
/// `per_token`.
std::string evaluation_data(const Json& result_file, bool per_token);

/// Keys that say what others were measured on.
inline bool is_identity(const std::string& key) { return key.find('@') != std::string::npos; }

/// "" for one value, else " [data A]", " [data B]", ... in order of first appearance.
std::string data_letter(const std::vector<std::string>& all, const std::string& own);

/// The keys in which configurations differ, a column for each run where they are few, else a row. Keys that have their
/// defaults everywhere are left out; a layer that only some have is one key. No rows where nothing differs.
Table config_differences(const std::vector<std::string>& ids, const std::vector<Json>& configs);

}  // namespace hebb
