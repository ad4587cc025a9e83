// When, with what and where each run was trained (docs/verbs/report.md).
#include <sstream>

#include "core/join.h"
#include "study/report/parts.h"

namespace hebb {
namespace {

/// What follows `mark` in a line; "" where it does not have it.
std::string behind(const std::string& line, const std::string& mark) {
  const size_t at = line.find(mark);
  return at == std::string::npos ? "" : line.substr(at + mark.size());
}

/// Hosts of the events files in RUN/tb, events.out.tfevents.TIME.HOST.PID.
std::vector<std::string> hosts_of(const fs::path& run) {
  std::vector<std::string> hosts;
  std::error_code none;  // no folder
  for (const fs::directory_entry& entry : fs::directory_iterator(run / "tb", none)) {
    const std::string rest = behind(entry.path().filename().string(), "events.out.tfevents.");
    const size_t from = rest.find('.'), to = rest.rfind('.');
    if (from < to && to != std::string::npos) { add_once(hosts, rest.substr(from + 1, to - from - 1)); }
  }
  std::sort(hosts.begin(), hosts.end());
  return hosts;
}

/// What the starts of a run say in train.log, each value once.
struct Starts {
  std::vector<std::string> dates, programs, devices, precisions;

  explicit Starts(const fs::path& log) {
    if (!fs::exists(log)) { return; }
    std::istringstream lines(read_file(log));
    for (std::string line; std::getline(lines, line);) {
      const std::string said = behind(line, " [info] rank 0: ");
      if (const std::string commit = behind(said, ", commit "); said.starts_with("hebb ") && !commit.empty()) {
        dates.push_back(line.substr(0, line.find('.')) + line.substr(line.find(' ', line.find('.')), 7));
        add_once(programs, said.substr(5));
      }
      if (!said.starts_with("device: ")) { continue; }
      const std::string mark = ", precision ", precision = behind(said, mark);
      add_once(devices, said.substr(8, said.find(mark) - 8));
      add_once(precisions, precision.substr(0, precision.find_first_of(", ")));
    }
  }
};

}  // namespace

Table run_details(const std::vector<ReportRun>& runs) {
  Table table{{"run", "started", "hebb", "machine", "device", "precision"}, {}};
  const auto cell = [](const std::vector<std::string>& values) {
    return values.empty() ? Json() : Json(join(values, "; "));
  };
  for (const ReportRun& run : runs) {
    if (!run.results.empty()) { continue; }
    const Starts starts(run.folder / "train.log");
    if (starts.dates.empty()) { continue; }
    const size_t more = starts.dates.size() - 1;
    table.rows.push_back({run.id, starts.dates[0] + (more > 0 ? ", " + std::to_string(more) + " more" : ""),
                          cell(starts.programs), cell(hosts_of(run.folder)), cell(starts.devices),
                          cell(starts.precisions)});
  }
  return table;
}

}  // namespace hebb
