#include "core/machine_limits.h"

#include <fmt/core.h>

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "core/error.h"

namespace hebb {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

/// The first number of a text; nothing for "max" and for no text.
std::optional<int64_t> number(const std::string& text) {
  std::istringstream words(text);
  int64_t value = 0;
  return words >> value ? std::optional(value) : std::nullopt;
}

/// The number behind `key` in lines "key value".
std::optional<int64_t> number_of(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key) && line.size() > key.size() && std::isspace(line[key.size()])) {
      return number(line.substr(key.size()));
    }
  }
  return std::nullopt;
}

bool lists(const std::string& words, const std::string& word) {
  std::istringstream in(words);
  for (std::string w; std::getline(in, w, ',');) {
    if (w == word) { return true; }
  }
  return false;
}

/// mountinfo writes blanks and backslashes of paths as \040.
std::string without_escapes(const std::string& text) {
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '\\' && i + 3 < text.size();
    path += is_escape ? static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8)) : text[i];
    i += is_escape ? 3 : 0;
  }
  return path;
}

/// The folders of a process' group and of those above it.
struct Hierarchy {
  bool is_v2 = false;
  std::vector<std::string> folders;  // its own first
};

/// The path of this process' group in a hierarchy; nothing where it is in none. controller: of v1; empty: v2.
std::optional<std::string> group_path(const std::string& cgroup, const std::string& controller) {
  std::istringstream lines(cgroup);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) { continue; }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() : lists(controllers, controller)) { return line.substr(second + 1); }
  }
  return std::nullopt;
}

/// `path` below `root`. A group outside of what is mounted has the limits of the mount's own folder at least.
std::string below(const std::string& root, const std::string& path) {
  if (path.find("/..") != std::string::npos) { return ""; }
  if (root == "/") { return path == "/" ? "" : path; }
  const bool is_below = path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
  return is_below ? path.substr(root.size()) : "";
}

std::vector<std::string> upwards(const std::string& mount, std::string path) {
  std::vector<std::string> folders;
  for (; !path.empty(); path.erase(path.rfind('/'))) { folders.push_back(mount + path); }
  folders.push_back(mount);
  return folders;
}

/// v1 and v2 may both be mounted; a controller is in one of them.
std::vector<Hierarchy> hierarchies(const ReadText& read, const std::string& controller) {
  const std::string cgroup = read("/proc/self/cgroup");
  std::vector<Hierarchy> found;
  std::istringstream lines(read("/proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    const size_t separator = line.find(" - ");
    if (separator == std::string::npos) { continue; }
    std::istringstream before(line), after(line.substr(separator + 3));
    std::string skipped, root, mount, type, source, options;
    before >> skipped >> skipped >> skipped >> root >> mount;
    after >> type >> source >> options;
    const bool is_v2 = type == "cgroup2";
    if (!is_v2 && (type != "cgroup" || !lists(options, controller))) { continue; }
    if (const auto path = group_path(cgroup, is_v2 ? "" : controller)) {
      found.push_back({is_v2, upwards(without_escapes(mount), below(without_escapes(root), *path))});
    }
  }
  return found;
}

/// What a group uses and the kernel cannot drop [bytes].
int64_t held_memory(const ReadText& read, const std::string& folder, bool is_v2) {
  const int64_t used = number(read(folder + (is_v2 ? "/memory.current" : "/memory.usage_in_bytes"))).value_or(0);
  const std::string statistics = read(folder + "/memory.stat");
  const std::string total = is_v2 ? "" : "total_";  // v1: with the groups below
  int64_t cache = 0;                                // of files; what is shared memory is in neither
  for (const char* key : {"inactive_file", "active_file"}) { cache += number_of(statistics, total + key).value_or(0); }
  return used - std::min(used, cache);
}

void lower(MemoryLimit& least, int64_t bytes, const std::string& name) {
  if (bytes < least.bytes) { least = {std::max<int64_t>(0, bytes), name}; }
}

}  // namespace

std::string read_system_file(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

MemoryLimit group_memory(const ReadText& read) {
  MemoryLimit least;
  for (const Hierarchy& h : hierarchies(read, "memory")) {
    // Past memory.high the kernel slows a process down until it stands still: no run goes on there.
    const std::vector<const char*> files =
        h.is_v2 ? std::vector{"/memory.max", "/memory.high"} : std::vector{"/memory.limit_in_bytes"};
    for (const std::string& folder : h.folders) {
      std::optional<int64_t> held;  // one reading: the limits of a group are compared with the same
      for (const char* file : files) {
        const auto limit = number(read(folder + file));
        if (!limit || *limit >= (kNone >> 1)) { continue; }  // v1 writes a number near 2^63 for none
        if (!held) { held = held_memory(read, folder, h.is_v2); }
        lower(least, *limit - *held, folder + file);
      }
    }
  }
  return least;
}

CpuLimit group_cpus(const ReadText& read) {
  CpuLimit least;
  for (const Hierarchy& h : hierarchies(read, "cpu")) {
    const std::string file = h.is_v2 ? "/cpu.max" : "/cpu.cfs_quota_us";
    for (const std::string& folder : h.folders) {
      const std::string text = read(folder + file);  // v2: "QUOTA PERIOD"
      const auto quota = number(text);
      const size_t second = text.find(' ');
      const auto period =
          number(h.is_v2 ? text.substr(std::min(second, text.size())) : read(folder + "/cpu.cfs_period_us"));
      if (!quota || *quota <= 0 || !period || *period <= 0) { continue; }
      const double cores = static_cast<double>(*quota) / static_cast<double>(*period);
      if (cores < least.cores) { least = {cores, folder + file}; }
    }
  }
  return least;
}

MemoryLimit memory_left(const ReadText& read, const ProcessLimits& limits) {
  MemoryLimit least;
  const std::string machine = read("/proc/meminfo"), status = read("/proc/self/status");
  if (const auto free_kib = number_of(machine, "MemAvailable:")) {
    least.bytes = (*free_kib + number_of(machine, "SwapFree:").value_or(0)) * 1024;
  }
  if (const MemoryLimit group = group_memory(read); group.bytes < least.bytes) { least = group; }
  const auto used = [&](const char* key) { return number_of(status, key).value_or(0) * 1024; };
  if (limits.address_space != kNone) { lower(least, limits.address_space - used("VmSize:"), "ulimit -v"); }
  if (limits.data != kNone) { lower(least, limits.data - used("VmData:"), "ulimit -d"); }
  return least;
}

MemoryLimit memory_left() {
  const auto of = [](auto resource) {
    rlimit limit{};
    const bool is_set = ::getrlimit(resource, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(kNone);
    return is_set ? static_cast<int64_t>(limit.rlim_cur) : kNone;
  };
  return memory_left(read_system_file, {.address_space = of(RLIMIT_AS), .data = of(RLIMIT_DATA)});
}

std::string under(const MemoryLimit& limit) { return limit.name.empty() ? "" : " under " + limit.name; }

int cores_within(int affinity, const CpuLimit& limit) {
  return limit.cores < affinity ? std::max(1, static_cast<int>(std::ceil(limit.cores))) : std::max(1, affinity);
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool has_affinity = ::sched_getaffinity(0, sizeof(set), &set) == 0;
  const int affinity = has_affinity ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
  return cores_within(affinity, group_cpus(read_system_file));
}

int64_t own_memory_bytes(const ReadText& read) {
  const std::string status = read("/proc/self/status");
  return (number_of(status, "RssAnon:").value_or(0) + number_of(status, "RssShmem:").value_or(0)) * 1024;
}

std::string maps_problem(int64_t needed, int64_t in_use, int64_t limit) {
  if (needed <= limit - in_use) { return ""; }
  return fmt::format(
      "needs {:d} memory maps, one a file (found {:d} in use, expected at most {:d} with them, vm.max_map_count); "
      "larger shards need fewer (hebb data encode --shard-tokens), or sysctl -w vm.max_map_count={:d}",
      needed, in_use, limit, (in_use + needed) * 5 / 4);
}

std::string maps_problem(int64_t needed) {
  constexpr int64_t kSpare = 200;  // of libraries, threads and memory that come later
  const auto limit = number(read_system_file("/proc/sys/vm/max_map_count"));
  if (!limit || needed < *limit / 16) { return ""; }  // far from it: the list of maps need not be read
  const std::string maps = read_system_file("/proc/self/maps");
  return maps_problem(needed, std::count(maps.begin(), maps.end(), '\n') + kSpare, *limit);
}

void require_open_files(const std::string& what, int64_t needed) {
  rlimit limit{};
  const auto wanted = static_cast<rlim_t>(needed);
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) { return; }
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < wanted) {
    throw ConfigError(what, fmt::format("too few files may be open (found {:d}, ulimit -n, expected at least {:d}); "
                                        "raise the hard limit",
                                        limit.rlim_max, needed));
  }
}

}  // namespace hebb
