#include "study/ladder/cluster_config.h"

#include <algorithm>

#include "core/error.h"

namespace hebb {

void fields(Fields& f, ClusterConfig& c) {
  f.field("partition", c.partition).help("Partition (queue) of the jobs.");
  f.field("account", c.account).help("Account that pays.");
  f.field("qos", c.qos).help("Quality of service.");
  f.field("time", c.time).help("Time limit of a job, in Slurm's format: 30 (minutes), 12:00:00, 2-00:00:00.");
  f.field("memory", c.memory).help("Memory of a node: 32G.");
  f.field("ranks", c.ranks).min(1).max(kMostRanks).help("Processes that train a run together.");
  f.field("nodes", c.nodes).min(1).help("Nodes that they are spread over.");
  f.field("cpus", c.cpus).min(1).help("Cores of a rank.");
  f.field("gpus", c.gpus).min(0).help("GPUs of a rank.");
  f.field("stop_seconds", c.stop_seconds).min(0).max(65535).help("A run saves so long before the time limit.");
  f.field("setup", c.setup).help("Shell lines before hebb starts; a command of them that fails ends the job.");
  f.field("start", c.start).help("Words before hebb that start several ranks.");
  f.field("options", c.options).help("Further words for sbatch.");
}

std::string setup_lines(const ClusterConfig& cluster) {
  if (cluster.setup.empty()) { return ""; }
  return "trap 'echo \"hebb ladder: cluster.setup failed with exit code $?\" >&2' EXIT\nset -e\n" + cluster.setup +
         "\nset +e\ntrap - EXIT\n";
}

ClusterConfig read_cluster(const Json& cluster, const std::vector<std::string>& overrides) {
  Json merged = cluster;
  for (const std::string& word : overrides) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw ConfigError("hebb ladder --cluster", "\"" + word + "\"", "KEY=VALUE");
    }
    const std::string key = word.substr(0, equals), text = word.substr(equals + 1);
    static const std::vector<std::string> numbers = {"ranks", "nodes", "cpus", "gpus", "stop_seconds"};
    Json value(text);
    if (std::find(numbers.begin(), numbers.end(), key) != numbers.end()) {
      value = parse_json(text, "hebb ladder --cluster " + word);
    } else if (key == "options") {
      value = Json::array();
      value.push(Json(text));
    }
    value.set_origin({}, {});
    merged.set(key, value);
  }
  return Fields::read<ClusterConfig>(merged, "cluster");
}

}  // namespace hebb
