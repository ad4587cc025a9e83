#include "train/comm_times.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace hebb {

std::vector<RankTimes> gather_times(HostExchange& ranks, const RankTimes& own) {
  std::vector<uint64_t> words{static_cast<uint64_t>(own.peak_bytes), static_cast<uint64_t>(own.sent_bytes)};
  for (const StepTime& step : own.steps) {
    words.push_back(std::bit_cast<uint64_t>(step.seconds));
    words.push_back(std::bit_cast<uint64_t>(step.comm_seconds));
  }
  const std::vector<uint64_t> all = ranks.gather(words);
  std::vector<RankTimes> times;
  for (size_t at = 0; at < all.size(); at += words.size()) {
    RankTimes rank{
        .peak_bytes = static_cast<int64_t>(all[at]), .sent_bytes = static_cast<int64_t>(all[at + 1]), .steps = {}};
    for (size_t i = at + 2; i < at + words.size(); i += 2) {
      rank.steps.push_back({std::bit_cast<double>(all[i]), std::bit_cast<double>(all[i + 1])});
    }
    times.push_back(std::move(rank));
  }
  return times;
}

CommTimes compare_times(const std::vector<RankTimes>& of, bool is_timed) {
  const size_t steps = of[0].steps.size(), ranks = of.size();
  HEBB_ASSERT(steps > 0);
  CommTimes times{.ranks = static_cast<int>(ranks), .is_timed = is_timed};
  std::vector<double> own(ranks), wait(ranks);  // seconds a step
  for (size_t r = 0; r < ranks; ++r) {
    times.peak_bytes = std::max(times.peak_bytes, of[r].peak_bytes);
    times.sent_bytes = std::max(times.sent_bytes, of[r].sent_bytes / static_cast<int64_t>(steps));
  }
  const double count = static_cast<double>(steps);
  for (size_t s = 0; s < steps; ++s) {
    double least = of[0].steps[s].comm_seconds;
    for (const RankTimes& rank : of) { least = std::min(least, rank.steps[s].comm_seconds); }
    times.exposed_ms += 1e3 * least / count;
    for (size_t r = 0; r < ranks; ++r) {
      const StepTime& step = of[r].steps[s];
      own[r] += (step.seconds - step.comm_seconds) / count;
      wait[r] += (step.comm_seconds - least) / count;
    }
  }
  const auto [least, most] = std::minmax_element(wait.begin(), wait.end());
  const double mean = std::accumulate(wait.begin(), wait.end(), 0.0) / static_cast<double>(ranks);
  times.wait_ms = {1e3 * *least, 1e3 * mean, 1e3 * *most};
  times.slowest = static_cast<int>(std::max_element(own.begin(), own.end()) - own.begin());
  const double slowest = own[static_cast<size_t>(times.slowest)];
  std::sort(own.begin(), own.end());
  const double median = 0.5 * (own[(ranks - 1) / 2] + own[ranks / 2]);
  times.skew = median > 0 ? slowest / median : 1;
  return times;
}

Json CommTimes::json() const {
  Json json = Json::object({{"ranks", ranks}, {"sent_bytes", sent_bytes}});
  if (!is_timed) { return json; }
  json.set("exposed_ms", exposed_ms);
  if (exposed_ms > 0) { json.set("gb_per_s", static_cast<double>(sent_bytes) / exposed_ms * 1e-6); }
  json.set("wait_ms", Json::array({wait_ms.begin(), wait_ms.end()}));
  json.set("slowest", slowest);
  json.set("skew", skew);
  return json;
}

bool SkewWatch::add(const CommTimes& times) {
  const bool is_slow = times.is_timed && times.skew > kSkew;
  lines_ = !is_slow ? 0 : times.slowest == slowest_ ? lines_ + 1 : 1;
  slowest_ = times.slowest;
  if (lines_ < kLines || has_warned_) { return false; }
  has_warned_ = true;
  return true;
}

}  // namespace hebb
