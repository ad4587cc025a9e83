#pragma once
#include <cstdint>
#include <vector>

#include "core/arena.h"

namespace hebb {

/// No document has more tokens: positions are i32. Chunks that are longer never fill, tables for more are never full.
inline constexpr int64_t kLongestDocument = INT32_MAX;

/// One run of consecutive tokens of one document inside a row.
struct DocumentSpan {
  int64_t row, start, length;
  int64_t offset;  // document position of its first token: > 0 when the document began in an earlier segment
};

/// The document structure of a batch of rows [B, T], on the host and on the device.
/// doc_start[b, t] is the index in the row of the first token of t's document, so the document
/// position of t is t - doc_start. It is negative when the document (or, without a document mask,
/// the row's one stream) continues from an earlier segment whose state is carried.
class Rows {
 public:
  /// One stream per row that began `offset` tokens ago.
  static Rows streams(Stream& stream, Arena& arena, int64_t rows, int64_t length, int64_t offset = 0);
  /// One token a row, so many tokens after its stream began; doc_start() is `starts` [rows, 1] i32, which the caller
  /// has filled.
  static Rows tokens(const Tensor& starts, const std::vector<int64_t>& offsets);
  /// Documents by id [B, T] (a document starts wherever the id differs from the one before);
  /// offset: how long ago the first document of each row began.
  static Rows documents(Stream& stream, Arena& arena, int64_t rows, int64_t length, const std::vector<int64_t>& ids,
                        int64_t offset = 0);
  /// The same with an offset [B] for every row.
  static Rows documents(Stream& stream, Arena& arena, int64_t rows, int64_t length, const std::vector<int64_t>& ids,
                        const std::vector<int64_t>& offsets);

  int64_t batch() const { return batch_; }
  int64_t length() const { return length_; }
  int64_t tokens() const { return batch_ * length_; }
  const Tensor& doc_start() const { return starts_; }                   // [B, T] i32, on the device
  const std::vector<int32_t>& host_doc_start() const { return host_; }  // [B, T]
  const std::vector<DocumentSpan>& spans() const { return spans_; }     // row-major order
  /// Whether row b's first token continues a carried state (its document began before this batch).
  bool continues(int64_t row) const { return host_[static_cast<size_t>(row * length_)] < 0; }
  /// Whether documents are told apart (document mask).
  bool masked() const { return masked_; }
  /// Whether each row is one token, and all of them have the same position in their documents.
  bool in_step() const;
  /// How many tokens of the stream came before this batch (row 0).
  int64_t offset() const { return -static_cast<int64_t>(host_[0]); }

 private:
  Rows(Stream& stream, Arena& arena, int64_t rows, int64_t length, std::vector<int32_t> starts);
  Rows(int64_t rows, int64_t length, std::vector<int32_t> starts);

  int64_t batch_, length_;
  bool masked_ = false;
  std::vector<int32_t> host_;
  Buffer memory_;
  Tensor starts_;
  std::vector<DocumentSpan> spans_;
};

/// Copies `count` tokens of every row, from token `from_begin` of one to `to_begin` of the other [B, tokens, C].
void copy_tokens(Stream& stream, const Tensor& to, int64_t to_begin, const Tensor& from, int64_t from_begin,
                 int64_t count);
/// last [B, C] = the last token of every row of x [B, T, C].
void keep_last(Stream& stream, const Tensor& last, const Tensor& x);
/// Row `row` of each tensor [B, ...] becomes row `from_row` of the one at its place in `from`, which has equal rows.
void copy_rows(Stream& stream, const std::vector<Tensor>& to, int64_t row, const std::vector<Tensor>& from,
               int64_t from_row);

}  // namespace hebb
