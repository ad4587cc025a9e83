#include "study/report/run_status.h"

#include <signal.h>

#include <cerrno>
#include <set>

#include "core/error.h"
#include "core/host.h"
#include "core/json.h"

namespace hebb {

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

}  // namespace hebb
