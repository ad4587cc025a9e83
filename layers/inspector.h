#pragma once
// What layers tell about themselves during a pass.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hebb {

/// Decisions and scores that `hebb trace --inside` dumps and `--force` replaces.
/// Host memory; integers as int64, floats as double.
class Inspector {
 public:
  struct Record {
    std::vector<int64_t> shape;
    std::vector<int64_t> integers;  // one of the two is filled
    std::vector<double> reals;
  };
  bool recording = false;                 // --inside
  std::map<std::string, Record> records;  // by full name, e.g. "blocks.0.mixer.mask"
  std::map<std::string, Record> forced;   // --force

  const Record* force(const std::string& name) const {
    const auto it = forced.find(name);
    return it == forced.end() ? nullptr : &it->second;
  }
};

/// Statistics of one step by layer path and name ("blocks.2.memory" -> "gate_mean"), for
/// metrics.jsonl and TensorBoard.
using Statistics = std::map<std::string, std::map<std::string, double>>;

}  // namespace hebb
