// Items of an evaluation: computed, or taken from what an interrupted run has kept.
#include <chrono>

#include "eval/evaluation.h"

namespace hebb {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

void EvalContext::poll() const {
  if (stop_requested && stop_requested()) { throw Error(ExitCode::kStopped, "evaluation stopped by a signal"); }
}

void EvalContext::begin(std::string_view title, uint64_t units) {
  done = 0;
  progress.begin(title, units);
}

void EvalContext::step(uint64_t units) {
  done += units;
  progress.update(done);
  poll();
}

Json EvalContext::item(const ItemList& list, size_t i) {
  const int64_t index = items_before + static_cast<int64_t>(i);
  if (const EvalJournal::Item* kept = journal != nullptr ? journal->find(index) : nullptr) {
    samples += kept->samples;
    if (index == journal->last() && journal->weights()) { session.restore_fast_weights(*journal->weights()); }
    return kept->value;
  }
  const size_t logged = samples.size();
  const Json value = list.compute(i);
  if (journal == nullptr) { return value; }
  journal->add(index, {value, samples.substr(logged), list.moves_weights});
  if (list.moves_weights && now() - weights_kept >= weights_interval) {
    journal->keep_weights(session.save_fast_weights());
    weights_kept = now();
  }
  return value;
}

std::vector<Json> EvalContext::items(const ItemList& list) {
  std::vector<Json> values;
  bool is_ended = false;
  for (size_t i = 0; i < list.count; ++i) {
    const uint64_t behind = done + (list.units ? list.units(i) : 1);
    if (!is_ended) {
      poll();
      values.push_back(item(list, i));
      is_ended = list.ends && list.ends(values.back());
    }
    done = behind;
    progress.update(done);
  }
  items_before += static_cast<int64_t>(list.count);
  return values;
}

}  // namespace hebb
