#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace hebb {

/// The text of a system file; empty where there is none. Tests give texts of their own.
using ReadText = std::function<std::string(const std::string& path)>;
std::string read_system_file(const std::string& path);

/// The least of several limits.
struct MemoryLimit {
  int64_t bytes = std::numeric_limits<int64_t>::max();  // that are left
  std::string name;                                     // "/sys/fs/cgroup/a/memory.max"; empty: all of the machine
};
struct CpuLimit {
  double cores = std::numeric_limits<double>::infinity();
  std::string name;
};

/// Memory that is left to the control groups of this process and those above them, v1 and v2 (proc(5): cgroup and
/// mountinfo of /proc/self). Page cache that the kernel can drop counts as left.
MemoryLimit group_memory(const ReadText& read);
/// Their CPU time: cpu.max of v2, cpu.cfs_quota_us of v1.
CpuLimit group_cpus(const ReadText& read);

/// Limits of a process on its memory [bytes]; getrlimit(2).
struct ProcessLimits {
  int64_t address_space = std::numeric_limits<int64_t>::max();  // ulimit -v
  int64_t data = std::numeric_limits<int64_t>::max();           // ulimit -d
};
/// The least of what is free on the machine, of group_memory() and of what the limits of the process leave it.
MemoryLimit memory_left(const ReadText& read, const ProcessLimits& limits);
MemoryLimit memory_left();
/// " under NAME", or nothing where no limit but the machine holds.
std::string under(const MemoryLimit& limit);

/// Cores that this process may use: those of its affinity, and not more than group_cpus(), rounded up.
int usable_cores();
int cores_within(int affinity, const CpuLimit& limit);

/// Anonymous memory of a process, by its /proc/PID/status: what it holds itself, without files that it has mapped
/// [bytes].
int64_t own_memory_bytes(const ReadText& read);

/// Why a process that has so many memory maps cannot have `needed` more; empty where it can. limit: vm.max_map_count.
std::string maps_problem(int64_t needed, int64_t in_use, int64_t limit);
/// The same for this process.
std::string maps_problem(int64_t needed);

/// Raises the soft limit of open files to `needed` where it is lower. Errors: ConfigError naming `what` where the hard
/// limit is lower.
void require_open_files(const std::string& what, int64_t needed);

}  // namespace hebb
