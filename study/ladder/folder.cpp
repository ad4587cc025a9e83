// What the folder of a ladder holds: states of runs, sweep.json.
#include "core/retry.h"
#include "study/ladder/runs.h"
#include "study/ladder/sweep_file.h"
#include "study/report/parts.h"

namespace hebb {
namespace {

/// The id of a run or of a planned result, which names a folder.
std::string id_of(const Json& run) {
  const Json& id = run.at("id");
  if (!is_folder_name(id.as_string())) { throw ConfigError(id.origin().str(), id.found(), "the id of a run"); }
  return id.as_string();
}

/// An object of numbers, strings and booleans.
const Json& tags_of(const Json& tags) {
  for (const auto& [name, value] : tags.members()) {
    if (value.is_array() || value.is_object()) {
      throw ConfigError(value.origin().str() + ": " + name, value.found(), "a number, a string or a boolean");
    }
  }
  return tags;
}

}  // namespace

void remove_begun(const fs::path& run) {
  std::vector<fs::path> begun;
  for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    const auto is_of = [&](const char* file) { return name.starts_with(std::string(file) + ".tmp-"); };
    if (is_of("status.json") || is_of(kLadderConfig)) { begun.push_back(entry.path()); }
  }
  for (const fs::path& file : begun) {
    retried_or_throws([&] { return fs::remove(file); });
  }
}

bool is_ladder(const fs::path& folder) { return fs::exists(folder / "sweep.json"); }

LadderFolder read_ladder(const fs::path& folder) {
  const fs::path path = folder / "sweep.json";
  if (!fs::exists(path)) {
    throw CheckpointError(folder.string(), "no ladder here", fs::exists(folder) ? "no sweep.json" : "nothing",
                          "a folder that hebb ladder made");
  }
  try {
    const Json json = parse_json(read_file(path), path.string());
    LadderFolder ladder;
    ladder.name = json.text_at("name");
    for (const Json& r : json.at("runs").items()) {
      const Json* tags = r.find("tags");
      ladder.runs.push_back({id_of(r), tags != nullptr ? tags_of(*tags) : Json::object(), r.integer_at("steps", 0),
                             r.number_at("flops", 0)});
    }
    if (const Json* planned = json.find("planned"); planned != nullptr) {
      ladder.planned = planned->items();
      for (const Json& result : ladder.planned) { id_of(result); }
    }
    if (const Json* shrink = json.find("shrink"); shrink != nullptr) {
      Fields::read(*shrink, "shrink", ladder.shrink.emplace());
    }
    if (const Json* fit = json.find("fit"); fit != nullptr && !fit->is_null()) {
      Fields::read(*fit, "fit", ladder.fit.emplace());
    }
    if (const Json* published = json.find("published"); published != nullptr && !published->is_null()) {
      Fields::read(*published, "published", ladder.published.emplace());
    }
    return ladder;
  } catch (const ConfigError& error) {
    throw CheckpointError(path.string(), std::string("not a ladder: ") + error.what());
  }
}

fs::path write_ladder_report(const fs::path& ladder, const fs::path& out) {
  const LadderFolder folder = read_ladder(ladder);
  std::vector<ReportRun> runs;
  for (const LadderRun& run : folder.runs) {
    if (read_status(ladder / run.id).state == "done") {
      runs.push_back(read_report_run(ladder / run.id, run.id, run.tags));
    }
  }
  std::optional<ReportPart> published;
  if (folder.published) {
    std::vector<Json> results;
    for (const ReportRun& run : runs) { results.push_back(run.result); }
    published = beside_published(*folder.published, results, folder.shrink ? folder.shrink->budget.text() : "");
  }
  return write_report(folder.name, runs, folder.fit, out.empty() ? ladder : out, folder.planned,
                      published ? &*published : nullptr);
}

}  // namespace hebb
