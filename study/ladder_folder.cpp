// What the folder of a ladder holds: states of runs, sweep.json.
#include <signal.h>

#include <cerrno>
#include <set>

#include "core/host.h"
#include "core/retry.h"
#include "study/ladder_runs.h"
#include "study/sweep_file.h"

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

RunStatus read_status(const fs::path& run) {
  const fs::path path = run / "status.json";
  RunStatus s;
  if (!fs::exists(path)) { return s; }
  try {
    const Json json = parse_json(read_file(path), path.string());
    s.state = json.text_at("state");
    s.config_hash = json.text_at("config_hash");
    s.host = json.text_at("host");
    s.started = json.text_at("started");
    s.ended = json.text_at("ended");
    s.error = json.text_at("error");
    s.step = json.integer_at("step", 0);
    s.pid = json.integer_at("pid", 0);
    if (s.pid != static_cast<pid_t>(s.pid) || s.pid < 0) {
      throw ConfigError(json.at("pid").origin().str(), json.at("pid").found(), "the number of a process");
    }
    s.seconds = json.number_at("seconds", 0);
    s.task = json.text_at("task");
    s.idle = json.integer_at("idle", 0);
  } catch (const ConfigError& error) {
    throw CheckpointError(path.string(), std::string("not a status: ") + error.what());
  }
  static const std::set<std::string> states = {"pending", "running", "done", "failed"};
  if (states.count(s.state) == 0) {
    throw CheckpointError(path.string(), "not a status", "state \"" + s.state + "\"",
                          "pending, running, done or failed");
  }
  return s;
}

bool was_killed(const RunStatus& s) {
  return s.state == "running" && s.host == host_name() && s.pid > 0 && ::kill(static_cast<pid_t>(s.pid), 0) != 0 &&
         errno == ESRCH;
}

void write_status(const fs::path& run, const RunStatus& s) {
  Json json = Json::object({{"state", s.state},
                            {"config_hash", s.config_hash},
                            {"step", s.step},
                            {"host", s.host},
                            {"pid", s.pid},
                            {"started", s.started},
                            {"ended", s.ended},
                            {"seconds", s.seconds},
                            {"error", s.error}});
  if (!s.task.empty()) {
    json.set("task", s.task);
    json.set("idle", s.idle);
  }
  write_file_atomic(run / "status.json", json.dump(1) + "\n");
}

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
    ladder.shrink = json.number_at("shrink", ladder.shrink);
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

}  // namespace hebb
