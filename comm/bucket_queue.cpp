#include "comm/bucket_queue.h"

#include "core/error.h"
#include "core/launch_graph.h"

namespace hebb {

BucketQueue::BucketQueue(const BucketLayout& layout, const Stream& compute, Exchange send, Exchange gather)
    : layout_(layout),
      send_(std::move(send)),
      gather_(std::move(gather)),
      buckets_of_(static_cast<size_t>(layout.parameters())),
      works_beside_(compute.device == DeviceKind::cuda),
      side_(compute, layout.buckets() + 1, layout.buckets() + 1) {
  for (int64_t b = 0; b < layout.buckets(); ++b) {
    for (const int p : layout.parameters_of(b)) { buckets_of_[static_cast<size_t>(p)].push_back(b); }
  }
  begin_step();
}

void BucketQueue::begin_step() {
  ready_ = sent_ = 0;
  open_.assign(static_cast<size_t>(layout_.buckets()), 0);
  for (const std::vector<int64_t>& buckets : buckets_of_) {
    for (const int64_t b : buckets) { ++open_[static_cast<size_t>(b)]; }
  }
}

void BucketQueue::parameter_is_final(Stream& compute, int parameter) {
  for (const int64_t b : buckets_of_[static_cast<size_t>(parameter)]) {
    HEBB_ASSERT(open_[static_cast<size_t>(b)] > 0);
    --open_[static_cast<size_t>(b)];
  }
  for (; ready_ < layout_.buckets() && open_[static_cast<size_t>(ready_)] == 0; ++ready_) {
    side_.mark(compute, ready_);
  }
  // What is being recorded has not happened yet: its collectives follow the launch.
  if (!is_being_recorded(compute)) { send_ready(); }
}

void BucketQueue::graph_is_launched(int64_t ready) {
  HEBB_ASSERT(sent_ == 0);
  ready_ = ready;
  send_ready();
}

void BucketQueue::send_ready() {
  for (; sent_ < ready_; ++sent_) {
    side_.wait_for(sent_);
    send_(side_.stream(), sent_);
  }
}

void BucketQueue::finish(Stream& compute) {
  const int64_t all = layout_.buckets();
  side_.mark(compute, all);
  side_.wait_for(all);
  for (; sent_ < all; ++sent_) { send_(side_.stream(), sent_); }
  side_.reach(all);
  side_.join(compute, all);
  begin_step();
}

void BucketQueue::begin_values(Stream& compute) {
  const int64_t all = layout_.buckets();
  HEBB_ASSERT(to_gather_ == 0);
  side_.mark(compute, all);
  side_.wait_for(all);
  to_gather_ = all;
  if (works_beside_) { gather_from(0); }
}

void BucketQueue::need_values(Stream& compute, int64_t bucket) {
  gather_from(bucket);
  side_.join(compute, bucket);
}

void BucketQueue::gather_from(int64_t bucket) {
  while (to_gather_ > bucket) {
    gather_(side_.stream(), --to_gather_);
    side_.reach(to_gather_);
  }
}

}  // namespace hebb
