#include "layers/fast_queue.h"

#include <algorithm>

#include "kernels/attention/visible_keys.h"

namespace hebb {

void FastQueue::move_rows(Stream& stream, Buffer& buffer, int64_t width, int64_t capacity, int64_t from,
                          int64_t count) {
  Buffer moved(arena_, {rows_ * capacity, width}, dtype_, "queued tokens");
  fill_zero(stream, moved);
  for (int64_t b = 0; b < rows_ && count > 0; ++b) {
    copy(stream, moved.tensor().slice(b * capacity * width, {count, width}),
         buffer.tensor().slice((b * capacity_ + from) * width, {count, width}));
  }
  buffer = std::move(moved);
}

void FastQueue::reserve(Stream& stream, int64_t tokens) {
  if (tokens <= capacity_) { return; }
  const int64_t capacity = std::max(tokens, 2 * capacity_);
  move_rows(stream, q_, q_width_, capacity, 0, length_);
  move_rows(stream, v_, v_width_, capacity, 0, length_);
  move_rows(stream, w_, 1, capacity, 0, length_);
  capacity_ = capacity;
  ++places_;
}

std::optional<int64_t> FastQueue::launches(const NextToken& next) const {
  if (next.fast.update == FastUpdate::never || next.fast.freeze) { return 0; }
  const bool only_queues =
      next.fast.update == FastUpdate::streaming && length_ + 1 < chunk + lookahead && length_ < capacity_;
  return only_queues ? std::optional(places_) : std::nullopt;
}

void FastQueue::count_token(const NextToken& next) {
  if (next.fast.update == FastUpdate::never || next.fast.freeze) { return; }
  for (std::vector<int64_t>& row : linked_) { row.push_back(lookahead); }  // one stream a row
  ++length_;
}

void FastQueue::append(Stream& stream, const Rows& rows, int64_t first, int64_t count, int64_t lookahead,
                       const Tensor& q, const Tensor& v, const Tensor& w) {
  reserve(stream, length_ + count);
  const auto put = [&](const Buffer& to, const Tensor& from, int64_t width) {
    if (rows.in_step()) {  // at a place that follows from the position on the device, so that a graph can repeat it
      run(stream, RingAppend{.ring = to.tensor().view({rows_, capacity_, width}),
                             .x = from.view({rows_, 1, width}),
                             .doc_start = rows.doc_start(),
                             .slots = {KeyRange{.window = capacity_}},
                             .first = rows.offset() - length_});
      return;
    }
    for (int64_t b = 0; b < rows_; ++b) {
      copy(stream, to.tensor().slice((b * capacity_ + length_) * width, {count, width}),
           from.slice((b * rows.length() + first) * width, {count, width}));
    }
  };
  put(q_, q, q_width_);
  put(v_, v, v_width_);
  if (weighted_) { put(w_, w, 1); }
  for (int64_t b = 0; b < rows_; ++b) {
    for (int64_t t = first; t < first + count; ++t) {
      const int64_t before = t - rows.host_doc_start()[static_cast<size_t>(b * rows.length() + t)];
      linked_[static_cast<size_t>(b)].push_back(rows.masked() ? before : lookahead);
    }
  }
  length_ += count;
}

void FastQueue::drop(Stream& stream, int64_t count) {
  length_ -= count;
  ++places_;
  if (length_ > 0) {
    move_rows(stream, q_, q_width_, capacity_, count, length_);
    move_rows(stream, v_, v_width_, capacity_, count, length_);
    move_rows(stream, w_, 1, capacity_, count, length_);
  }
  for (std::vector<int64_t>& row : linked_) { row.erase(row.begin(), row.begin() + count); }
}

std::vector<int32_t> FastQueue::targets(int64_t count, int64_t lookahead) const {
  std::vector<int32_t> targets(static_cast<size_t>(rows_ * capacity_), -1);
  for (int64_t b = 0; b < rows_; ++b) {
    for (int64_t t = 0; t < count && t + lookahead < length_; ++t) {
      if (linked_[static_cast<size_t>(b)][static_cast<size_t>(t + lookahead)] >= lookahead) {
        targets[static_cast<size_t>(b * capacity_ + t)] = static_cast<int32_t>(b * capacity_ + t + lookahead);
      }
    }
  }
  return targets;
}

void run_fast_queue(Pass& pass, FastQueue& queue, int64_t chunk, int64_t lookahead, const Tensor& q, const Tensor& v,
                    const Tensor& w, const FastQueueSteps& steps) {
  Stream& stream = pass.stream();
  const int64_t length = pass.length();
  if (pass.fast.update == FastUpdate::never || pass.fast.freeze) {
    steps.read(0, length);
    return;
  }
  const auto update = [&](int64_t pairs) {
    if (pairs > 0) {
      steps.update(pairs);
      queue.drop(stream, pairs);
    }
  };
  if (pass.fast.update == FastUpdate::at_end) {
    steps.read(0, length);
    queue.append(stream, pass.rows, 0, length, lookahead, q, v, w);
    update(queue.length() - lookahead);
    return;
  }
  queue.chunk = chunk;
  queue.lookahead = lookahead;
  for (int64_t first = 0; first < length;) {
    const int64_t count = std::min(length - first, std::max<int64_t>(1, chunk + lookahead - queue.length()));
    steps.read(first, count);
    queue.append(stream, pass.rows, first, count, lookahead, q, v, w);
    first += count;
    while (queue.length() >= chunk + lookahead) { update(chunk); }
  }
}

void flush_fast_queue(Stream& stream, FastQueue& queue, int64_t lookahead,
                      const std::function<void(int64_t pairs)>& update) {
  const int64_t pairs = queue.length() - lookahead;
  if (pairs > 0 && queue.chunk > 0 && pairs >= queue.chunk - 1) { update(pairs); }
  queue.drop(stream, queue.length());
}

}  // namespace hebb
