#include "layers/rows.h"

#include <algorithm>

namespace hebb {

Rows::Rows(int64_t rows, int64_t length, std::vector<int32_t> starts)
    : batch_(rows), length_(length), host_(std::move(starts)) {
  HEBB_ASSERT(rows >= 1 && length >= 1 && static_cast<int64_t>(host_.size()) == rows * length);
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t t = 0; t < length;) {
      const int32_t start = host_[static_cast<size_t>(b * length + t)];
      int64_t end = t + 1;
      while (end < length && host_[static_cast<size_t>(b * length + end)] == start) { ++end; }
      spans_.push_back({b, t, end - t, t - start});
      t = end;
    }
  }
}

Rows::Rows(Stream& stream, Arena& arena, int64_t rows, int64_t length, std::vector<int32_t> starts)
    : Rows(rows, length, std::move(starts)) {
  memory_ = Buffer(arena, {rows, length}, DType::i32, "rows");
  starts_ = memory_;
  copy_to_device(stream, starts_, host_.data());
}

Rows Rows::tokens(const Tensor& starts, const std::vector<int64_t>& offsets) {
  std::vector<int32_t> host;
  for (const int64_t offset : offsets) {
    HEBB_ASSERT(offset >= 0 && offset <= kLongestDocument);
    host.push_back(static_cast<int32_t>(-offset));
  }
  Rows result(starts.size(0), 1, std::move(host));
  result.starts_ = starts;
  return result;
}

bool Rows::in_step() const {
  return length_ == 1 && std::all_of(host_.begin(), host_.end(), [&](int32_t start) { return start == host_[0]; });
}

Rows Rows::streams(Stream& stream, Arena& arena, int64_t rows, int64_t length, int64_t offset) {
  HEBB_ASSERT(offset >= 0 && offset <= kLongestDocument);
  return Rows(stream, arena, rows, length,
              std::vector<int32_t>(static_cast<size_t>(rows * length), static_cast<int32_t>(-offset)));
}

Rows Rows::documents(Stream& stream, Arena& arena, int64_t rows, int64_t length, const std::vector<int64_t>& ids,
                     int64_t offset) {
  return documents(stream, arena, rows, length, ids, std::vector<int64_t>(static_cast<size_t>(rows), offset));
}

Rows Rows::documents(Stream& stream, Arena& arena, int64_t rows, int64_t length, const std::vector<int64_t>& ids,
                     const std::vector<int64_t>& offsets) {
  HEBB_ASSERT(static_cast<int64_t>(ids.size()) == rows * length && static_cast<int64_t>(offsets.size()) == rows);
  std::vector<int32_t> starts(ids.size());
  for (int64_t b = 0; b < rows; ++b) {
    int64_t start = -offsets[static_cast<size_t>(b)];
    for (int64_t t = 0; t < length; ++t) {
      const size_t i = static_cast<size_t>(b * length + t);
      if (t > 0 && ids[i] != ids[i - 1]) { start = t; }
      starts[i] = static_cast<int32_t>(start);
    }
  }
  Rows result(stream, arena, rows, length, std::move(starts));
  result.masked_ = true;
  return result;
}

void copy_tokens(Stream& stream, const Tensor& to, int64_t to_begin, const Tensor& from, int64_t from_begin,
                 int64_t count) {
  const int64_t channels = to.size(2);
  for (int64_t b = 0; count > 0 && b < to.size(0); ++b) {
    copy(stream, to.slice((b * to.size(1) + to_begin) * channels, {count, channels}),
         from.slice((b * from.size(1) + from_begin) * channels, {count, channels}));
  }
}

void keep_last(Stream& stream, const Tensor& last, const Tensor& x) {
  copy_tokens(stream, last.view({x.size(0), 1, x.size(2)}), 0, x, x.size(1) - 1, 1);
}

void copy_rows(Stream& stream, const std::vector<Tensor>& to, int64_t row, const std::vector<Tensor>& from,
               int64_t from_row) {
  HEBB_ASSERT(to.size() == from.size());
  for (size_t i = 0; i < to.size(); ++i) {
    const int64_t size = to[i].numel() / to[i].size(0);
    HEBB_ASSERT(from[i].numel() / from[i].size(0) == size);
    if (size > 0) { copy(stream, to[i].slice(row * size, {size}), from[i].slice(from_row * size, {size})); }
  }
}

}  // namespace hebb
