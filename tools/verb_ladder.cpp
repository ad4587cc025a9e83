#include <cstdio>
#include <filesystem>
#include <memory>

#include "study/ladder.h"
#include "tools/command_line.h"
#include "tools/console.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

struct Options {
  std::string sweep, folder;
  LadderOptions ladder;
  bool dry_run = false, status = false;
  double teraflops = 0;
};

int run(Options& o) {
  const Sweep sweep = read_sweep(o.sweep);
  o.ladder.folder = o.folder.empty() ? fs::path("runs") / sweep.name : fs::path(o.folder);
  if (o.dry_run) {
    std::printf("%s", describe_ladder(sweep, o.ladder.parallel, o.teraflops * 1e12).c_str());
    return 0;
  }
  if (o.status) {
    std::printf("%s", ladder_status(o.ladder.folder).c_str());
    return 0;
  }
  o.ladder.program = fs::read_symlink("/proc/self/exe").string();
  constexpr double kLineSeconds = 60;  // ladders take hours: plain lines for a log, not for eyes
  const std::unique_ptr<Progress> bar = stderr_progress(kLineSeconds);
  return run_ladder(sweep, o.ladder, console_with(bar.get()));
}

}  // namespace

void add_ladder_verb(Command program) {
  Command verb = program.verb(
      "ladder", "Trains the runs of a sweep, each in a process of its own; run it again after any interruption");
  const auto o = std::make_shared<Options>();
  verb.option("SWEEP", o->sweep, "Sweep file (JSON)").required();
  verb.option("--dir", o->folder, "Folder of the runs").default_text("runs/NAME").type_name("PATH");
  verb.flag("--dry-run", o->dry_run, "Print every run with parameters, tokens, FLOPs, memory and the total, and stop");
  verb.flag("--status", o->status, "Print the state of the runs and the time left, and stop");
  verb.option("--parallel", o->ladder.parallel, "Runs at the same time (default: max_parallel of the sweep)")
      .at_least(1);
  verb.flag("--force", o->ladder.force,
            "Start runs anew whose configuration changed; the old folder is kept as ID.HASH");
  verb.option("--tflops", o->teraflops, "Speed to estimate the time with, for --dry-run [TFLOP/s]").above(0);
  verb.runs([o] { return run(*o); });
}

}  // namespace hebb
