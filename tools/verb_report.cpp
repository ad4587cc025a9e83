#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>

#include "study/ladder.h"
#include "study/report.h"
#include "tools/command_line.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

struct Options {
  std::vector<std::string> runs;
  std::string out = "report";
};

int terminal_width() {
  winsize size{};
  return isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20
             ? std::min<int>(size.ws_col, 120)
             : 80;
}

void run_report(const Options& o) {
  if (o.runs.size() == 1 && is_ladder(o.runs[0])) {
    std::printf("wrote %s\n", write_ladder_report(o.runs[0], o.out).string().c_str());
    return;
  }
  std::vector<ReportRun> runs;
  std::vector<Curve> curves;
  std::set<fs::path> seen;
  for (const std::string& path : o.runs) {
    if (!seen.insert(fs::weakly_canonical(fs::absolute(path))).second) {
      throw ConfigError("hebb report", path + " twice", "different runs");  // a repetition would count as a second seed
    }
  }
  for (const std::string& path : o.runs) {
    runs.push_back(read_report_run(path));
    Curve c = runs.back().metrics.loss;
    c.name = o.runs.size() > 1 ? runs.back().id : c.name;
    curves.push_back(c);
    for (Curve v : runs.back().metrics.validation) {
      v.name = (o.runs.size() > 1 ? runs.back().id + ": " : "") + "validation " + v.name;
      curves.push_back(v);
    }
  }
  std::printf("%s", text_chart(curves, "loss [nats per token]", terminal_width(), 22).c_str());
  std::printf("wrote %s\n",
              write_report(runs.size() == 1 ? runs[0].id : "Report", runs, std::nullopt, o.out).string().c_str());
}

}  // namespace

void add_report_verb(Command program) {
  Command verb = program.verb("report", "Tables, scaling fits and vector plots of runs or of a ladder");
  const auto o = std::make_shared<Options>();
  verb.option("RUN", o->runs, "Run folders, or the folder of a ladder").required();
  verb.option("-o,--out", o->out, "Folder for the page and the drawings");
  verb.runs([o] { run_report(*o); });
}

}  // namespace hebb
