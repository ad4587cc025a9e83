#include "study/ladder/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "study/report/read_metrics.h"

namespace hebb {
namespace {

uint64_t megaflops(double flops) { return static_cast<uint64_t>(std::llround(flops / 1e6)); }

LadderShare share_now(const fs::path& folder, const LadderFolder& ladder, const std::vector<RunStatus>& states) {
  std::vector<int64_t> steps;
  for (size_t i = 0; i < ladder.runs.size(); ++i) {
    steps.push_back(states[i].state == "done" ? 0 : last_logged_step(folder / ladder.runs[i].id));
  }
  return ladder_share(ladder, states, steps);
}

}  // namespace

LadderShare ladder_share(const LadderFolder& ladder, const std::vector<RunStatus>& states,
                         const std::vector<int64_t>& steps) {
  LadderShare s;
  s.runs = static_cast<int64_t>(ladder.runs.size());
  for (size_t i = 0; i < ladder.runs.size(); ++i) {
    const LadderRun& run = ladder.runs[i];
    const double of_run =
        run.steps > 0 ? std::min(1.0, static_cast<double>(steps[i]) / static_cast<double>(run.steps)) : 0;
    const double flops = run.flops * (states[i].state == "done" ? 1 : of_run);
    s.done += states[i].state == "done" ? 1 : 0;
    s.running += states[i].state == "running" ? 1 : 0;
    s.queued += states[i].state == "queued" ? 1 : 0;
    s.total_flops += run.flops;
    s.flops += flops;
    if (states[i].state == "failed") {
      ++s.failed;
      s.lost_flops += run.flops - flops;
    }
  }
  return s;
}

std::string runs_text(const LadderShare& share) {
  std::string text = fmt::format("{:d} of {:d} runs done", share.done, share.runs);
  for (const auto& [count, state] :
       {std::pair{share.running, "running"}, {share.queued, "queued"}, {share.failed, "failed"}}) {
    if (count > 0) { text += fmt::format(", {:d} {}", count, state); }
  }
  return text;
}

void LadderProgress::begin(const std::vector<RunStatus>& states) {
  if (bar_ != nullptr) {
    ladder_ = read_ladder(folder_);
    const LadderShare share = share_now(folder_, ladder_, states);
    before_ = share.flops;
    bar_->begin(ladder_.name, megaflops(share.total_flops), Progress::Unit::megaflops, megaflops(before_));
    show(states);
  }
}

void LadderProgress::update(const std::vector<RunStatus>& states) {
  if (std::chrono::steady_clock::now() - looked_ >= std::chrono::seconds(1)) { show(states); }
}

void LadderProgress::end(const std::vector<RunStatus>& states) {
  if (bar_ != nullptr) {
    const LadderShare share = share_now(folder_, ladder_, states);
    bar_->skip(megaflops(before_));
    bar_->update(megaflops(share.flops), runs_text(share));
    bar_->end();
  }
}

void LadderProgress::show(const std::vector<RunStatus>& states) {
  if (bar_ != nullptr) {
    const LadderShare share = share_now(folder_, ladder_, states);
    // What failed runs left undone counts as passed over: the time left is that of the others.
    bar_->skip(megaflops(before_ + share.lost_flops));
    bar_->update(megaflops(share.flops + share.lost_flops), runs_text(share));
    looked_ = std::chrono::steady_clock::now();
  }
}

}  // namespace hebb
