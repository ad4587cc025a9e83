#include "train/gradient_exchange.h"

#include <algorithm>
#include <utility>

#include "train/equal_on_ranks.h"

namespace hebb {
namespace {

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

}  // namespace

GradientExchange::GradientExchange(const RunConfig& config, const Ranks& ranks, ParamStore& params,
                                   Optimizer& optimizer, Stream& stream, Arena& state)
    : ranks_(ranks),
      host_(ranks.communicator(), stream.device),
      params_(params),
      optimizer_(optimizer),
      own_lanes_(static_cast<int>(*config.train.lanes) / ranks.size()),
      sum_(config, ranks, own_lanes_, !shares(config.train, ranks.size()), params.dtype(), optimizer, state),
      values_(ranks, shares(config.train, ranks.size()), optimizer, sum_, state) {
  shape_ = {.ranks = ranks.size(),
            .lanes = static_cast<int>(*config.train.lanes),
            .micro_batches = config.train.batch_size / (*config.train.lanes * *config.train.micro_batch_size),
            .squares = most_segments(sum_.layout(), ranks.size()),
            .parameters = sum_.layout().parameters(),
            .counts = elements(params, Combine::sum),
            .flags = elements(params, Combine::any)};
  for (const Optimizer::Rule& rule : optimizer.rules()) { rules_.clip_set.push_back(static_cast<int>(rule.clip_set)); }
  for (size_t set = 0; set < optimizer.clip_sets(); ++set) { rules_.clip_norm.push_back(optimizer.clip_norm(set)); }
  sum_.find_segments(state);
  const bool wants_overlap = config.train.comm.value_or(CommConfig{}).overlap.value_or(stream.on_gpu());
  if (wants_overlap && ranks.size() > 1) { prepare_overlap(stream, state); }
}

/// Scratch is not shared with passes, beside which it is used.
void GradientExchange::prepare_overlap(Stream& stream, Arena& state) {
  queue_ = std::make_unique<BucketQueue>(
      sum_.layout(), stream, [this](Stream& on, int64_t bucket) { sum_.send_bucket(on, bucket, overlap_scratch_); },
      [this](Stream& on, int64_t bucket) { gather_values(on, bucket); });
  find_needed();
  if (!overlaps()) { return; }
  for (int p = 0; p < sum_.layout().parameters(); ++p) {
    const Tensor& grad = optimizer_.rules()[static_cast<size_t>(p)].param->grad;
    if (grad.numel() > 0) { index_of_gradient_.emplace(grad.data, p); }
  }
  overlap_memory_ = std::make_unique<Workspace>(stream, state, "reduction");
  overlap_scratch_ = sum_.scratch(*overlap_memory_);
}

/// The flat order is the reverse of that of declaration: the first parameters lie in the last buckets.
void GradientExchange::find_needed() {
  int64_t bucket = sum_.layout().buckets();
  needed_.push_back(bucket);
  for (const auto& p : params_.all()) {
    if (const auto trained = values_.index().find(p.get()); trained != values_.index().end()) {
      bucket = std::min(bucket, sum_.layout().buckets() - 1);
      while (sum_.layout().bucket(bucket).begin > sum_.layout().parameter(trained->second).begin) { --bucket; }
    }
    needed_.push_back(bucket);
  }
}

void GradientExchange::gradient_is_final(Stream& stream, const Tensor& grad) {
  if (grad.numel() > 0) { queue_->parameter_is_final(stream, index_of_gradient_.at(grad.data)); }
}

void GradientExchange::initialize(Stream& stream) {
  values_.initialize(stream);
  sum_.initialize(stream);
}

void GradientExchange::begin_lane(Stream& stream) {
  sum_.begin_lane(stream, sum_.begins_in_spare() && std::exchange(spare_is_zero_, false));
}

void GradientExchange::end_lane(Stream& stream) {
  complete_values(stream);  // where no pass has run
  sum_.end_lane(stream);
}

void GradientExchange::reduce(Stream& stream, Arena& work) {
  if (overlaps()) {
    queue_->finish(stream);
  } else if (ranks_.size() > 1) {
    sum_.send_all(stream, work);
  }
  sum_.sum_squares(stream);
}

StepRecord GradientExchange::make_record(Stream& stream, std::span<const double> losses, bool wants_stop) {
  StepRecord record(shape_);
  for (int64_t i = 0; i < static_cast<int64_t>(losses.size()); ++i) {
    record.set_loss(i / shape_.micro_batches, i % shape_.micro_batches, losses[static_cast<size_t>(i)]);
  }
  std::vector<double> squares(static_cast<size_t>(sum_.squares().numel()));
  copy_to_host(stream, squares.data(), sum_.squares());
  for (size_t i = 0; i < sum_.segments(); ++i) { record.set_square(static_cast<int64_t>(i), squares[i]); }
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

StepEnd GradientExchange::finish(Stream& stream, int64_t step, std::span<const double> losses, int64_t valid_targets,
                                 bool wants_stop, const std::function<std::vector<HostCopy>()>& after_update) {
  const std::vector<StepRecord> records = gather_records(host_, make_record(stream, losses, wants_stop));
  rules_.valid_tokens = static_cast<double>(std::max<int64_t>(valid_targets, 1));
  const StepDecision decision = decide_step(records, sum_.layout(), rules_);
  spread(stream, decision);
  values_.reset_moments(stream);
  optimizer_.apply(stream, step,
                   {.loss = decision.loss, .applies = decision.applies, .norm = decision.norm, .clip = decision.clip},
                   values_.parts());
  if (values_.shares() && decision.applies) { send_values(stream); }
  return {optimizer_.finish(stream, after_update()), decision.stop};
}

void GradientExchange::send_values(Stream& stream) {
  values_.pack(stream);
  if (queue_) {
    spare_is_zero_ = true;
    queue_->begin_values(stream);
    return;
  }
  for (int64_t b = sum_.layout().buckets() - 1; b >= 0; --b) { values_.gather(stream, b); }
}

/// Gradients of the next step find the place empty.
void GradientExchange::gather_values(Stream& stream, int64_t bucket) {
  values_.gather(stream, bucket);
  const ElementRange range = sum_.layout().bucket(bucket);
  fill_zero(stream, sum_.spare().slice(range.begin, {range.size()}));
}

void GradientExchange::need_values(Stream& stream, size_t parameters) {
  if (!queue_ || !values_.shares()) { return; }
  if (const int64_t bucket = needed_[parameters]; bucket < sum_.layout().buckets()) {
    queue_->need_values(stream, bucket);
  }
}

void GradientExchange::collect(Stream& stream, Kept kept) {
  if (values_.collect(stream, kept)) { spare_is_zero_ = false; }
}

void GradientExchange::make_values(Stream& stream, const std::function<void()>& make) {
  values_.lend(true);
  make();
  values_.keep(stream, Kept::value);
  values_.lend(false);
  spare_is_zero_ = false;
}

void GradientExchange::read_values(Stream& stream, const std::function<void()>& use) {
  collect(stream, Kept::value);
  values_.lend(true);
  use();
  values_.lend(false);
}

void GradientExchange::verify(Stream& stream) { require_equal_on_ranks(stream, host_, ranks_.size(), params_); }

}  // namespace hebb
