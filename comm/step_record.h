#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "comm/bucket_layout.h"
#include "comm/host_exchange.h"

namespace hebb {

/// Sizes of the record of a step. All ranks have the same, so that one all-gather of fixed size carries it.
struct RecordShape {
  int ranks = 1, lanes = 1;
  int64_t micro_batches = 1;  // of a lane
  int64_t squares = 0;        // segments of the flat order that one rank owns, at most
  int64_t parameters = 0;     // trained ones
  int64_t counts = 0;         // integers that layers add up
  int64_t flags = 0;          // bits that layers combine by or

  int64_t own_lanes() const { return lanes / ranks; }
  /// 8-byte words of one rank's record.
  int64_t words() const;
};
/// Most segments that one of `ranks` ranks owns.
int64_t most_segments(const BucketLayout& layout, int ranks);

/// What one rank knows after its part of a step, as words that travel as they are.
class StepRecord {
 public:
  explicit StepRecord(const RecordShape& shape);
  /// words: as many as the shape has.
  StepRecord(const RecordShape& shape, std::span<const uint64_t> words);

  const RecordShape& shape() const { return shape_; }
  std::span<const uint64_t> words() const { return words_; }

  // Own lane (from 0), micro-batch of the lane.
  void set_loss(int64_t lane, int64_t micro_batch, double sum);
  double loss(int64_t lane, int64_t micro_batch) const;
  // Own segments in flat order.
  void set_square(int64_t index, double sum);
  double square(int64_t index) const;
  void set_count(int64_t index, int64_t count);
  int64_t count(int64_t index) const;
  void set_reached(int64_t parameter);
  bool reached(int64_t parameter) const;
  void set_flag(int64_t index);
  bool flag(int64_t index) const;

  // Of the rank as a whole.
  void set_stop();
  bool stop() const;
  void set_history(uint64_t history);  // Communicator::history()
  uint64_t history() const;

 private:
  double real(int64_t word) const;
  void set_real(int64_t word, double value);
  int64_t loss_word(int64_t lane, int64_t micro_batch) const;
  int64_t square_word(int64_t index) const;
  size_t count_word(int64_t index) const;
  bool bit(int64_t first_word, int64_t index) const;
  void set_bit(int64_t first_word, int64_t index);

  RecordShape shape_;
  std::vector<uint64_t> words_;
};

/// The records of all ranks, in order of ranks: one all-gather.
std::vector<StepRecord> gather_records(HostExchange& exchange, const StepRecord& own);

/// What a decision needs besides records.
struct StepRules {
  double valid_tokens = 1;          // of the whole batch
  std::vector<int> clip_set{};      // of each trained parameter
  std::vector<double> clip_norm{};  // of each set; 0: off
};

struct StepDecision {
  double loss = 0;                 // per valid token
  std::vector<double> norm, clip;  // of each clip set: norm, factor
  bool applies = false;            // loss and norms are finite
  bool stop = false;               // wanted by any rank
  std::vector<bool> reached;       // by any rank
  std::vector<int64_t> counts;     // sums
  std::vector<bool> flags;         // or
};

/// What all ranks do with a step. It depends on the gathered records alone, so it is the same on all ranks. Every sum
/// has an order of its own (losses by first row, squares by flat order), so it is the same for every number of ranks.
/// Errors: CommError naming the ranks whose collectives differ from those of rank 0.
StepDecision decide_step(std::span<const StepRecord> records, const BucketLayout& layout, const StepRules& rules);

}  // namespace hebb
