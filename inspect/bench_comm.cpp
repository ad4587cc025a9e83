#include "inspect/bench_comm.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>

#include "comm/bucket_layout.h"
#include "comm/host_exchange.h"
#include "comm/ordered_reduce.h"
#include "core/elapsed.h"
#include "core/progress.h"
#include "core/quantile.h"

namespace hebb {
namespace {

/// One size: buffers, and the collectives over them.
class CommRound {
 public:
  CommRound(Communicator& communicator, int64_t elements, const ReduceScatter& reduce_scatter)
      : communicator_(communicator),
        host_(communicator, DeviceKind::cpu),
        each_(elements / communicator.size()),
        whole_(arena_, {elements}, DType::f32, "bucket"),
        other_(arena_, {elements}, DType::f32, "received") {
    fill_zero(stream_, whole_);
    fill_zero(stream_, other_);
    const int64_t own = communicator.rank() * each_;
    add("all-to-all", [this] { communicator_.all_to_all(stream_, other_, whole_); });
    add("ordered reduction", [this, own] {
      reduce_bucket(communicator_, Workspace(stream_, work_, "reduction"), whole_.tensor().slice(own, {each_}), whole_,
                    whole_.tensor().dtype);
    });
    if (reduce_scatter) {
      add("MPI_Reduce_scatter",
          [this, reduce_scatter] { reduce_scatter(other_.tensor().as<float>(), whole_.tensor().as<float>(), each_); });
    }
    add("all-gather", [this, own] { communicator_.all_gather(stream_, whole_, whole_.tensor().slice(own, {each_})); });
  }

  std::vector<CommSpeed> measure(double seconds) {
    run_all();  // memory and connections of first use
    const double first = run_all();
    const double wanted = seconds * static_cast<double>(parts_.size()) / std::max(first, 1e-6);
    for (auto& part : parts_) { part.ms.clear(); }
    for (int64_t i = 0, n = static_cast<int64_t>(std::clamp(wanted, 5.0, 500.0)); i < n; ++i) { run_all(); }
    std::vector<CommSpeed> speeds;
    for (Part& part : parts_) {
      std::sort(part.ms.begin(), part.ms.end());
      const auto bytes = whole_.tensor().bytes(), sent = bytes - bytes / communicator_.size();
      speeds.push_back({.name = part.name,
                        .bytes = bytes,
                        .best_ms = part.ms.front(),
                        .median_ms = quantile(part.ms, 0.5),
                        .sent_bytes = static_cast<double>(sent)});
    }
    return speeds;
  }

 private:
  struct Part {
    const char* name;
    std::function<void()> run;
    std::vector<double> ms{};
  };
  void add(const char* name, std::function<void()> run) { parts_.push_back({name, std::move(run)}); }

  /// Seconds of all together; the same on all ranks.
  double run_all() {
    double sum = 0;
    for (Part& part : parts_) {
      communicator_.barrier(stream_);
      const auto begin = std::chrono::steady_clock::now();
      part.run();
      const uint64_t word = std::bit_cast<uint64_t>(seconds_since(begin));
      double longest = 0;
      for (const uint64_t other : host_.gather({&word, 1})) {
        longest = std::max(longest, std::bit_cast<double>(other));
      }
      part.ms.push_back(1e3 * longest);
      sum += longest;
    }
    return sum;
  }

  Communicator& communicator_;
  HostExchange host_;
  Stream stream_;
  Arena arena_{DeviceKind::cpu, "buckets"}, work_{DeviceKind::cpu, "work memory"};
  int64_t each_;
  Buffer whole_, other_;
  std::vector<Part> parts_;
};

}  // namespace

std::vector<CommSpeed> measure_comm(Communicator& communicator, const CommBench& bench) {
  std::vector<int64_t> sizes;
  for (const int64_t bytes : bench.sizes) {
    const int64_t unit = BucketLayout::kBlock * communicator.size();
    sizes.push_back((bytes / 4 + unit - 1) / unit * unit);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::vector<CommSpeed> speeds;
  for (const int64_t elements : sizes) {
    const auto measured = CommRound(communicator, elements, bench.reduce_scatter).measure(bench.seconds);
    speeds.insert(speeds.end(), measured.begin(), measured.end());
  }
  return speeds;
}

Json to_json(const std::vector<CommSpeed>& speeds) {
  Json list = Json::array();
  for (const CommSpeed& s : speeds) {
    list.push(Json::object({{"name", s.name},
                            {"bytes", s.bytes},
                            {"sent_bytes", s.sent_bytes},
                            {"best_ms", s.best_ms},
                            {"median_ms", s.median_ms},
                            {"gb_per_s", s.gb_per_s()}}));
  }
  return list;
}

std::string describe(const std::vector<CommSpeed>& speeds, int ranks, const std::string& engine) {
  std::string text = fmt::format("{} ranks, {}\n{:<20} {:>12} {:>10} {:>10} {:>8}\n", ranks, engine, "", "bytes",
                                 "best ms", "median ms", "GB/s");
  double exchange = 0;
  for (const CommSpeed& s : speeds) {
    text += fmt::format("{:<20} {:>12} {:>10.3f} {:>10.3f} {:>8.2f}\n", s.name,
                        format_bytes(static_cast<double>(s.bytes)), s.best_ms, s.median_ms, s.gb_per_s());
    if (s.name == "all-to-all") { exchange = s.gb_per_s(); }
  }
  for (size_t i = 0; i + 1 < speeds.size(); ++i) {
    if (speeds[i].name == "ordered reduction" && speeds[i + 1].name == "MPI_Reduce_scatter") {
      text += fmt::format("ordered reduction of {}: {:.2f} of the time of MPI_Reduce_scatter\n",
                          format_bytes(static_cast<double>(speeds[i].bytes)),
                          speeds[i].median_ms / speeds[i + 1].median_ms);
    }
  }
  return text + fmt::format("for hebb plan: --link {:.3g}\n", exchange);
}

}  // namespace hebb
