#include <CLI/CLI.hpp>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "tools/verbs.h"
#include "train/report.h"

namespace hebb {
namespace {

struct Options {
  std::vector<std::string> runs;
  std::string out = "report";
};

int terminal_width() {
  winsize size{};
  return isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? std::min<int>(size.ws_col, 120) : 80;
}

void run_report(const Options& o) {
  std::vector<RunMetrics> runs;
  std::vector<Curve> loss;
  for (const std::string& run : o.runs) {
    runs.push_back(read_metrics(run));
    Curve c = runs.back().loss;
    c.name = runs.size() > 1 || o.runs.size() > 1 ? runs.back().name : c.name;
    loss.push_back(c);
    for (Curve v : runs.back().validation) {
      v.name = (o.runs.size() > 1 ? runs.back().name + ": " : "") + "validation " + v.name;
      loss.push_back(v);
    }
  }
  std::printf("%s", text_chart(loss, "loss [nats per token]", terminal_width(), 22).c_str());
  std::printf("wrote %s\n", write_report(runs, o.out).string().c_str());
}

}  // namespace

void add_report_verb(CLI::App& app, int&) {
  CLI::App& verb = *app.add_subcommand("report", "Draws the loss curves of runs, in the terminal and as a page with vector plots");
  const auto o = std::make_shared<Options>();
  verb.add_option("RUN", o->runs, "Run folders")->required();
  verb.add_option("-o,--out", o->out, "Folder for the page and the drawings")->capture_default_str();
  verb.callback([o] { run_report(*o); });
}

}  // namespace hebb
