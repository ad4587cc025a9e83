#include "comm/lanes.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <string>

#include "core/join.h"
#include "kernels/ordered_sum/ordered_sum.h"

namespace hebb {

std::vector<int> allowed_sizes(int lanes) {
  HEBB_ASSERT(lanes >= 1);
  std::vector<int> sizes;
  for (int size = lanes; size >= 1; size /= 2) {
    sizes.push_back(size);
    if (size % 2 == 1) { break; }
  }
  if (sizes.back() != 1) { sizes.push_back(1); }
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

void check_lanes(int lanes, int size, std::string_view where) {
  const std::vector<int> sizes = allowed_sizes(lanes);
  if (std::find(sizes.begin(), sizes.end(), size) != sizes.end()) { return; }
  const std::string list = join(sizes, ", ", [](int allowed) { return std::to_string(allowed); });
  throw ConfigError(where, fmt::format("{:d} ranks", size), fmt::format("{} with {:d} lanes", list, lanes));
}

int LaneSums::buffers(int own) {
  const int levels = std::countr_zero(static_cast<unsigned>(own));
  return 1 + levels + (std::has_single_bit(static_cast<unsigned>(own)) ? 0 : 1);
}

LaneSums::LaneSums(int own, std::vector<Tensor> buffers) : free_(std::move(buffers)), own_(own) {
  HEBB_ASSERT(own >= 1 && static_cast<int>(free_.size()) == LaneSums::buffers(own));
}

const Tensor& LaneSums::next() const {
  HEBB_ASSERT(!free_.empty());
  return free_.back();
}

void LaneSums::finish(Stream& stream) {
  const auto merge = [&] {  // the last two of waiting_
    add_to(stream, waiting_[waiting_.size() - 2], waiting_.back());
    free_.push_back(waiting_.back());
    waiting_.pop_back();
  };
  waiting_.push_back(free_.back());
  free_.pop_back();
  ++lane_;
  const int tree = static_cast<int>(tree_size(own_)), in_tree = lane_ % tree;
  const int merges = std::countr_zero(static_cast<unsigned>(in_tree == 0 ? tree : in_tree));
  for (int i = 0; i < merges; ++i) { merge(); }
  if (in_tree == 0 && lane_ > tree) { merge(); }
  if (lane_ == own_) {
    HEBB_ASSERT(waiting_.size() == 1);
    total_ = waiting_.back();
    free_.push_back(total_);
    waiting_.clear();
    lane_ = 0;
  }
}

const Tensor& LaneSums::total() const {
  HEBB_ASSERT(lane_ == 0 && total_.defined());
  return total_;
}

}  // namespace hebb
