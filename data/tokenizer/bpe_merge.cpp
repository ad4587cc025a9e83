#include "data/tokenizer/bpe_merge.h"

#include <fmt/core.h>

#include "core/error.h"

namespace hebb {
namespace {

// Order of the heap: the highest score, then the leftmost, is in front.
constexpr auto kComesLater = [](const auto& a, const auto& b) {
  return a.score < b.score || (a.score == b.score && a.left > b.left);
};

}  // namespace

BpeScratch::BpeScratch() : slots_(kSlots) {}

void BpeScratch::start(std::string_view part) {
  if (part.size() > static_cast<size_t>(INT32_MAX)) {
    throw DataError("", "text without a place to cut it", fmt::format("{:d} bytes", part.size()), "less than 2 GiB");
  }
  nodes_.clear();
  heap_.clear();
}

void BpeScratch::append(int32_t symbol, uint32_t begin, uint32_t end) {
  const auto index = static_cast<int32_t>(nodes_.size());
  nodes_.push_back({symbol, index - 1, index + 1, begin, end});
}

void BpeScratch::propose(const BpeMerges& merges, int32_t left, int32_t right) {
  const auto count = static_cast<int32_t>(nodes_.size());
  if (left < 0 || right >= count || nodes_[left].symbol < 0 || nodes_[right].symbol < 0) { return; }
  const int32_t left_symbol = nodes_[left].symbol, right_symbol = nodes_[right].symbol;
  const BpeMerge* merge =
      merges.find(pair_key(static_cast<uint32_t>(left_symbol), static_cast<uint32_t>(right_symbol)));
  if (merge != nullptr) {
    heap_.push_back({merge->score, left, right, left_symbol, right_symbol, merge->symbol});
    std::push_heap(heap_.begin(), heap_.end(), kComesLater);
  }
}

void BpeScratch::merge(const BpeMerges& merges) {
  const auto count = static_cast<int32_t>(nodes_.size());
  for (int32_t i = 1; i < count; ++i) { propose(merges, i - 1, i); }
  while (!heap_.empty()) {
    const Candidate best = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), kComesLater);
    heap_.pop_back();
    Node& left = nodes_[best.left];
    Node& right = nodes_[best.right];
    if (left.symbol != best.left_symbol || right.symbol != best.right_symbol) {
      continue;  // one of the two has been merged since
    }
    left.symbol = best.merged;
    left.end = right.end;
    left.next = right.next;
    if (right.next < count) { nodes_[right.next].previous = best.left; }
    right.symbol = kGone;
    propose(merges, left.previous, best.left);
    propose(merges, best.left, left.next);
  }
}

}  // namespace hebb
