#include "layers/fast/queue.h"

#include <fmt/core.h>

#include <algorithm>

#include "kernels/attention/visible_keys.h"

namespace hebb {

int64_t fast_chunk(const Pass& pass, const std::string& name, int64_t chunk_size, int64_t lookahead) {
  const int64_t chunk = pass.fast.chunk_or(chunk_size);
  if (chunk <= lookahead) {
    throw ConfigError(name + " chunk size", std::to_string(chunk),
                      fmt::format("more than lookahead ({:d})", lookahead));
  }
  return chunk;
}

void FastQueue::move_rows(Stream& stream, Buffer& buffer, int64_t width, int64_t capacity, int64_t from,
                          int64_t count) {
  Buffer moved(arena_, {of_.rows * capacity, width}, of_.dtype, "queued tokens");
  fill_zero(stream, moved);
  if (count > 0) {
    copy_tokens(stream, moved.tensor().view({of_.rows, capacity, width}), 0,
                buffer.tensor().view({of_.rows, capacity_, width}), from, count);
  }
  buffer = std::move(moved);
}

void FastQueue::reserve(Stream& stream, int64_t tokens) {
  if (tokens <= capacity_) { return; }
  const int64_t capacity = std::max(tokens, 2 * capacity_);
  move_rows(stream, q_, of_.q_width, capacity, 0, length_);
  move_rows(stream, v_, of_.v_width, capacity, 0, length_);
  move_rows(stream, w_, 1, capacity, 0, length_);
  capacity_ = capacity;
  ++places_;
}

std::optional<int64_t> FastQueue::launches(const NextToken& next) const {
  if (next.fast.update == FastUpdate::never || next.fast.freeze) { return 0; }
  const bool only_queues = next.fast.update == FastUpdate::streaming && chunk_ > 0 &&
                           length_ + 1 < chunk_ + of_.lookahead && length_ < capacity_;
  return only_queues ? std::optional(places_) : std::nullopt;
}

void FastQueue::count_token(const NextToken& next) {
  if (next.fast.update == FastUpdate::never || next.fast.freeze) { return; }
  for (std::vector<int64_t>& row : linked_) { row.push_back(of_.lookahead); }  // one stream a row
  ++length_;
}

void FastQueue::append(Stream& stream, const Rows& rows, int64_t first, int64_t count, const Tensor& q, const Tensor& v,
                       const Tensor& w) {
  reserve(stream, length_ + count);
  const auto put = [&](const Buffer& buffer, const Tensor& tokens, int64_t width) {
    const Tensor to = buffer.tensor().view({of_.rows, capacity_, width}),
                 from = tokens.view({of_.rows, rows.length(), width});
    if (rows.in_step()) {  // at a place that follows from the position on the device, so that a graph can repeat it
      run(stream, RingAppend{.ring = to,
                             .x = from,
                             .doc_start = rows.doc_start(),
                             .slots = {KeyRange{.window = capacity_}},
                             .first = rows.offset() - length_});
    } else {
      copy_tokens(stream, to, length_, from, first, count);
    }
  };
  put(q_, q, of_.q_width);
  put(v_, v, of_.v_width);
  if (of_.weighted) { put(w_, w, 1); }
  for (int64_t b = 0; b < of_.rows; ++b) {
    for (int64_t t = first; t < first + count; ++t) {
      const int64_t before = t - rows.host_doc_start()[static_cast<size_t>(b * rows.length() + t)];
      linked_[static_cast<size_t>(b)].push_back(rows.masked() ? before : of_.lookahead);
    }
  }
  length_ += count;
}

void FastQueue::drop(Stream& stream, int64_t count) {
  length_ -= count;
  ++places_;
  if (length_ > 0) {
    move_rows(stream, q_, of_.q_width, capacity_, count, length_);
    move_rows(stream, v_, of_.v_width, capacity_, count, length_);
    move_rows(stream, w_, 1, capacity_, count, length_);
  }
  for (std::vector<int64_t>& row : linked_) { row.erase(row.begin(), row.begin() + count); }
}

std::vector<int32_t> FastQueue::targets(int64_t count) const {
  std::vector<int32_t> targets(static_cast<size_t>(of_.rows * capacity_), -1);
  for (int64_t b = 0; b < of_.rows; ++b) {
    for (int64_t t = 0; t < count && t + of_.lookahead < length_; ++t) {
      if (linked_[static_cast<size_t>(b)][static_cast<size_t>(t + of_.lookahead)] >= of_.lookahead) {
        targets[static_cast<size_t>(b * capacity_ + t)] = static_cast<int32_t>(b * capacity_ + t + of_.lookahead);
      }
    }
  }
  return targets;
}

void FastQueue::advance(Pass& pass, int64_t chunk, const Tensor& q, const Tensor& v, const Tensor& w,
                        const std::function<void(int64_t first, int64_t count)>& read) {
  Stream& stream = pass.stream();
  const int64_t length = pass.length();
  if (pass.fast.update == FastUpdate::never || pass.fast.freeze) {
    read(0, length);
    return;
  }
  const auto update = [&](int64_t pairs) {
    if (pairs > 0) {
      update_(stream, *this, pairs);
      drop(stream, pairs);
    }
  };
  if (pass.fast.update == FastUpdate::at_end) {
    read(0, length);
    append(stream, pass.rows, 0, length, q, v, w);
    update(length_ - of_.lookahead);
    return;
  }
  chunk_ = chunk;
  for (int64_t first = 0; first < length;) {
    const int64_t count = std::min(length - first, std::max<int64_t>(1, chunk + of_.lookahead - length_));
    read(first, count);
    append(stream, pass.rows, first, count, q, v, w);
    first += count;
    while (length_ >= chunk + of_.lookahead) { update(chunk); }
  }
}

void FastQueue::flush(Stream& stream) {
  const int64_t pairs = length_ - of_.lookahead;
  if (pairs > 0 && chunk_ > 0 && pairs >= chunk_ - 1) { update_(stream, *this, pairs); }
  drop(stream, length_);
}

}  // namespace hebb
