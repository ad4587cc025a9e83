#pragma once
#include <functional>

#include "layers/layer.h"

namespace hebb {

/// The chunk size of a pass through the layer `name`; ConfigError where it is not more than `lookahead`.
int64_t fast_chunk(const Pass& pass, const std::string& name, int64_t chunk_size, int64_t lookahead);

/// What a FastQueue holds. A pair is a token and the one `lookahead` later.
struct FastQueueLayout {
  int64_t rows, q_width, v_width, lookahead;
  DType dtype;
  bool weighted = false;  // tokens carry a write weight w
};

/// Tokens (q, v, w) of a lockstep batch whose pairs have not been used (docs/layers/fwpkm.md, Streams). Token t of
/// row b is row b capacity + t of q [rows capacity, q width], v and w.
class FastQueue final : public LayerState {
 public:
  /// What the layer does with the queue's first `pairs` tokens.
  using Update = std::function<void(Stream& stream, const FastQueue& queue, int64_t pairs)>;

  FastQueue(Arena& arena, const FastQueueLayout& layout, Update update)
      : arena_(arena), of_(layout), update_(std::move(update)), linked_(static_cast<size_t>(layout.rows)) {}

  bool stays_between_texts() const override { return true; }
  /// One update where at least chunk - 1 pairs are complete; then the queue is empty.
  void flush(Stream& stream) override;
  /// A token that completes a chunk, or needs more memory, is the host's.
  std::optional<int64_t> launches(const NextToken& next) const override;
  void count_token(const NextToken& next) override;

  /// One call in a stream mode: reads, queues and updates in the order of docs/layers/fwpkm.md, Streams, whatever
  /// the split of a stream into calls. q, v, w [B T, .] are the call's tokens; read(first, count) reads tokens
  /// [first, first + count) of its rows.
  void advance(Pass& pass, int64_t chunk, const Tensor& q, const Tensor& v, const Tensor& w,
               const std::function<void(int64_t first, int64_t count)>& read);

  /// Row of the token that each of the first `count` tokens of a row predicts; -1 where a document
  /// ends between the two, and for the other tokens. [rows capacity].
  std::vector<int32_t> targets(int64_t count) const;

  int64_t rows() const { return of_.rows; }
  int64_t capacity() const { return capacity_; }
  Tensor q() const { return q_; }
  Tensor v() const { return v_; }
  Tensor w() const { return of_.weighted ? w_.tensor() : Tensor{}; }
  Arena& arena() const { return arena_; }

 private:
  /// Appends tokens [first, first + count) of every row of q, v, w [B T, width].
  void append(Stream& stream, const Rows& rows, int64_t first, int64_t count, const Tensor& q, const Tensor& v,
              const Tensor& w);
  /// Forgets the oldest `count` tokens.
  void drop(Stream& stream, int64_t count);
  void reserve(Stream& stream, int64_t tokens);
  void move_rows(Stream& stream, Buffer& buffer, int64_t width, int64_t capacity, int64_t from, int64_t count);

  Arena& arena_;
  FastQueueLayout of_;
  Update update_;
  int64_t chunk_ = 0;  // that of the last pass in a stream; 0: there was none
  int64_t length_ = 0, capacity_ = 0;
  int64_t places_ = 0;  // counts changes of the memory that holds the next token, and of its place in it
  Buffer q_, v_, w_;
  std::vector<std::vector<int64_t>> linked_;  // per row and token: how many tokens before it belong to its document
};

}  // namespace hebb
