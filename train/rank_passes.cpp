#include "train/rank_passes.h"

#include <algorithm>
#include <iterator>

namespace hebb {

RankPasses::RankPasses(const RunConfig& config, const Ranks& ranks, bool shares_rows, DeviceKind device)
    : train_(config.train), ranks_(ranks), host_(ranks.communicator(), device), shares_rows_(shares_rows) {}

void RankPasses::all_gather(Stream& stream, const Tensor& receive, const Tensor& send) {
  ranks_.communicator().all_gather(stream, receive, send);
}

void RankPasses::from_first(Stream& stream, const Tensor& data) { ranks_.communicator().broadcast(stream, data, 0); }

AllRows RankPasses::make(Rows rows, int64_t own) const {
  const int64_t each = *train_.micro_batch_size;
  return {.rows = std::move(rows), .each = each, .first = own > 0 ? rank() * each : 0, .own = own};
}

AllRows RankPasses::whole(Stream& stream, Arena& arena) const {
  const int64_t each = *train_.micro_batch_size;
  return make(Rows::streams(stream, arena, size() * each, train_.sequence_length), each);
}

AllRows RankPasses::gather(Stream& stream, Arena& arena, const MicroBatch& rows, int64_t own) {
  const int64_t length = rows.length;
  std::vector<uint64_t> words(static_cast<size_t>(1 + *train_.micro_batch_size * length));
  words[0] = static_cast<uint64_t>(own);
  for (size_t i = 0; train_.document_mask && i < static_cast<size_t>(own * length); ++i) {
    words[1 + i] = static_cast<uint64_t>(static_cast<int64_t>(rows.doc_ids[i]));
  }
  std::vector<uint64_t> all;
  if (stream.counting()) {  // nothing travels in a dry run: all have the same
    for (int r = 0; r < size(); ++r) { all.insert(all.end(), words.begin(), words.end()); }
  } else {
    all = host_.gather(words);
  }
  std::vector<int64_t> ids;
  int64_t count = 0;
  for (size_t at = 0; at < all.size(); at += words.size()) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(at) + 1;
    const auto tokens = static_cast<std::ptrdiff_t>(all[at]) * length;
    count += static_cast<int64_t>(all[at]);
    std::transform(first, first + tokens, std::back_inserter(ids),
                   [](uint64_t id) { return static_cast<int64_t>(id); });
  }
  return make(train_.document_mask ? Rows::documents(stream, arena, count, length, ids)
                                   : Rows::streams(stream, arena, count, length),
              own);
}

}  // namespace hebb
