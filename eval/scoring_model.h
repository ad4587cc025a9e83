#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/error.h"
#include "layers/join_rows.h"
#include "train/choose_device.h"
#include "train/model_source.h"
#include "train/read_settings.h"

namespace hebb {

/// A model with weights, ready to score and to generate; scores one row at a time, so that none depends
/// on a batch. Errors of all that reads logits: NumericError where one is NaN or infinite.
class ScoringModel {
 public:
  /// Loads `weights` (train/model_source.h) into the model of `source`.
  ScoringModel(ModelSource source, const fs::path& weights, const Compute& compute);

  const ModelSource& source() const { return source_; }
  Model& model() { return model_; }
  Stream& stream() { return stream_; }
  Arena& arena() { return arena_; }
  const Compute& compute() const { return compute_; }

  /// From now on, reads so. Errors: ConfigError for what the model's layers cannot do.
  void set_reading(const ReadSettings& settings);
  const ReadSettings& reading() const { return settings_; }

  /// How fast weights move while scoring or reading.
  struct Reading {
    FastUpdate update = FastUpdate::streaming;
    bool freeze = false;
  };

  /// Called behind each segment: long inputs come forward.
  void after_segments(std::function<void()> call) { after_segment_ = std::move(call); }

  std::unique_ptr<ModelState> new_state();
  /// The same, but fast weights keep their pending pairs from `before` (null: there are none), which loses them.
  std::unique_ptr<ModelState> new_state(ModelState* before);
  bool has_fast_weights() const;
  /// Cross-entropy in nats of each target after the input beside it, continuing `state`. Targets of
  /// -100 give 0. Ids must be inside the vocabulary.
  std::vector<double> score(std::span<const int32_t> inputs, std::span<const int32_t> targets, ModelState& state,
                            Reading reading);
  /// What the model says where it is asked.
  struct Answer {
    int32_t token = -1;         // of the largest logit (ties: the lowest id); -1 where nothing is asked
    double log_likelihood = 0;  // of the target [nats]
  };
  /// The model's answer for each target after the input beside it, continuing `state`; nothing is asked where
  /// the target is -100.
  std::vector<Answer> answers(std::span<const int32_t> inputs, std::span<const int32_t> targets, ModelState& state,
                              Reading reading);
  /// Reads tokens and returns the logits [V] after the last one. Long inputs go in segments; single tokens as
  /// read_token() does it.
  std::vector<double> read(std::span<const int32_t> tokens, ModelState& state, Reading reading);
  /// Whether texts can go on together (join): no layer has fast weights.
  bool can_join();
  /// A state of these rows, for read_next() (join_rows).
  std::unique_ptr<ModelState> join(std::span<const StateRow> rows, bool uses_up);
  /// Reads the next token of each row of `state`. Returns the logits [rows, V] behind them, which the caller checks.
  std::vector<double> read_next(std::span<const int32_t> tokens, ModelState& state, Reading reading);
  /// Reads tokens on from `state` and calls visit(i, logits [V] behind token i) for each i from `first` on, in order.
  using Visit = std::function<void(size_t i, std::span<const double> logits)>;
  void read_each(std::span<const int32_t> tokens, size_t first, ModelState& state, Reading reading, const Visit& visit);
  /// A text to be read from an empty state, and the first of its tokens whose logits are asked for.
  struct Text {
    std::span<const int32_t> tokens;
    size_t first = 0;
  };
  /// Reads texts as the documents of one row, in one pass, of a model without fast weights. Calls visit(text, i,
  /// logits) in order; logits of one text that are not finite leave the others alone, so the caller checks them.
  void read_texts(std::span<const Text> texts,
                  const std::function<void(size_t text, size_t i, std::span<const double> logits)>& visit);
  /// How whole rows are read in one pass, as training does it: no state is carried, and fast weights are one memory of
  /// all rows that keeps what it learns (FastUpdate::per_sequence).
  struct RowReading {
    int64_t rows = 1;
    int64_t fast_chunk = 0;  // > 0: in place of the layers' chunk_size
    bool freeze = false;     // fast weights stay
    Inspector* inspector = nullptr;
    Statistics* statistics = nullptr;
  };
  /// Reads tokens [rows, length] in one pass.
  void read_rows(std::span<const int32_t> tokens, const RowReading& reading);
  /// Reads tokens on from `state`, without asking for logits.
  void advance(std::span<const int32_t> tokens, ModelState& state, Reading reading);
  /// What the layers of `state` hold (Layer::inspect_state).
  Inspector inspect(const ModelState& state);

  /// End of a segment of a stream (docs/layers/fwpkm.md, Streams).
  void flush(ModelState& state, Reading reading);

  /// Fast weights and counters as they are now, to be put back with restore().
  std::vector<std::vector<char>> save_fast_weights();
  void restore_fast_weights(const std::vector<std::vector<char>>& saved);

 private:
  /// Reads tokens in segments; after each, calls done(first token of it, tape, pass, hidden states [n, d]).
  using Segment = std::function<void(size_t begin, size_t n, Pass& pass, Var hidden)>;
  void each_segment(std::span<const int32_t> tokens, ModelState& state, Reading reading, const Segment& done);
  /// Logits of rows [begin, begin + n) of the hidden states, in fp64 and not checked: [n, V].
  std::vector<double> logits(Pass& pass, Var hidden, size_t begin, size_t n);
  /// Calls visit(i, logits [V]) for each of these rows, some hundreds at a time.
  void each_logits(Pass& pass, Var hidden, size_t begin, size_t end, const Visit& visit);

  ModelSource source_;
  Compute compute_;
  Stream stream_;
  Arena arena_, token_arena_;  // the second: of passes of one token
  Model model_;
  ReadSettings settings_;
  std::function<void()> after_segment_;
};

/// Whether all are numbers, and the error where they are not.
bool is_finite(std::span<const double> logits);
NumericError not_finite();

/// What logits [V] say, and how likely they make `target`.
ScoringModel::Answer answer_of(std::span<const double> logits, int32_t target);

}  // namespace hebb
