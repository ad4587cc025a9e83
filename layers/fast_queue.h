#pragma once
#include <functional>

#include "layers/layer.h"

namespace hebb {

/// Tokens (q, v, w) of a lockstep batch whose pairs have not been used (docs/layers/fwpkm.md, Streams). Token t of
/// row b is row b capacity + t of q [rows capacity, q width], v and w.
class FastQueue final : public LayerState {
 public:
  /// weighted: whether tokens carry a write weight w.
  FastQueue(Arena& arena, int64_t rows, int64_t q_width, int64_t v_width, DType dtype, bool weighted)
      : arena_(arena),
        rows_(rows),
        q_width_(q_width),
        v_width_(v_width),
        dtype_(dtype),
        weighted_(weighted),
        linked_(static_cast<size_t>(rows)) {}

  bool stays_between_texts() const override { return true; }
  /// A token that completes a chunk, or needs more memory, is the host's.
  std::optional<int64_t> launches(const NextToken& next) const override;
  void count_token(const NextToken& next) override;

  /// Appends tokens [first, first + count) of every row of q, v, w [B T, width].
  void append(Stream& stream, const Rows& rows, int64_t first, int64_t count, int64_t lookahead, const Tensor& q,
              const Tensor& v, const Tensor& w);
  /// Forgets the oldest `count` tokens.
  void drop(Stream& stream, int64_t count);
  /// Row of the token that each of the first `count` tokens of a row predicts; -1 where a document
  /// ends between the two, and for the other tokens. [rows capacity].
  std::vector<int32_t> targets(int64_t count, int64_t lookahead) const;

  int64_t length() const { return length_; }
  int64_t rows() const { return rows_; }
  int64_t capacity() const { return capacity_; }
  Tensor q() const { return q_; }
  Tensor v() const { return v_; }
  Tensor w() const { return weighted_ ? w_.tensor() : Tensor{}; }
  Arena& arena() const { return arena_; }
  int64_t chunk = 0, lookahead = 0;  // those of the last pass in a stream, for flush() and launches()

 private:
  void reserve(Stream& stream, int64_t tokens);
  void move_rows(Stream& stream, Buffer& buffer, int64_t width, int64_t capacity, int64_t from, int64_t count);

  Arena& arena_;
  int64_t rows_, q_width_, v_width_;
  DType dtype_;
  bool weighted_;
  int64_t length_ = 0, capacity_ = 0;
  int64_t places_ = 0;  // counts changes of the memory that holds the next token, and of its place in it
  Buffer q_, v_, w_;
  std::vector<std::vector<int64_t>> linked_;  // per row and token: how many tokens before it belong to its document
};

/// What a fast-weight layer does with its queue.
struct FastQueueSteps {
  std::function<void(int64_t first, int64_t count)> read;  // tokens [first, first + count) of the call's rows
  std::function<void(int64_t pairs)> update;               // with the queue's first `pairs` tokens
};

/// One call in a stream mode: reads, queues and updates in the order of docs/layers/fwpkm.md, Streams, whatever
/// the split of a stream into calls. q, v, w [B T, .] are the call's tokens.
void run_fast_queue(Pass& pass, FastQueue& queue, int64_t chunk, int64_t lookahead, const Tensor& q, const Tensor& v,
                    const Tensor& w, const FastQueueSteps& steps);

/// The end of a segment of a stream: one update where at least chunk - 1 pairs are complete, then
/// the queue is empty.
void flush_fast_queue(Stream& stream, FastQueue& queue, int64_t lookahead,
                      const std::function<void(int64_t pairs)>& update);

}  // namespace hebb
