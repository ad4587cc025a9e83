#include "train/rank_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace hebb {
namespace {

/// "score_mean" of "score_std".
std::string mean_beside(const std::string& deviation) { return deviation.substr(0, deviation.size() - 3) + "mean"; }

void join(Statistics& step, const Statistics& part, double count) {
  for (const auto& [layer, values] : part) {
    for (const auto& [name, value] : values) {
      const auto [entry, is_first] = step[layer].try_emplace(name, 0.0);
      double& joined = entry->second;
      if (name.ends_with("_min")) {
        joined = is_first ? value : std::min(joined, value);
      } else if (name.ends_with("_max")) {
        joined = is_first ? value : std::max(joined, value);
      } else if (name.ends_with("_std")) {
        const double mean = values.at(mean_beside(name));
        joined += (value * value + mean * mean) / count;
      } else {
        joined += value / count;
      }
    }
  }
}

void finish_deviations(Statistics& step) {
  for (auto& [layer, values] : step) {
    for (auto& [name, value] : values) {
      if (name.ends_with("_std")) {
        const double mean = values.at(mean_beside(name));
        value = std::sqrt(std::max(0.0, value - mean * mean));
      }
    }
  }
}

// One value a record: layer and name, each ended by a zero byte, then the 8 bytes of the value. A micro-batch ends with
// an empty layer.
std::string pack(const std::vector<Statistics>& micro_batches) {
  std::string text;
  for (const Statistics& statistics : micro_batches) {
    for (const auto& [layer, values] : statistics) {
      for (const auto& [name, value] : values) {
        text.append(layer).append(1, '\0').append(name).append(1, '\0');
        text.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
    }
    text.append(1, '\0');
  }
  return text;
}

std::vector<Statistics> unpack(const std::string& text) {
  std::vector<Statistics> micro_batches;
  Statistics statistics;
  for (size_t at = 0; at < text.size();) {
    const std::string layer = text.c_str() + at;
    at += layer.size() + 1;
    if (layer.empty()) {
      micro_batches.push_back(std::move(statistics));
      statistics.clear();
      continue;
    }
    const std::string name = text.c_str() + at;
    at += name.size() + 1;
    double value = 0;
    std::memcpy(&value, text.data() + at, sizeof value);
    at += sizeof value;
    statistics[layer][name] = value;
  }
  return micro_batches;
}

}  // namespace

std::vector<Statistics> gather_statistics(HostExchange& ranks, const std::vector<Statistics>& own, int own_lanes) {
  if (ranks.communicator().size() == 1) { return own; }
  std::vector<std::vector<Statistics>> by_rank;
  for (const std::string& text : ranks.gather_texts(pack(own))) { by_rank.push_back(unpack(text)); }
  std::vector<Statistics> all;
  const auto lanes = static_cast<size_t>(own_lanes);
  for (size_t group = 0; group < own.size(); group += lanes) {
    for (const std::vector<Statistics>& rank : by_rank) {
      for (size_t lane = 0; lane < lanes; ++lane) { all.push_back(rank[group + lane]); }
    }
  }
  return all;
}

Statistics join_statistics(const std::vector<Statistics>& micro_batches) {
  Statistics step;
  for (const Statistics& part : micro_batches) { join(step, part, static_cast<double>(micro_batches.size())); }
  finish_deviations(step);
  return step;
}

}  // namespace hebb
