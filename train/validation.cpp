#include "train/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/elapsed.h"

namespace hebb {

Validation::Validation(const RunContext& run, const LoaderOptions& loader) : run_(run) {
  for (size_t i = 0; i < run.config.data.validation.size(); ++i) {
    sources_.push_back(std::make_unique<ValidationSource>(run.config.data, i, loader));
  }
}

int64_t Validation::rows() const {
  int64_t rows = 0;
  for (const auto& source : sources_) { rows += source->rows(); }
  return rows;
}

std::string Validation::text() const {
  std::string text;
  for (const auto& source : sources_) {
    text += fmt::format("validation {}: {:d} rows\n", source->name(), source->rows());
  }
  return text;
}

void Validation::start(const std::set<std::string>& done) {
  Json names = Json::array();
  for (const auto& source : sources_) {
    if (done.count(source->name()) > 0) { names.push(Json(source->name())); }
  }
  const Json first = parse_json(run_.host.from_first(names.dump()), "rank 0");
  for (const Json& name : first.items()) { done_.insert(name.as_string()); }
}

bool Validation::is_due(int64_t step) const {
  const int64_t every = run_.config.train.val_every;
  const bool is_last = step >= run_.config.train.steps;
  return done_.size() < sources_.size() && step > 0 && (is_last || (every > 0 && step % every == 0));
}

bool Validation::run(TrainingState& training, int64_t step, StopAgreement& stop, StepReporter& reporter) {
  const auto begin = std::chrono::steady_clock::now();
  training.complete_values();
  for (const auto& source : sources_) {
    const bool is_done = done_.count(source->name()) > 0;
    if (!is_done && !run_source(*source, training, step, stop, reporter)) { return false; }
  }
  reporter.add_validation_seconds(seconds_since(begin));
  return true;
}

/// Adds the losses of a group of micro-batches, one a lane, from row `first` on: those of a micro-batch first, then in
/// order of rows, so that the sum is the same for every number of ranks. Returns whether a rank wants to stop.
bool Validation::add_group(ValidationSource& source, TrainingState& training, int64_t first,
                           const PassSettings& settings, bool wants_stop, LossSum& sum) {
  const int64_t lanes = training.own_lanes(), rows_each = *run_.config.train.micro_batch_size;
  std::vector<uint64_t> words{wants_stop ? 1u : 0u};  // then loss and tokens of each own lane
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int64_t begin = std::min(source.rows(), first + (run_.ranks.rank() * lanes + lane) * rows_each);
    const MicroBatch rows = source.read(begin, rows_each);
    std::vector<double> losses(rows.targets.size());
    if (rows.rows > 0) {
      const Tensor row_loss = training.row_loss.tensor().slice(0, {rows.rows * rows.length});
      training.run_validation(rows, rows.rows, settings, row_loss);
      copy_to_host(training.stream, losses.data(), row_loss);
    } else if (training.ranks && training.ranks->shares_rows()) {  // others wait for a pass of this rank
      training.run_validation(source.read(0, 1), 0, settings,
                              training.row_loss.tensor().slice(0, {run_.config.train.sequence_length}));
    }
    words.push_back(std::bit_cast<uint64_t>(std::accumulate(losses.begin(), losses.end(), 0.0)));
    words.push_back(static_cast<uint64_t>(
        std::count_if(rows.targets.begin(), rows.targets.end(), [](int32_t t) { return t != -100; })));
  }
  const std::vector<uint64_t> all = run_.host.gather(words);
  bool stops = false;
  for (size_t rank = 0; rank < all.size(); rank += words.size()) {
    stops = stops || all[rank] != 0;
    for (size_t i = rank + 1; i < rank + words.size(); i += 2) {
      sum.loss += std::bit_cast<double>(all[i]);
      sum.tokens += static_cast<int64_t>(all[i + 1]);
    }
  }
  return stops;
}

/// False when a request to stop came in between: the run that goes on starts this source again.
bool Validation::run_source(ValidationSource& source, TrainingState& training, int64_t step, StopAgreement& stop,
                            StepReporter& reporter) {
  Stream& stream = training.stream;
  const CarriedState aside(stream, training.work, training.model.params());
  if (training.memories) { training.memories->read_first(stream); }
  const PassSettings settings{
      .document_mask = run_.config.train.document_mask, .seed = run_.config.train.seed, .step = step};
  LossSum sum;
  bool stops = false;
  run_.log.begin_part("validation " + source.name(), source.rows());
  for (int64_t row = 0; row < source.rows() && !stops;) {
    run_.ranks.flight().at(step, "validation", row);
    stops = add_group(source, training, row, settings, stop.is_wanted(), sum);
    row = std::min(source.rows(), row + run_.config.train.lanes.value_or(1) * *run_.config.train.micro_batch_size);
    run_.log.update_part(row);
  }
  run_.log.end_part();
  aside.restore(stream);
  stop.agree(stops);
  const bool is_complete = !stops;
  if (is_complete) {
    reporter.validation(step, source.name(), sum.loss / static_cast<double>(sum.tokens), sum.tokens);
    done_.insert(source.name());
  }
  return is_complete;
}

}  // namespace hebb
