#include "inspect/rank_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "comm/bucket_layout.h"
#include "comm/communicator.h"
#include "comm/lanes.h"
#include "comm/value_layout.h"
#include "core/progress.h"
#include "core/terminal.h"
#include "layers/model.h"

namespace hebb {
namespace {

struct Preset {
  const char* name;
  double gb_per_s;  // of a rank
};
constexpr Preset kInside[] = {{"nvlink", 330}, {"pcie", 20}};
constexpr Preset kOutside[] = {{"ib400", 42}, {"eth100", 1.25}};  // a card per GPU; a port per host of 8
constexpr double kLatencyInside = 20e-6, kLatencyOutside = 40e-6;
constexpr double kMemoryBytesPerSecond = 2.5e12;  // of a GPU, for AdamW

template <size_t n> double read_speed(const std::string& text, const Preset (&presets)[n], const std::string& whole) {
  for (const Preset& p : presets) {
    if (text == p.name) { return p.gb_per_s * 1e9; }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0)) {
    throw ConfigError("--link", "\"" + whole + "\"",
                      "IN:OUT, each a speed in GB/s or a preset (in: nvlink, pcie; out: ib400, eth100)");
  }
  return value * 1e9;
}

/// Bytes of an element of gradients as ranks send it.
int64_t sent_bytes(const TrainConfig& train) {
  const bool rounds = train.comm && train.comm->reduce == "bf16";
  return *train.precision == "fp64" ? 8 : rounds ? 2 : 4;
}

struct Sizes {
  std::vector<int64_t> trained, read_bytes;              // elements of each parameter; bytes of one as passes read it
  double parameters = 0, copied = 0, element_bytes = 4;  // copied: read as bf16 copies
  double sent_bytes = 4;                                 // of an element of the gradients
};

Sizes sizes_of(const RunConfig& config) {
  const Model model(config.model);
  const bool has_copies = config.train.precision == "bf16";
  Sizes sizes;
  sizes.element_bytes = config.train.precision == "fp64" ? 8 : 4;
  sizes.sent_bytes = static_cast<double>(sent_bytes(config.train));
  for (const auto& p : model.params().all()) {
    if (!p->trained()) { continue; }
    const int64_t n = p->spec.shape.numel();
    const bool is_copied = has_copies && p->is_matrix();
    sizes.trained.push_back(n);
    sizes.read_bytes.push_back(is_copied ? 2 : static_cast<int64_t>(sizes.element_bytes));
    sizes.parameters += static_cast<double>(n);
    sizes.copied += is_copied ? static_cast<double>(n) : 0;
  }
  return sizes;
}

/// Seconds to send `bytes` in `buckets` pieces among the ranks of a row.
double transfer(double bytes, const RankPlanRow& row, const LinkSpeed& link, double buckets) {
  const double hosts = row.hosts, here = row.ranks / hosts;
  double seconds = bytes * (here - 1) / here / link.in + buckets * (here > 1 ? kLatencyInside : 0);
  if (hosts > 1) { seconds += bytes / here * (hosts - 1) / hosts / link.out + buckets * kLatencyOutside; }
  return seconds;
}

struct Prediction {
  double step_seconds, exposed_seconds, efficiency;
};

/// What is sent beside a pass (docs/design/data-parallel.md).
struct Overlap {
  bool backward, forward;
};

Prediction predict(const RankPlanRow& row, const Sizes& s, const LinkSpeed& link, double buckets, double micro_seconds,
                   const Overlap& overlap) {
  const double m = static_cast<double>(row.micro_batches), b = s.element_bytes;
  // Value and both moments read and written, gradient read, copy written.
  const double adamw = (7 * b * s.parameters + 2 * s.copied) / kMemoryBytesPerSecond;
  double exposed = 0, slowed = 0;
  if (row.ranks > 1) {
    double backward = transfer(s.sent_bytes * s.parameters, row, link, buckets), forward = 0;
    if (row.zero == 1) {
      forward = transfer(2 * s.copied + b * (s.parameters - s.copied), row, link, buckets);
    } else {
      backward += transfer(b * s.parameters, row, link, buckets);
    }
    const auto rest = [&](bool is_beside, double seconds, double pass) {
      return is_beside ? std::max(seconds - 0.9 * pass, seconds / buckets) : seconds;
    };
    exposed = rest(overlap.backward, backward, micro_seconds * 2 / 3) +
              rest(overlap.forward, forward, micro_seconds / 3) + 1e-4;
    // Streaming multiprocessors that communication takes.
    const double beside = (overlap.backward ? backward : 0) + (overlap.forward ? forward : 0);
    slowed = 0.12 * std::min(beside, micro_seconds);
  }
  const double step = m * micro_seconds + slowed + exposed + adamw / row.ranks;
  return {step, exposed, (m * micro_seconds + adamw) / step};
}

}  // namespace

LinkSpeed read_link(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string out = colon == std::string::npos ? "ib400" : text.substr(colon + 1);
  return {read_speed(text.substr(0, colon), kInside, text), read_speed(out, kOutside, text)};
}

namespace {

/// What a run with so many ranks needs and sends. Sets lanes and `zero` of the configuration.
RankPlanRow plan_row(RunConfig& config, int ranks, bool has_zero, const BucketLayout& layout, const Sizes& sizes) {
  TrainConfig& train = config.train;
  if (!has_zero) { train.zero = ranks > 1 ? 1 : 0; }
  RankPlanRow row;
  row.ranks = ranks;
  row.zero = static_cast<int>(*train.zero);
  row.memory = plan_rank_memory(config, ranks);
  row.micro_batches = train.batch_size / (*train.micro_batch_size * ranks);
  // Sums of gradients to their owners; then all of them, or new values, from there to all.
  const int64_t gathered = row.zero == 1 ? ValueLayout(layout, ranks, sizes.read_bytes).bytes()
                                         : layout.size() * static_cast<int64_t>(sizes.element_bytes);
  row.reduce_bytes = layout.size() * sent_bytes(train) / ranks * (ranks - 1);
  row.gather_bytes = gathered * (ranks - 1) / ranks;
  return row;
}

void check_split(const RunConfig& config, const RankPlanOptions& options, int lanes) {
  check_lanes(lanes, options.ranks, config.place("train.lanes"));
  const int64_t micro = *config.train.micro_batch_size, group = micro * lanes;
  if (config.train.batch_size % group != 0) {
    throw config.error("train.batch_size", std::to_string(config.train.batch_size),
                       fmt::format("a multiple of {:d} = {:d} lanes x train.micro_batch_size {:d}; {}", group, lanes,
                                   micro, micro_batches_that_divide(config.train.batch_size, lanes)));
  }
}

}  // namespace

RankPlan plan_ranks(RunConfig config, const RankPlanOptions& options) {
  const int per_host = options.ranks_per_host > 0 ? std::min(options.ranks_per_host, options.ranks) : options.ranks;
  if (options.ranks % per_host != 0) {
    throw ConfigError("--ranks-per-host", std::to_string(per_host),
                      fmt::format("a divisor of --ranks {:d}", options.ranks));
  }
  const int lanes = static_cast<int>(config.train.lanes.value_or(options.ranks));
  check_split(config, options, lanes);
  if (lanes > 1) { config.train.lanes = lanes; }
  const bool has_zero = !config.where("train.zero").empty();
  const Sizes s = sizes_of(config);
  const BucketLayout layout(s.trained, lanes, config.train.comm.value_or(CommConfig{}).bucket_mib);
  RankPlan plan;
  plan.lanes = lanes;
  const bool has_one_lane_a_rank = !Model(config.model).needs_all_rows().empty();
  plan.allowed = has_one_lane_a_rank ? std::vector<int>{options.ranks} : allowed_sizes(lanes);
  plan.buckets = layout.buckets();
  plan.steps = config.train.steps;
  std::optional<double> tokens_per_s = options.tokens_per_s;
  if (options.tflops) {
    tokens_per_s = *options.tflops * 1e12 / (3 * Model(config.model).flops_per_token(config.train.sequence_length));
  }
  plan.is_timed = tokens_per_s.has_value();
  for (const int ranks : plan.allowed) {
    if (ranks > options.ranks) { break; }
    RankPlanRow row = plan_row(config, ranks, has_zero, layout, s);
    row.hosts = (ranks + per_host - 1) / per_host;
    if (tokens_per_s) {
      const int64_t tokens = *config.train.micro_batch_size * config.train.sequence_length;
      const double micro_seconds = static_cast<double>(tokens) / *tokens_per_s;
      const bool overlaps = config.train.comm.value_or(CommConfig{}).overlap.value_or(true);  // as on GPUs
      const Prediction p = predict(row, s, options.link, static_cast<double>(plan.buckets), micro_seconds,
                                   {.backward = overlaps && ranks == lanes, .forward = overlaps});
      row.step_seconds = p.step_seconds;
      row.exposed_seconds = p.exposed_seconds;
      row.efficiency = p.efficiency;
    }
    plan.rows.push_back(std::move(row));
  }
  return plan;
}

Json RankPlan::json() const {
  Json list = Json::array();
  for (const RankPlanRow& r : rows) {
    Json row = Json::object({{"ranks", r.ranks},
                             {"hosts", r.hosts},
                             {"micro_batches", r.micro_batches},
                             {"reduce_bytes", r.reduce_bytes},
                             {"gather_bytes", r.gather_bytes},
                             {"zero", r.zero},
                             {"memory", r.memory.json()}});
    if (is_timed) {
      row.set("step_ms", 1e3 * r.step_seconds);
      row.set("exposed_ms", 1e3 * r.exposed_seconds);
      row.set("efficiency", r.efficiency);
      row.set("hours", static_cast<double>(steps) * r.step_seconds / 3600);
    }
    list.push(row);
  }
  return Json::object({{"lanes", lanes},
                       {"allowed_ranks", Json::array({allowed.begin(), allowed.end()})},
                       {"buckets", buckets},
                       {"rows", list}});
}

std::string RankPlan::text(int columns) const {
  std::string t = fmt::format("\nranks with the same bits, for {} lanes: {}; {} buckets\n", lanes,
                              fmt::join(allowed, ", "), buckets);
  std::vector<std::vector<std::string>> lines{
      {"ranks", "hosts", "zero", "micro-batches", "reduce sent", "gather sent", "state", "memory"}};
  if (is_timed) { lines[0].insert(lines[0].end(), {"step ms", "exposed", "efficiency", "run", "GPU hours"}); }
  for (const RankPlanRow& r : rows) {
    const auto bytes = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
    std::vector<std::string> line{std::to_string(r.ranks),         std::to_string(r.hosts),      std::to_string(r.zero),
                                  std::to_string(r.micro_batches), bytes(r.reduce_bytes),        bytes(r.gather_bytes),
                                  bytes(r.memory.state_bytes()),   bytes(r.memory.total_bytes())};
    if (is_timed) {
      const double hours = static_cast<double>(steps) * r.step_seconds / 3600;
      line.insert(line.end(),
                  {fmt::format("{:.1f}", 1e3 * r.step_seconds), fmt::format("{:.2f}", 1e3 * r.exposed_seconds),
                   fmt::format("{:.1f}%", 100 * r.efficiency), format_duration(3600 * hours),
                   fmt::format("{:.4g}", hours * r.ranks)});
    }
    lines.push_back(std::move(line));
  }
  t += text_table(lines, columns);
  t += is_timed
           ? "Predicted, not measured. Efficiency: against one rank with as many micro-batches, which updates all\n"
             "parameters alone; with train.zero ranks share that work, so it may be above 100 %.\n"
           : "--tokens-per-s or --tflops, the speed of one device, adds times.\n";
  return t;
}

}  // namespace hebb
