#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/rows/source.h"

namespace hebb {

enum class Packing { stream, block, document };

/// How the documents of a source become rows (docs/data.md, Rows).
struct PackingOptions {
  Packing packing = Packing::stream;
  bool shuffle_documents = false, shuffle_rows = true;
  int64_t min_document_tokens = 0;
  bool first_row_only = false;               // document packing: rows at 0, T, 2T, ... or at 0 only
  bool pad_tail = false;                     // document packing: pad or drop a last piece below T + 1 tokens
  bool mask_cross_document_targets = false;  // targets in another document than their input become -100
};

/// Where the tokens of a row come from: consecutive pieces of documents, T + 1 tokens or (padded) fewer.
struct RowPlan {
  struct Piece {
    int64_t begin, count;  // tokens of the source
    int64_t document;      // position in the epoch, counted from the row's first document
  };
  std::vector<Piece> pieces;
  int64_t tokens = 0;  // sum of the counts
};

/// The rows of a source in the order of the run: an O(1) or O(documents) structure per epoch.
/// Rows are a function of (files, options, T, seed, label index, k) alone. Not thread-safe: it keeps
/// the tables of the epoch that was asked for last.
class RowOrder {
 public:
  /// `source` must outlive it; `index`: the source's number in the configuration, part of the labels.
  RowOrder(const TokenSource& source, const PackingOptions& options, int64_t sequence_length, uint64_t seed,
           int64_t index);
  ~RowOrder();
  RowOrder(RowOrder&&) noexcept;

  int64_t rows_per_epoch() const { return rows_; }
  /// Documents that min_document_tokens leaves, and their tokens.
  int64_t kept_documents() const;
  int64_t kept_tokens() const { return kept_tokens_; }
  /// The k-th row that the source hands out, k = 0, 1, ...: epoch k / R, row k % R of its order.
  RowPlan plan(int64_t k);
  /// Targets of the row that are not -100; needs the plan only.
  int64_t valid_targets(const RowPlan& plan) const;
  /// Writes inputs, targets, doc_ids, each [T]. A token outside [0, vocab_size) is a DataError.
  void fill(const RowPlan& plan, int64_t vocab_size, int32_t* inputs, int32_t* targets, int32_t* doc_ids) const;

 private:
  struct Epoch;
  int64_t document_at(const Epoch& epoch, int64_t position) const;
  int64_t stream_offset(const Epoch& epoch, int64_t position) const;
  int64_t document_row_count(int64_t tokens) const;
  Epoch& epoch(int64_t number);
  RowPlan stream_plan(const Epoch& epoch, int64_t begin, int64_t count) const;
  RowPlan document_plan(const Epoch& epoch, int64_t row) const;

  const TokenSource& source_;
  PackingOptions options_;
  int64_t length_;
  uint64_t seed_;
  std::string index_;
  std::vector<int64_t> kept_;  // documents left, when some are not
  bool keeps_all_ = true;
  int64_t kept_tokens_ = 0, rows_ = 0;
  std::unique_ptr<Epoch> epoch_;
};

}  // namespace hebb
