// Items of an evaluation: computed, or taken from what an interrupted run has kept; divided among ranks.
#include <algorithm>
#include <chrono>
#include <exception>

#include "eval/evaluation.h"
#include "eval/rank_round.h"

namespace hebb {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

void EvalContext::poll() const {
  if (flight != nullptr) { flight->tick(); }
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

/// What an earlier run has kept is rank 0's.
bool EvalContext::is_own(const ItemList& list, size_t i) const {
  if (exchange == nullptr) { return true; }
  const bool is_kept = journal != nullptr && journal->is_kept(items_before + static_cast<int64_t>(i));
  const bool is_of_first = is_kept || list.moves_weights || list.is_on_first;
  const Communicator& ranks = exchange->communicator();
  return ranks.rank() == (is_of_first ? 0 : static_cast<int>(i % static_cast<size_t>(ranks.size())));
}

EvalContext::Item EvalContext::item(const ItemList& list, size_t i) {
  const int64_t index = items_before + static_cast<int64_t>(i);
  if (const EvalJournal::Item* kept = journal != nullptr ? journal->find(index) : nullptr) {
    if (index == journal->last() && journal->weights()) { model.restore_fast_weights(*journal->weights()); }
    return {i, kept->value, kept->samples};
  }
  const size_t logged = samples.size();
  Item item{i, list.compute(i), samples.substr(logged)};
  samples.resize(logged);
  if (journal == nullptr) { return item; }
  journal->add(index, {item.value, item.samples, list.moves_weights});
  if (list.moves_weights && now() - weights_kept >= weights_interval) {
    journal->keep_weights(model.save_fast_weights());
    weights_kept = now();
  }
  return item;
}

/// The items of this rank, as far as the list goes. `at`: the item that it is at.
void EvalContext::own_items(const ItemList& list, std::vector<Item>& found, size_t& at) {
  bool is_ended = false;
  for (at = 0; at < list.count; ++at) {
    const uint64_t behind = done + (list.units ? list.units(at) : 1);
    if (!is_ended && is_own(list, at)) {
      poll();
      found.push_back(item(list, at));
      is_ended = list.ends && list.ends(found.back().value);
    }
    done = behind;
    progress.update(done);
  }
}

/// The items of all ranks as far as the list goes, or to the first that has failed. Only rank 0 has samples.
std::vector<EvalContext::Item> EvalContext::gather(const ItemList& list, std::vector<Item> found,
                                                   std::optional<RankFailure>& failure) {
  const int rank = exchange->communicator().rank();
  Json own = Json::array();
  for (const Item& item : found) {
    own.push(Json::array({static_cast<int64_t>(item.i), item.value, rank == 0 ? "" : item.samples}));
  }
  const RankRound round = hold_round(*exchange, "item " + std::to_string(items_before), own, failure);
  failure = round.failure;
  std::vector<std::optional<Item>> all(list.count);
  for (const Json& values : round.values) {
    if (values.is_null()) { continue; }
    for (const Json& item : values.items()) {
      const auto i = static_cast<size_t>(item.items()[0].as_int());
      all.at(i) = {i, item.items()[1], item.items()[2].as_string()};
    }
  }
  if (rank == 0) {
    for (Item& item : found) { all[item.i]->samples = std::move(item.samples); }
  }
  const size_t end = failure ? static_cast<size_t>(std::max<int64_t>(failure->item, 0)) : list.count;
  std::vector<Item> gathered;
  for (size_t i = 0; i < end; ++i) {
    if (!all[i]) { throw CommError("evaluation", "no rank has computed item " + std::to_string(i)); }
    gathered.push_back(std::move(*all[i]));
    if (list.ends && list.ends(gathered.back().value)) {
      failure.reset();  // behind the end of the list
      break;
    }
  }
  return gathered;
}

std::vector<Json> EvalContext::items(const ItemList& list) {
  std::vector<Item> found;
  std::exception_ptr error;
  size_t at = 0;
  const size_t logged = samples.size();
  std::optional<RankFailure> failure;
  try {
    own_items(list, found, at);
  } catch (const Error& thrown) {
    error = std::current_exception();
    failure = failure_of(thrown, static_cast<int64_t>(at));
    samples.resize(logged);
  }
  if (exchange != nullptr) {
    found = gather(list, std::move(found), failure);
    error = failure ? std::make_exception_ptr(AgreedError(*failure)) : nullptr;
  }
  std::vector<Json> values;
  for (Item& item : found) {
    samples += item.samples;
    values.push_back(std::move(item.value));
  }
  if (error) { std::rethrow_exception(error); }
  items_before += static_cast<int64_t>(list.count);
  return values;
}

}  // namespace hebb
