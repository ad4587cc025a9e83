#include "train/gradient_exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/ordered_sum/ordered_sum.h"

namespace hebb {
namespace {

std::vector<int64_t> sizes_of(const Optimizer& optimizer) {
  std::vector<int64_t> sizes;
  for (const Optimizer::Rule& rule : optimizer.rules()) { sizes.push_back(rule.param->spec.shape.numel()); }
  return sizes;
}

std::vector<Buffer> flat_buffers(Arena& arena, int count, int64_t size, DType dtype) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < count; ++i) { buffers.emplace_back(arena, Shape{size}, dtype, "gradients"); }
  return buffers;
}

std::vector<Tensor> tensors_of(const std::vector<Buffer>& buffers) { return {buffers.begin(), buffers.end()}; }

/// Those that ranks add up, or combine by or.
int64_t elements(const ParamStore& params, Combine kind) {
  int64_t count = 0;
  for (const ParamStore::Combined& c : params.combined()) { count += c.combine == kind ? c.tensor.numel() : 0; }
  return count;
}

std::vector<int64_t> to_host(Stream& stream, const Tensor& tensor) {
  std::vector<int64_t> values(static_cast<size_t>(tensor.numel()));
  if (tensor.dtype == DType::i64) {
    copy_to_host(stream, values.data(), tensor);
  } else {
    std::vector<int32_t> narrow(values.size());
    copy_to_host(stream, narrow.data(), tensor);
    std::copy(narrow.begin(), narrow.end(), values.begin());
  }
  return values;
}

void to_device(Stream& stream, const Tensor& tensor, const std::vector<int64_t>& values) {
  if (tensor.dtype == DType::i64) {
    copy_to_device(stream, tensor, values.data());
  } else {
    const std::vector<int32_t> narrow(values.begin(), values.end());
    copy_to_device(stream, tensor, narrow.data());
  }
}

/// What passes read of a trained parameter.
const Tensor& read_by_passes(const Param& p) { return p.copy.defined() ? p.copy : p.value; }

/// A hash of the tensor's bytes, 8 at a time. One word that differs always changes it: each step is a bijection.
uint64_t hash_of(Stream& stream, const Tensor& tensor) {
  constexpr int64_t kAtOnce = int64_t{1} << 26;  // bounds what a GPU's values take of the host
  std::vector<char> copied;
  uint64_t hash = 0;
  for (int64_t at = 0; at < tensor.bytes(); at += kAtOnce) {
    const int64_t size = std::min(kAtOnce, tensor.bytes() - at);
    const char* bytes = static_cast<const char*>(tensor.data) + at;
    if (stream.on_gpu()) {
      copied.resize(static_cast<size_t>(size));
      copy_to_host(stream, copied.data(), {const_cast<char*>(bytes), DType::u8, {size}});
      bytes = copied.data();
    }
    for (int64_t i = 0; i < size; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + i, static_cast<size_t>(std::min<int64_t>(8, size - i)));
      hash = (std::rotl(hash, 5) ^ word) * 0x9e3779b97f4a7c15u;
    }
  }
  return hash;
}

}  // namespace

GradientExchange::GradientExchange(const RunConfig& config, const Ranks& ranks, ParamStore& params,
                                   Optimizer& optimizer, Stream& stream, Arena& state)
    : ranks_(ranks),
      host_(ranks.communicator(), stream.device),
      params_(params),
      optimizer_(optimizer),
      own_lanes_(static_cast<int>(*config.train.lanes) / ranks.size()),
      shares_(shares(config.train, ranks.size())),
      layout_(sizes_of(optimizer), static_cast<int>(*config.train.lanes),
              config.train.comm.value_or(CommConfig{}).bucket_mib),
      buffers_(flat_buffers(state, LaneSums::buffers(own_lanes_), layout_.size(), sum_dtype(params.dtype()))),
      sums_(own_lanes_, tensors_of(buffers_)),
      wire_(config.train.comm.value_or(CommConfig{}).reduce == "bf16" ? DType::bf16 : buffers_[0].tensor().dtype) {
  shape_ = {.ranks = ranks.size(),
            .lanes = static_cast<int>(*config.train.lanes),
            .micro_batches = config.train.batch_size / (*config.train.lanes * *config.train.micro_batch_size),
            .squares = most_segments(layout_, ranks.size()),
            .parameters = layout_.parameters(),
            .counts = elements(params, Combine::sum),
            .flags = elements(params, Combine::any)};
  for (const Optimizer::Rule& rule : optimizer.rules()) {
    index_of_.emplace(rule.param, static_cast<int>(index_of_.size()));
    rules_.clip_set.push_back(static_cast<int>(rule.clip_set));
  }
  for (size_t set = 0; set < optimizer.clip_sets(); ++set) { rules_.clip_norm.push_back(optimizer.clip_norm(set)); }
  point_gradients(first_buffer());
  find_slices(state);
  find_parts();
  find_segments(state);
  const bool wants_overlap = config.train.comm.value_or(CommConfig{}).overlap.value_or(stream.on_gpu());
  if (wants_overlap && ranks.size() > 1) { prepare_overlap(stream, state); }
}

/// Scratch is not shared with passes, beside which it is used.
void GradientExchange::prepare_overlap(Stream& stream, Arena& state) {
  queue_ = std::make_unique<BucketQueue>(
      layout_, stream, [this](Stream& on, int64_t bucket) { send_bucket(on, bucket, overlap_scratch_); },
      [this](Stream& on, int64_t bucket) { gather_values(on, bucket); });
  find_needed();
  if (!overlaps()) { return; }
  for (int p = 0; p < layout_.parameters(); ++p) {
    const Tensor& grad = optimizer_.rules()[static_cast<size_t>(p)].param->grad;
    if (grad.numel() > 0) { index_of_gradient_.emplace(grad.data, p); }
  }
  overlap_memory_ = std::make_unique<Workspace>(stream, state, "reduction");
  const Tensor& flat = first_buffer();
  overlap_scratch_ = ReduceScratch::of(*overlap_memory_, layout_.bucket(0).size(), flat.dtype, wire_);
}

/// The flat order is the reverse of that of declaration: the first parameters lie in the last buckets.
void GradientExchange::find_needed() {
  int64_t bucket = layout_.buckets();
  needed_.push_back(bucket);
  for (const auto& p : params_.all()) {
    if (const auto trained = index_of_.find(p.get()); trained != index_of_.end()) {
      bucket = std::min(bucket, layout_.buckets() - 1);
      while (layout_.bucket(bucket).begin > layout_.parameter(trained->second).begin) { --bucket; }
    }
    needed_.push_back(bucket);
  }
}

void GradientExchange::gradient_is_final(Stream& stream, const Tensor& grad) {
  if (grad.numel() > 0) { queue_->parameter_is_final(stream, index_of_gradient_.at(grad.data)); }
}

int64_t GradientExchange::value_bytes() const { return values_.tensor().defined() ? values_.tensor().bytes() : 0; }

int64_t GradientExchange::gradient_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers_) { bytes += buffer.tensor().bytes(); }
  return bytes;
}

/// Elements of this rank in each parameter: those that it updates.
void GradientExchange::find_slices(Arena& state) {
  const auto padded = [](int64_t n) { return (n + 15) / 16 * 16; };  // so that kernels can take packs
  int64_t moments = 0, values = 0;
  std::vector<int64_t> element_bytes;
  for (int p = 0; p < layout_.parameters(); ++p) {
    const Param& param = *optimizer_.rules()[static_cast<size_t>(p)].param;
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
  const DType dtype = buffers_[0].tensor().dtype;
  if (values > 0) { values_ = Buffer(state, {values}, dtype, "values of this rank"); }
  m_ = Buffer(state, {std::max<int64_t>(moments, 1)}, dtype, "first moments of this rank");
  v_ = Buffer(state, {std::max<int64_t>(moments, 1)}, dtype, "second moments of this rank");
}

bool GradientExchange::is_shared(const Param& p, Kept kept) const {
  return shares_ && (kept != Kept::value || p.copy.defined());
}

void GradientExchange::find_segments(Arena& state) {
  for (const FlatSegment& segment : layout_.segments()) {
    if (layout_.owner(segment, ranks_.size()) == ranks_.rank()) { segments_.push_back(segment.range); }
  }
  const auto count = static_cast<int64_t>(segments_.size());
  begins_ = Buffer(state, {std::max<int64_t>(count, 1)}, DType::i64, "segments of gradients");
  ends_ = Buffer(state, {std::max<int64_t>(count, 1)}, DType::i64, "segments of gradients");
  squares_ = Buffer(state, {std::max<int64_t>(count, 1)}, DType::f64, "sums of squares");
}

void GradientExchange::initialize(Stream& stream) {
  if (shares_) {
    fill_zero(stream, m_);
    fill_zero(stream, v_);
  }
  std::vector<int64_t> begins, ends;
  for (const ElementRange& s : segments_) {
    begins.push_back(s.begin);
    ends.push_back(s.end);
  }
  if (begins.empty() || stream.counting()) { return; }
  copy_to_device(stream, begins_, begins.data());
  copy_to_device(stream, ends_, ends.data());
}

void GradientExchange::point_gradients(const Tensor& flat) const {
  for (int p = 0; p < layout_.parameters(); ++p) {
    Param& param = *optimizer_.rules()[static_cast<size_t>(p)].param;
    param.grad = flat.slice(layout_.parameter(p).begin, param.spec.shape);
  }
}

void GradientExchange::begin_lane(Stream& stream) {
  const Tensor& flat = sums_.next();
  const bool is_zero = flat.data == buffers_[0].tensor().data && std::exchange(is_cleared_, false);
  if (!is_zero) { fill_zero(stream, flat); }
  point_gradients(flat);
}

void GradientExchange::end_lane(Stream& stream) {
  complete_values(stream);  // where no pass has run
  sums_.finish(stream);
}

void GradientExchange::reduce(Stream& stream, Arena& work) {
  const Tensor total = sums_.total();
  if (overlaps()) {
    queue_->finish(stream);
  } else if (ranks_.size() > 1) {
    Workspace workspace(stream, work, "reduction");
    const ReduceScratch scratch = ReduceScratch::of(workspace, layout_.bucket(0).size(), total.dtype, wire_);
    for (int64_t b = 0; b < layout_.buckets(); ++b) { send_bucket(stream, b, scratch); }
  }
  if (const auto count = static_cast<int64_t>(segments_.size()); count > 0) {
    run(stream, SegmentSquares{.partial = squares_.tensor().slice(0, {count}),
                               .x = total,
                               .begin = begins_.tensor().slice(0, {count}),
                               .end = ends_.tensor().slice(0, {count})});
  }
}

/// In place: what is sent has left when the sum is written.
void GradientExchange::send_bucket(Stream& stream, int64_t bucket, const ReduceScratch& scratch) {
  const ElementRange whole = layout_.bucket(bucket), part = layout_.part(bucket, ranks_.rank(), ranks_.size());
  const Tensor& flat = first_buffer();
  reduce_bucket(ranks_.communicator(), stream, flat.slice(part.begin, {part.size()}),
                flat.slice(whole.begin, {whole.size()}), scratch);
  if (!shares_) { gather_bucket(stream, flat, bucket); }
}

/// Every rank gets the parts of all.
void GradientExchange::gather_bucket(Stream& stream, const Tensor& flat, int64_t bucket) {
  const ElementRange whole = layout_.bucket(bucket), part = layout_.part(bucket, ranks_.rank(), ranks_.size());
  ranks_.communicator().all_gather(stream, flat.slice(whole.begin, {whole.size()}),
                                   flat.slice(part.begin, {part.size()}));
}

StepRecord GradientExchange::make_record(Stream& stream, std::span<const double> losses, bool wants_stop) {
  StepRecord record(shape_);
  for (int64_t i = 0; i < static_cast<int64_t>(losses.size()); ++i) {
    record.set_loss(i / shape_.micro_batches, i % shape_.micro_batches, losses[static_cast<size_t>(i)]);
  }
  std::vector<double> squares(static_cast<size_t>(squares_.tensor().numel()));
  copy_to_host(stream, squares.data(), squares_);
  for (size_t i = 0; i < segments_.size(); ++i) { record.set_square(static_cast<int64_t>(i), squares[i]); }
  int64_t counts = 0, flags = 0;
  for (const ParamStore::Combined& c : params_.combined()) {
    for (const int64_t value : to_host(stream, c.tensor)) {
      if (c.combine == Combine::sum) {
        record.set_count(counts++, value);
      } else if (value != 0) {
        record.set_flag(flags++);
      } else {
        ++flags;
      }
    }
  }
  for (size_t i = 0; i < optimizer_.rules().size(); ++i) {
    if (optimizer_.rules()[i].param->reached) { record.set_reached(static_cast<int64_t>(i)); }
  }
  if (wants_stop) { record.set_stop(); }
  record.set_history(ranks_.communicator().history());
  return record;
}

/// What the ranks know together, to where optimizer and layers read it.
void GradientExchange::spread(Stream& stream, const StepDecision& decision) {
  size_t counts = 0, flags = 0;
  for (const ParamStore::Combined& c : params_.combined()) {
    std::vector<int64_t> values(static_cast<size_t>(c.tensor.numel()));
    for (int64_t& value : values) {
      value = c.combine == Combine::sum ? decision.counts[counts++] : (decision.flags[flags++] ? 1 : 0);
    }
    to_device(stream, c.tensor, values);
  }
  for (size_t i = 0; i < optimizer_.rules().size(); ++i) { optimizer_.rules()[i].param->reached = decision.reached[i]; }
}

Tensor GradientExchange::within(const Slice& slice, const Tensor& tensor) const {
  const int64_t begin = slice.flat.begin - layout_.parameter(static_cast<int>(slice.rule)).begin;
  return tensor.slice(begin, {slice.flat.size()});
}

Tensor GradientExchange::of_rank(const Slice& slice, Kept kept) const {
  const Param& p = *optimizer_.rules()[slice.rule].param;
  if (!is_shared(p, kept)) { return within(slice, whole(p, kept)); }
  const Buffer& own = kept == Kept::value ? values_ : kept == Kept::first_moment ? m_ : v_;
  return own.tensor().slice(kept == Kept::value ? slice.value_at : slice.moments_at, {slice.flat.size()});
}

void GradientExchange::find_parts() {
  for (const Slice& slice : slices_) {
    const Param& p = *optimizer_.rules()[slice.rule].param;
    parts_.push_back({.rule = slice.rule,
                      .p = of_rank(slice, Kept::value),
                      .m = of_rank(slice, Kept::first_moment),
                      .v = of_rank(slice, Kept::second_moment),
                      .grad = first_buffer().tensor().slice(slice.flat.begin, {slice.flat.size()}),
                      .copy = p.copy.defined() ? within(slice, p.copy) : Tensor{}});
  }
}

StepEnd GradientExchange::finish(Stream& stream, int64_t step, std::span<const double> losses, int64_t valid_targets,
                                 bool wants_stop, const std::function<std::vector<HostCopy>()>& after_update) {
  const std::vector<StepRecord> records = gather_records(host_, make_record(stream, losses, wants_stop));
  rules_.valid_tokens = static_cast<double>(std::max<int64_t>(valid_targets, 1));
  const StepDecision decision = decide_step(records, layout_, rules_);
  spread(stream, decision);
  reset_moments(stream);
  optimizer_.apply(stream, step,
                   {.loss = decision.loss, .applies = decision.applies, .norm = decision.norm, .clip = decision.clip},
                   parts_);
  if (shares_ && decision.applies) { send_values(stream); }
  return {optimizer_.finish(stream, after_update()), decision.stop};
}

/// A layer that starts a parameter anew sets its count of updates to 0 (Param::reset_moments).
void GradientExchange::reset_moments(Stream& stream) {
  for (size_t i = 0; shares_ && i < slices_.size(); ++i) {
    if (optimizer_.rules()[slices_[i].rule].param->updates == 0) {
      fill_zero(stream, parts_[i].m);
      fill_zero(stream, parts_[i].v);
    }
  }
}

/// What this rank has updated. The gradients are of no use any more: values travel in their place.
void GradientExchange::send_values(Stream& stream) {
  for (int64_t b = 0; b < layout_.buckets(); ++b) {
    for (const ValueLayout::Piece& piece : value_layout_->pieces(b, ranks_.rank())) {
      const Travelling own = travelling(b, piece);
      copy(stream, own.place, own.read);
    }
  }
  if (queue_) {
    is_cleared_ = true;
    queue_->begin_values(stream);
    return;
  }
  for (int64_t b = layout_.buckets() - 1; b >= 0; --b) { gather_values(stream, b); }
}

/// What other ranks have updated. Gradients of the next step find the place empty.
void GradientExchange::gather_values(Stream& stream, int64_t bucket) {
  const ElementRange range = layout_.bucket(bucket);
  const Tensor flat = buffers_[0].tensor().slice(range.begin, {range.size()});
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
  if (queue_) { fill_zero(stream, flat); }
}

GradientExchange::Travelling GradientExchange::travelling(int64_t bucket, const ValueLayout::Piece& piece) const {
  const Tensor& whole = read_by_passes(*optimizer_.rules()[static_cast<size_t>(piece.parameter)].param);
  const Tensor read = whole.slice(piece.flat.begin - layout_.parameter(piece.parameter).begin, {piece.flat.size()});
  const Tensor place = buffers_[0].tensor().slice(layout_.bucket(bucket).begin, {1});
  return {read, {static_cast<char*>(place.data) + piece.at, read.dtype, read.shape}};
}

void GradientExchange::need_values(Stream& stream, size_t parameters) {
  if (!queue_ || !shares_) { return; }
  if (const int64_t bucket = needed_[parameters]; bucket < layout_.buckets()) { queue_->need_values(stream, bucket); }
}

void GradientExchange::collect(Stream& stream, Kept kept) {
  const auto& rules = optimizer_.rules();
  if (std::none_of(rules.begin(), rules.end(), [&](const auto& r) { return is_shared(*r.param, kept); })) { return; }
  for (const Slice& slice : slices_) {
    if (!is_shared(*rules[slice.rule].param, kept)) { continue; }
    copy(stream, buffers_[0].tensor().slice(slice.flat.begin, {slice.flat.size()}), of_rank(slice, kept));
  }
  for (int64_t b = 0; b < layout_.buckets(); ++b) { gather_bucket(stream, buffers_[0], b); }
  is_cleared_ = false;
}

void GradientExchange::keep(Stream& stream, Kept kept) {
  for (const Slice& slice : slices_) {
    if (!is_shared(*optimizer_.rules()[slice.rule].param, kept)) { continue; }
    copy(stream, of_rank(slice, kept), buffers_[0].tensor().slice(slice.flat.begin, {slice.flat.size()}));
  }
}

Tensor GradientExchange::whole(const Param& p, Kept kept) const {
  if (!is_shared(p, kept)) { return kept == Kept::value ? p.value : kept == Kept::first_moment ? p.m : p.v; }
  return buffers_[0].tensor().slice(layout_.parameter(index_of_.at(&p)).begin, p.spec.shape);
}

/// Values that are shared lie in the gradients' place meanwhile.
void GradientExchange::lend_values(bool is_lent) {
  for (const Optimizer::Rule& rule : optimizer_.rules()) {
    Param& p = *rule.param;
    if (is_shared(p, Kept::value)) { p.value.data = is_lent ? whole(p, Kept::value).data : nullptr; }
  }
}

void GradientExchange::make_values(Stream& stream, const std::function<void()>& make) {
  lend_values(true);
  make();
  keep(stream, Kept::value);
  lend_values(false);
  is_cleared_ = false;
}

void GradientExchange::read_values(Stream& stream, const std::function<void()>& use) {
  collect(stream, Kept::value);
  lend_values(true);
  use();
  lend_values(false);
}

void GradientExchange::verify(Stream& stream) {
  if (ranks_.size() == 1) { return; }
  std::vector<uint64_t> own;
  std::vector<std::pair<const Param*, const char*>> compared;
  const auto compare = [&](const Param& p, const char* what, uint64_t word) {
    compared.emplace_back(&p, what);
    own.push_back(word);
  };
  for (const auto& p : params_.all()) {
    if (p->is_of_lane()) { continue; }
    if (p->value.defined()) { compare(*p, "the values", hash_of(stream, p->value)); }
    if (p->copy.defined()) { compare(*p, "the rounded values", hash_of(stream, p->copy)); }
    compare(*p, "the counts of updates", static_cast<uint64_t>(p->updates));
  }
  const std::vector<uint64_t> all = host_.gather(own);
  for (size_t i = 0; i < own.size(); ++i) {
    for (size_t rank = 1; rank < static_cast<size_t>(ranks_.size()); ++rank) {
      if (all[rank * own.size() + i] != all[i]) {
        throw NumericError(
            compared[i].first->name(),
            fmt::format("{} of rank {:d} differ from those of rank 0; nothing is saved", compared[i].second, rank));
      }
    }
  }
}

}  // namespace hebb
