#include <filesystem>
#include <memory>

#include "core/names.h"
#include "study/ladder/ladder.h"
#include "study/ladder/launcher.h"
#include "study/ladder/shrink.h"
#include "study/ladder/task.h"
#include "tools/command_line.h"
#include "tools/console.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

struct Options {
  std::string sweep, folder;
  LadderOptions ladder;
  bool dry_run = false, status = false, cancel = false;
  std::string task;
  double shrink = 0, shrink_total = 0;
  PlanOptions plan;  // of --dry-run
};

/// The sweep, shrunk to the FLOPs that were asked for or as the folder has it; sets the folder.
Sweep sweep_of(Options& o) {
  Sweep sweep = read_sweep(o.sweep);
  const ShrinkBudget asked{o.shrink_total > 0 ? o.shrink_total : o.shrink, o.shrink_total > 0};
  const std::string name = sweep.name + (asked.flops > 0 ? asked.suffix() : "");
  o.ladder.folder = o.folder.empty() ? fs::path("runs") / name : fs::path(o.folder);
  const std::optional<ShrinkOptions> options = shrink_options(sweep, o.ladder.folder, asked);
  return options ? shrink_sweep(sweep, *options).sweep : sweep;
}

/// SWEEP may be the folder of a ladder where the sweep itself is not needed.
int run_in_folder(const Options& o) {
  const fs::path folder = fs::is_directory(o.sweep) && o.folder.empty() ? fs::path(o.sweep) : o.ladder.folder;
  if (!o.task.empty()) { return run_ladder_task(folder, o.task, o.ladder.program, print_line); }
  print_text(printable(o.cancel ? cancel_jobs(folder) : ladder_status(folder), true));
  return 0;
}

int run(Options& o) {
  o.ladder.program = fs::read_symlink("/proc/self/exe").string();
  o.ladder.folder = o.folder;
  if (!o.task.empty() || ((o.status || o.cancel) && fs::is_directory(o.sweep))) { return run_in_folder(o); }
  const Sweep sweep = sweep_of(o);
  if (o.dry_run) {
    if (sweep.shrunk) { print_text(sweep.shrunk->text + "\n"); }
    print_text(describe_ladder(sweep, o.ladder, o.plan, stdout_columns()));
    if (!o.ladder.launcher.empty()) { print_text("\n" + describe_jobs(sweep, o.ladder)); }
    return 0;
  }
  if (o.status || o.cancel) { return run_in_folder(o); }
  if (!o.ladder.launcher.empty()) { return launch_ladder(sweep, o.ladder, console_with(nullptr)); }
  if (!o.ladder.cluster.empty()) {
    throw ConfigError("hebb ladder", "--cluster without --launcher", "--launcher slurm --cluster KEY=VALUE");
  }
  constexpr double kLineSeconds = 60;  // ladders take hours: plain lines for a log, not for eyes
  const std::unique_ptr<Progress> bar = stderr_progress(kLineSeconds);
  return run_ladder(sweep, o.ladder, console_with(bar.get()));
}

}  // namespace

void add_ladder_verb(Command program) {
  Command verb = program.verb(
      "ladder", "Trains the runs of a sweep, each in a process of its own; run it again after any interruption");
  const auto o = std::make_shared<Options>();
  verb.option("SWEEP", o->sweep, "Sweep file (JSON), or the folder of a ladder for --status and --cancel").required();
  verb.option("--dir", o->folder, "Folder of the runs").default_text("runs/NAME").type_name("PATH");
  verb.flag("--dry-run", o->dry_run, "Print every run with parameters, tokens, FLOPs, memory and the total, and stop");
  verb.flag("--status", o->status, "Print the state of the runs and the time left, and stop");
  verb.option("--parallel", o->ladder.parallel,
              "Runs at the same time (default: max_parallel of the sweep; Slurm: of each job array, no limit)")
      .at_least(1);
  verb.option("--ranks", o->ladder.ranks, "Processes that train a run together (default: ranks of the sweep)")
      .at_least(1)
      .default_text("");
  verb.option("--launcher", o->ladder.launcher,
              "slurm, or a command with {command}, {name}, {ranks}, {folder}: runs are jobs, and the command returns")
      .type_name("LAUNCHER");
  verb.option("--cluster", o->ladder.cluster,
              "What jobs ask for, over the sweep's `cluster`: partition=gpu time=8:00:00")
      .type_name("KEY=VALUE");
  verb.flag("--cancel", o->cancel, "End the jobs of the ladder, which save first, and stop");
  verb.option("--task", o->task, "What jobs call: the run NUMBER.PLACE of a submission").type_name("NUMBER.PLACE");
  verb.flag("--skip-unfit", o->ladder.skips_unfit, "Leave out runs that need more memory than this machine has");
  verb.flag("--force", o->ladder.force,
            "Start runs anew whose configuration changed; the old folder is kept as ID.HASH");
  const Option shrink =
      verb.option("--shrink", o->shrink,
                  "Train the same table smaller: all sizes shrink by one rule until a run takes about so many FLOPs, "
                  "the mean over the runs")
          .above(0)
          .default_text("")
          .type_name("FLOPS");
  verb.option("--shrink-total", o->shrink_total, "The same until all runs together take about so many FLOPs")
      .above(0)
      .default_text("")
      .type_name("FLOPS")
      .excludes(shrink);
  verb.option("--tflops", o->plan.tflops, "Speed to estimate the time with, for --dry-run [TFLOP/s]").above(0);
  verb.option("--gpu", o->plan.gpu, "GPU to plan for, for --dry-run: h100, h200, a100; adds what fits, and the time");
  verb.footer(
      "hebb ladder configs/mini/ladder-5-minutes.json --dry-run\n"
      "hebb ladder configs/ham/table-1.json --shrink 1e12 --parallel 2\n"
      "Page: docs/verbs/ladder.md");
  verb.runs([o] { return run(*o); });
}

}  // namespace hebb
