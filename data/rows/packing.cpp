#include "data/rows/packing.h"

#include <algorithm>

#include "core/error.h"
#include "core/random.h"

namespace hebb {
namespace {

constexpr int32_t kIgnored = -100;

// Largest i in [0, n) with at(i) <= value, for an ascending `at` with at(0) <= value.
template <class At> int64_t last_not_above(int64_t n, int64_t value, At at) {
  int64_t begin = 0;  // std::views::iota needs a later clang than 14
  while (begin < n) {
    const int64_t middle = begin + (n - begin) / 2;
    at(middle) <= value ? begin = middle + 1 : n = middle;
  }
  return begin - 1;
}

}  // namespace

/// Order and cumulative sizes of the documents in one epoch.
struct RowOrder::Epoch {
  int64_t number;
  Permutation documents, rows;
  std::vector<int64_t> offsets;      // [D + 1] stream offset of each position; empty: as in the source
  std::vector<int64_t> row_offsets;  // [D + 1] document packing: first row of each position
};

RowOrder::RowOrder(const TokenSource& source, const PackingOptions& options, int64_t sequence_length, uint64_t seed,
                   int64_t index)
    : source_(source), options_(options), length_(sequence_length), seed_(seed), index_(std::to_string(index)) {
  HEBB_ASSERT(length_ >= 1);
  int64_t document_rows = 0;
  const int64_t documents = source_.documents();
  const bool must_scan = options_.min_document_tokens > 0 || options_.packing == Packing::document;
  for (int64_t d = 0, start = 0; must_scan && d < documents; ++d) {
    const int64_t end = source_.document_start(d + 1);
    if (end - start >= options_.min_document_tokens) {
      kept_.push_back(d);
      kept_tokens_ += end - start;
      document_rows += document_row_count(end - start);
    }
    start = end;
  }
  keeps_all_ = !must_scan || static_cast<int64_t>(kept_.size()) == documents;
  if (keeps_all_) {
    kept_ = {};
    kept_tokens_ = source_.tokens();
  }
  switch (options_.packing) {
    case Packing::stream: rows_ = std::max<int64_t>(0, kept_tokens_ - 1) / length_; break;
    case Packing::block: rows_ = kept_tokens_ / (length_ + 1); break;
    case Packing::document: rows_ = document_rows; break;
  }
}

RowOrder::~RowOrder() = default;
RowOrder::RowOrder(RowOrder&&) noexcept = default;

int64_t RowOrder::kept_documents() const {
  return keeps_all_ ? source_.documents() : static_cast<int64_t>(kept_.size());
}

int64_t RowOrder::document_row_count(int64_t tokens) const {
  const int64_t full = std::max<int64_t>(0, tokens - 1) / length_;
  const int64_t rest = tokens - full * length_;
  const int64_t all = full + (options_.pad_tail && rest >= 2 ? 1 : 0);
  return options_.first_row_only ? std::min<int64_t>(all, 1) : all;
}

int64_t RowOrder::document_at(const Epoch& epoch, int64_t position) const {
  const int64_t kept =
      options_.shuffle_documents ? static_cast<int64_t>(epoch.documents(static_cast<uint64_t>(position))) : position;
  return keeps_all_ ? kept : kept_[static_cast<size_t>(kept)];
}

int64_t RowOrder::stream_offset(const Epoch& epoch, int64_t position) const {
  return epoch.offsets.empty() ? source_.document_start(position) : epoch.offsets[static_cast<size_t>(position)];
}

RowOrder::Epoch& RowOrder::epoch(int64_t number) {
  if (epoch_ && epoch_->number == number) { return *epoch_; }
  const auto e = static_cast<uint64_t>(number);
  const int64_t documents = kept_documents();
  epoch_ = std::make_unique<Epoch>(Epoch{number,
                                         Permutation(static_cast<uint64_t>(documents), seed_, "documents/" + index_, e),
                                         Permutation(static_cast<uint64_t>(rows_), seed_, "rows/" + index_, e),
                                         {},
                                         {}});
  const bool by_document = options_.packing == Packing::document;
  const bool in_file_order = keeps_all_ && !options_.shuffle_documents;
  if (in_file_order && !by_document) { return *epoch_; }
  std::vector<int64_t>& sums = by_document ? epoch_->row_offsets : epoch_->offsets;
  sums.reserve(static_cast<size_t>(documents) + 1);
  sums.push_back(0);
  for (int64_t p = 0; p < documents; ++p) {
    const int64_t d = document_at(*epoch_, p);
    const int64_t tokens = source_.document_start(d + 1) - source_.document_start(d);
    sums.push_back(sums.back() + (by_document ? document_row_count(tokens) : tokens));
  }
  return *epoch_;
}

RowPlan RowOrder::plan(int64_t k) {
  HEBB_ASSERT(k >= 0 && rows_ > 0);
  const Epoch& e = epoch(k / rows_);
  int64_t row = k % rows_;
  if (options_.shuffle_rows) { row = static_cast<int64_t>(e.rows(static_cast<uint64_t>(row))); }
  switch (options_.packing) {
    case Packing::stream: return stream_plan(e, row * length_, length_ + 1);
    case Packing::block: return stream_plan(e, row * (length_ + 1), length_ + 1);
    case Packing::document: return document_plan(e, row);
  }
  return {};
}

RowPlan RowOrder::stream_plan(const Epoch& epoch, int64_t begin, int64_t count) const {
  const auto offset = [&](int64_t position) { return stream_offset(epoch, position); };
  const int64_t first = last_not_above(kept_documents(), begin, offset);
  RowPlan plan;
  plan.tokens = count;
  for (int64_t position = first; count > 0; ++position) {
    const int64_t start = offset(position);
    const int64_t piece = std::min(count, offset(position + 1) - begin);
    if (piece > 0) {  // a document may be empty
      const int64_t in_source = source_.document_start(document_at(epoch, position));
      plan.pieces.push_back({in_source + begin - start, piece, position - first});
      begin += piece;
      count -= piece;
    }
  }
  return plan;
}

RowPlan RowOrder::document_plan(const Epoch& epoch, int64_t row) const {
  const auto first_row = [&](int64_t position) { return epoch.row_offsets[static_cast<size_t>(position)]; };
  const int64_t position = last_not_above(kept_documents(), row, first_row);
  const int64_t d = document_at(epoch, position);
  const int64_t begin = source_.document_start(d) + (row - first_row(position)) * length_;
  const int64_t count = std::min(length_ + 1, source_.document_start(d + 1) - begin);
  return {{{begin, count, 0}}, count};
}

int64_t RowOrder::valid_targets(const RowPlan& plan) const {
  const auto crossings = static_cast<int64_t>(plan.pieces.size()) - 1;
  return plan.tokens - 1 - (options_.mask_cross_document_targets ? crossings : 0);
}

void RowOrder::fill(const RowPlan& plan, int64_t vocab_size, int32_t* inputs, int32_t* targets,
                    int32_t* doc_ids) const {
  std::vector<int32_t> tokens(static_cast<size_t>(plan.tokens));
  int64_t filled = 0;
  for (const RowPlan::Piece& piece : plan.pieces) {
    source_.read(piece.begin, piece.count, vocab_size, tokens.data() + filled);
    const int64_t end = filled + piece.count;
    std::fill(doc_ids + filled, doc_ids + std::min(end, length_), static_cast<int32_t>(piece.document));
    filled = end;
  }
  const int64_t given = std::min(filled, length_);
  std::copy(tokens.begin(), tokens.begin() + given, inputs);
  std::copy(tokens.begin() + 1, tokens.end(), targets);
  // A short row goes on as a document of its own: input 0, nothing to predict.
  std::fill(inputs + given, inputs + length_, 0);
  std::fill(targets + filled - 1, targets + length_, kIgnored);
  std::fill(doc_ids + given, doc_ids + length_, static_cast<int32_t>(plan.pieces.back().document) + 1);
  if (options_.mask_cross_document_targets) {
    int64_t end = 0;
    for (size_t i = 0; i + 1 < plan.pieces.size(); ++i) {
      end += plan.pieces[i].count;
      targets[end - 1] = kIgnored;
    }
  }
}

}  // namespace hebb
