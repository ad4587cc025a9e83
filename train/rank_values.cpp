#include "train/rank_values.h"

#include <algorithm>
#include <numeric>

namespace hebb {
namespace {

/// What passes read of a trained parameter.
const Tensor& read_by_passes(const Param& p) { return p.copy.defined() ? p.copy : p.value; }

}  // namespace

RankValues::RankValues(const Ranks& ranks, bool shares, Optimizer& optimizer, const GradientSum& sum, Arena& state)
    : ranks_(ranks), shares_(shares), optimizer_(optimizer), sum_(sum), layout_(sum.layout()) {
  for (const Optimizer::Rule& rule : optimizer.rules()) {
    index_of_.emplace(rule.param, static_cast<int>(index_of_.size()));
  }
  find_slices(state);
  find_parts();
}

void RankValues::initialize(Stream& stream) {
  if (shares_) {
    fill_zero(stream, m_);
    fill_zero(stream, v_);
  }
}

/// Elements of this rank in each parameter: those that it updates.
void RankValues::find_slices(Arena& state) {
  const auto padded = [](int64_t n) { return (n + 15) / 16 * 16; };  // so that kernels can take packs
  int64_t moments = 0, values = 0;
  std::vector<int64_t> element_bytes;
  for (int p = 0; p < layout_.parameters(); ++p) {
    const Param& param = this->param(static_cast<size_t>(p));
    const ElementRange whole = layout_.parameter(p);
    element_bytes.push_back(dtype_bytes(read_by_passes(param).dtype));
    if (!shares_) {
      slices_.push_back({static_cast<size_t>(p), whole, 0, -1});
      continue;
    }
    for (int64_t b = 0; b < layout_.buckets(); ++b) {
      const ElementRange part = layout_.part(b, ranks_.rank(), ranks_.size());
      const ElementRange own{std::max(part.begin, whole.begin), std::min(part.end, whole.end)};
      if (own.begin >= own.end) { continue; }
      slices_.push_back({static_cast<size_t>(p), own, moments, is_shared(param, Kept::value) ? values : -1});
      moments += padded(own.size());
      values += is_shared(param, Kept::value) ? padded(own.size()) : 0;
    }
  }
  if (!shares_) { return; }
  value_layout_.emplace(layout_, ranks_.size(), element_bytes);
  const DType dtype = sum_.spare().dtype;
  if (values > 0) { values_ = Buffer(state, {values}, dtype, "values of this rank"); }
  m_ = Buffer(state, {std::max<int64_t>(moments, 1)}, dtype, "first moments of this rank");
  v_ = Buffer(state, {std::max<int64_t>(moments, 1)}, dtype, "second moments of this rank");
}

bool RankValues::is_shared(const Param& p, Kept kept) const {
  return shares_ && (kept != Kept::value || p.copy.defined());
}

Tensor RankValues::within(const Slice& slice, const Tensor& tensor) const {
  const int64_t begin = slice.flat.begin - layout_.parameter(static_cast<int>(slice.rule)).begin;
  return tensor.slice(begin, {slice.flat.size()});
}

Tensor RankValues::of_rank(const Slice& slice, Kept kept) const {
  const Param& p = param(slice.rule);
  if (!is_shared(p, kept)) { return within(slice, whole(p, kept)); }
  const Buffer& own = kept == Kept::value ? values_ : kept == Kept::first_moment ? m_ : v_;
  return own.tensor().slice(kept == Kept::value ? slice.value_at : slice.moments_at, {slice.flat.size()});
}

void RankValues::find_parts() {
  for (const Slice& slice : slices_) {
    const Param& p = param(slice.rule);
    parts_.push_back({.rule = slice.rule,
                      .p = of_rank(slice, Kept::value),
                      .m = of_rank(slice, Kept::first_moment),
                      .v = of_rank(slice, Kept::second_moment),
                      .grad = sum_.first().slice(slice.flat.begin, {slice.flat.size()}),
                      .copy = p.copy.defined() ? within(slice, p.copy) : Tensor{}});
  }
}

void RankValues::reset_moments(Stream& stream) {
  for (size_t i = 0; shares_ && i < slices_.size(); ++i) {
    if (param(slices_[i].rule).updates == 0) {
      fill_zero(stream, parts_[i].m);
      fill_zero(stream, parts_[i].v);
    }
  }
}

/// The gradients are of no use any more: values travel in their place.
void RankValues::pack(Stream& stream) const {
  for (int64_t b = 0; b < layout_.buckets(); ++b) {
    for (const ValueLayout::Piece& piece : value_layout_->pieces(b, ranks_.rank())) {
      const Travelling own = travelling(b, piece);
      copy(stream, own.place, own.read);
    }
  }
}

void RankValues::gather(Stream& stream, int64_t bucket) const {
  const ElementRange range = layout_.bucket(bucket);
  const Tensor flat = sum_.spare().slice(range.begin, {range.size()});
  const std::span<const int64_t> bytes = value_layout_->part_bytes(bucket);
  const auto own = bytes.begin() + ranks_.rank();
  const Tensor all{flat.data, DType::u8, {std::accumulate(bytes.begin(), bytes.end(), int64_t{0})}};
  ranks_.communicator().all_gather(stream, all, bytes,
                                   all.slice(std::accumulate(bytes.begin(), own, int64_t{0}), {*own}));
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    for (const ValueLayout::Piece& piece : value_layout_->pieces(bucket, rank)) {
      const Travelling other = travelling(bucket, piece);
      if (rank != ranks_.rank()) { copy(stream, other.read, other.place); }
    }
  }
}

RankValues::Travelling RankValues::travelling(int64_t bucket, const ValueLayout::Piece& piece) const {
  const Tensor& whole = read_by_passes(param(static_cast<size_t>(piece.parameter)));
  const Tensor read = whole.slice(piece.flat.begin - layout_.parameter(piece.parameter).begin, {piece.flat.size()});
  const Tensor place = sum_.spare().slice(layout_.bucket(bucket).begin, {1});
  return {read, {static_cast<char*>(place.data) + piece.at, read.dtype, read.shape}};
}

bool RankValues::collect(Stream& stream, Kept kept) const {
  const auto& rules = optimizer_.rules();
  if (std::none_of(rules.begin(), rules.end(), [&](const auto& r) { return is_shared(*r.param, kept); })) {
    return false;
  }
  for (const Slice& slice : slices_) {
    if (!is_shared(*rules[slice.rule].param, kept)) { continue; }
    copy(stream, sum_.spare().slice(slice.flat.begin, {slice.flat.size()}), of_rank(slice, kept));
  }
  for (int64_t b = 0; b < layout_.buckets(); ++b) { gather_bucket(ranks_, layout_, stream, sum_.spare(), b); }
  return true;
}

void RankValues::keep(Stream& stream, Kept kept) const {
  for (const Slice& slice : slices_) {
    if (!is_shared(param(slice.rule), kept)) { continue; }
    copy(stream, of_rank(slice, kept), sum_.spare().slice(slice.flat.begin, {slice.flat.size()}));
  }
}

Tensor RankValues::whole(const Param& p, Kept kept) const {
  if (!is_shared(p, kept)) { return kept == Kept::value ? p.value : kept == Kept::first_moment ? p.m : p.v; }
  return sum_.spare().slice(layout_.parameter(index_of_.at(&p)).begin, p.spec.shape);
}

void RankValues::lend(bool is_lent) {
  for (const Optimizer::Rule& rule : optimizer_.rules()) {
    Param& p = *rule.param;
    if (is_shared(p, Kept::value)) { p.value.data = is_lent ? whole(p, Kept::value).data : nullptr; }
  }
}

}  // namespace hebb
