#include "comm/step_record.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "core/error.h"
#include "kernels/adamw/adamw.h"

namespace hebb {
namespace {

// Words of a record, one section after the other.
constexpr int64_t kHistory = 0, kState = 1, kLosses = 2;
constexpr uint64_t kStop = 1;

int64_t checked(int64_t index, int64_t count) {
  HEBB_ASSERT(index >= 0 && index < count);
  return index;
}

int64_t bit_words(int64_t bits) { return (bits + 63) / 64; }

int64_t squares(const RecordShape& s) { return kLosses + s.own_lanes() * s.micro_batches; }
int64_t counts(const RecordShape& s) { return squares(s) + s.squares; }
int64_t reached_bits(const RecordShape& s) { return counts(s) + s.counts; }
int64_t flag_bits(const RecordShape& s) { return reached_bits(s) + bit_words(s.parameters); }

}  // namespace

int64_t RecordShape::words() const { return flag_bits(*this) + bit_words(flags); }

int64_t most_segments(const BucketLayout& layout, int ranks) {
  std::vector<int64_t> owned(static_cast<size_t>(ranks));
  for (const FlatSegment& segment : layout.segments()) { ++owned[static_cast<size_t>(layout.owner(segment, ranks))]; }
  return *std::max_element(owned.begin(), owned.end());
}

StepRecord::StepRecord(const RecordShape& shape) : shape_(shape), words_(static_cast<size_t>(shape.words())) {
  HEBB_ASSERT(shape.ranks >= 1 && shape.lanes % shape.ranks == 0);
}

StepRecord::StepRecord(const RecordShape& shape, std::span<const uint64_t> words)
    : shape_(shape), words_(words.begin(), words.end()) {
  HEBB_ASSERT(static_cast<int64_t>(words_.size()) == shape.words());
}

double StepRecord::real(int64_t word) const { return std::bit_cast<double>(words_[static_cast<size_t>(word)]); }
void StepRecord::set_real(int64_t word, double value) {
  words_[static_cast<size_t>(word)] = std::bit_cast<uint64_t>(value);
}

int64_t StepRecord::loss_word(int64_t lane, int64_t micro_batch) const {
  HEBB_ASSERT(lane >= 0 && lane < shape_.own_lanes() && micro_batch >= 0 && micro_batch < shape_.micro_batches);
  return kLosses + lane * shape_.micro_batches + micro_batch;
}
void StepRecord::set_loss(int64_t lane, int64_t micro_batch, double sum) {
  set_real(loss_word(lane, micro_batch), sum);
}
double StepRecord::loss(int64_t lane, int64_t micro_batch) const { return real(loss_word(lane, micro_batch)); }

int64_t StepRecord::square_word(int64_t index) const { return squares(shape_) + checked(index, shape_.squares); }
void StepRecord::set_square(int64_t index, double sum) { set_real(square_word(index), sum); }
double StepRecord::square(int64_t index) const { return real(square_word(index)); }

size_t StepRecord::count_word(int64_t index) const {
  return static_cast<size_t>(counts(shape_) + checked(index, shape_.counts));
}
void StepRecord::set_count(int64_t index, int64_t count) { words_[count_word(index)] = static_cast<uint64_t>(count); }
int64_t StepRecord::count(int64_t index) const { return static_cast<int64_t>(words_[count_word(index)]); }

bool StepRecord::bit(int64_t first_word, int64_t index) const {
  return (words_[static_cast<size_t>(first_word + index / 64)] >> (index % 64)) & 1;
}
void StepRecord::set_bit(int64_t first_word, int64_t index) {
  words_[static_cast<size_t>(first_word + index / 64)] |= uint64_t{1} << (index % 64);
}

void StepRecord::set_reached(int64_t parameter) {
  set_bit(reached_bits(shape_), checked(parameter, shape_.parameters));
}
bool StepRecord::reached(int64_t parameter) const {
  return bit(reached_bits(shape_), checked(parameter, shape_.parameters));
}
void StepRecord::set_flag(int64_t index) { set_bit(flag_bits(shape_), checked(index, shape_.flags)); }
bool StepRecord::flag(int64_t index) const { return bit(flag_bits(shape_), checked(index, shape_.flags)); }

void StepRecord::set_stop() { words_[kState] |= kStop; }
bool StepRecord::stop() const { return (words_[kState] & kStop) != 0; }
void StepRecord::set_history(uint64_t history) { words_[kHistory] = history; }
uint64_t StepRecord::history() const { return words_[kHistory]; }

std::vector<StepRecord> gather_records(HostExchange& exchange, const StepRecord& own) {
  HEBB_ASSERT(own.shape().ranks == exchange.communicator().size());
  const std::vector<uint64_t> all = exchange.gather(own.words());
  std::vector<StepRecord> records;
  for (size_t at = 0; at < all.size(); at += own.words().size()) {
    records.emplace_back(own.shape(), std::span<const uint64_t>(all).subspan(at, own.words().size()));
  }
  return records;
}

namespace {

void check_histories(std::span<const StepRecord> records) {
  std::string differ;
  for (size_t r = 1; r < records.size(); ++r) {
    if (records[r].history() != records[0].history()) {
      differ += fmt::format("{}{:d}", differ.empty() ? "" : ", ", r);
    }
  }
  if (!differ.empty()) {
    throw CommError("step", "the collectives of ranks " + differ + " differ from those of rank 0");
  }
}

/// Sum of sums(record, own lane, micro-batch) in order of first rows: by micro-batch, then by lane.
template <class F> double sum_by_rows(std::span<const StepRecord> records, F&& sums) {
  const RecordShape& shape = records[0].shape();
  double total = 0;
  for (int64_t m = 0; m < shape.micro_batches; ++m) {
    for (const StepRecord& record : records) {
      for (int64_t lane = 0; lane < shape.own_lanes(); ++lane) { total += sums(record, lane, m); }
    }
  }
  return total;
}

void decide_norms(StepDecision& decision, std::span<const StepRecord> records, const BucketLayout& layout,
                  const StepRules& rules) {
  std::vector<double> sums(rules.clip_norm.size());
  std::vector<int64_t> next(records.size());  // segment of each rank
  for (const FlatSegment& segment : layout.segments()) {
    const size_t owner = static_cast<size_t>(layout.owner(segment, static_cast<int>(records.size())));
    const int set = rules.clip_set[static_cast<size_t>(segment.parameter)];
    sums[static_cast<size_t>(set)] += records[owner].square(next[owner]++);
  }
  for (size_t set = 0; set < sums.size(); ++set) {
    const double norm = std::sqrt(sums[set]), limit = rules.clip_norm[set];
    decision.norm.push_back(norm);
    decision.clip.push_back(clip_factor(norm, limit));
    decision.applies = decision.applies && std::isfinite(norm);
  }
}

}  // namespace

StepDecision decide_step(std::span<const StepRecord> records, const BucketLayout& layout, const StepRules& rules) {
  const RecordShape& shape = records[0].shape();
  HEBB_ASSERT(static_cast<int>(records.size()) == shape.ranks && layout.parameters() == shape.parameters &&
              rules.clip_set.size() == static_cast<size_t>(shape.parameters));
  check_histories(records);
  StepDecision decision;
  const auto losses = [](const StepRecord& r, int64_t lane, int64_t m) { return r.loss(lane, m); };
  decision.loss = sum_by_rows(records, losses) / rules.valid_tokens;
  decision.applies = std::isfinite(decision.loss);
  decide_norms(decision, records, layout, rules);
  decision.reached.resize(static_cast<size_t>(shape.parameters));
  decision.counts.resize(static_cast<size_t>(shape.counts));
  decision.flags.resize(static_cast<size_t>(shape.flags));
  for (const StepRecord& record : records) {
    decision.stop = decision.stop || record.stop();
    for (int64_t i = 0; i < shape.parameters; ++i) {
      if (record.reached(i)) { decision.reached[static_cast<size_t>(i)] = true; }
    }
    for (int64_t i = 0; i < shape.counts; ++i) { decision.counts[static_cast<size_t>(i)] += record.count(i); }
    for (int64_t i = 0; i < shape.flags; ++i) {
      if (record.flag(i)) { decision.flags[static_cast<size_t>(i)] = true; }
    }
  }
  return decision;
}

}  // namespace hebb
