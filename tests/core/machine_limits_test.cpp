#include "core/machine_limits.h"

#include <map>

#include "core/error.h"
#include "tests/test.h"

namespace hebb {
namespace {

constexpr int64_t kMiB = 1 << 20, kNone = std::numeric_limits<int64_t>::max();

/// A machine with these files and no others.
ReadText machine(std::map<std::string, std::string> files) {
  return [files = std::move(files)](const std::string& path) {
    const auto at = files.find(path);
    return at != files.end() ? at->second : std::string();
  };
}

const char* const kMountV2 =
    "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
const char* const kMountsV1 =
    "30 22 0:26 / /sys/fs/cgroup/memory rw shared:4 - cgroup cgroup rw,memory\n"
    "31 22 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n";

}  // namespace

TEST_CASE("the least of the limits of nested groups holds", "[fast]") {
  const auto limit = [](const std::string& outer, const std::string& middle, const std::string& own) {
    return group_memory(
        machine({{"/proc/self/cgroup", "0::/slurm/job_7/step_0\n"},
                 {"/proc/self/mountinfo", kMountV2},
                 {"/sys/fs/cgroup/slurm/memory.max", outer},
                 {"/sys/fs/cgroup/slurm/memory.current", "0"},
                 {"/sys/fs/cgroup/slurm/job_7/memory.max", middle},
                 {"/sys/fs/cgroup/slurm/job_7/memory.current", "52428800\n"},
                 {"/sys/fs/cgroup/slurm/job_7/memory.stat", "file 9\nactive_file 7340032\ninactive_file 3145728\n"},
                 {"/sys/fs/cgroup/slurm/job_7/step_0/memory.max", own}}));
  };
  CHECK(limit("max\n", "max\n", "max\n").bytes == kNone);
  CHECK(limit("max\n", "max\n", "max\n").name.empty());
  const MemoryLimit middle = limit("max\n", "209715200\n", "max\n");
  CHECK(middle.bytes == (200 - 50 + 10) * kMiB);
  CHECK(middle.name == "/sys/fs/cgroup/slurm/job_7/memory.max");
  CHECK(limit("104857600\n", "209715200\n", "max\n").name == "/sys/fs/cgroup/slurm/memory.max");
  CHECK(limit("104857600\n", "209715200\n", "8388608\n").bytes == 8 * kMiB);
  CHECK(limit("max\n", "1048576\n", "max\n").bytes == 0);  // more is in use than allowed
}

TEST_CASE("groups of version 1 have limits of their own, and both versions may be mounted", "[fast]") {
  std::map<std::string, std::string> files = {
      {"/proc/self/cgroup", "9:cpu,cpuacct:/a/b\n4:memory:/a/b\n1:name=systemd:/x\n0::/x\n"},
      {"/proc/self/mountinfo",
       std::string(kMountsV1) + "33 22 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "209715200\n"},
      {"/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "41943040\n"},
      {"/sys/fs/cgroup/memory/a/memory.stat",
       "inactive_file 4\nactive_file 5\ntotal_inactive_file 10485760\ntotal_active_file 10485760\n"},
      {"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"}};
  const MemoryLimit memory = group_memory(machine(files));
  CHECK(memory.bytes == (200 - 40 + 20) * kMiB);
  CHECK(memory.name == "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
  const CpuLimit cpus = group_cpus(machine(files));
  CHECK(cpus.cores == 0.5);
  CHECK(cpus.name == "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us");
  files["/sys/fs/cgroup/unified/x/memory.max"] = "1048576\n";
  CHECK(group_memory(machine(files)).bytes == kMiB);
}

TEST_CASE("a group that is slowed down past a limit has no more memory than that, at every level", "[fast]") {
  const auto limit = [](const std::string& outer, const std::string& own) {
    return group_memory(machine({{"/proc/self/cgroup", "0::/kubepods/pod_1\n"},
                                 {"/proc/self/mountinfo", kMountV2},
                                 {"/sys/fs/cgroup/kubepods/memory.max", "max\n"},
                                 {"/sys/fs/cgroup/kubepods/memory.high", outer},
                                 {"/sys/fs/cgroup/kubepods/pod_1/memory.max", "104857600\n"},
                                 {"/sys/fs/cgroup/kubepods/pod_1/memory.high", own},
                                 {"/sys/fs/cgroup/kubepods/pod_1/memory.current", "1048576\n"}}));
  };
  CHECK(limit("max\n", "max\n").name == "/sys/fs/cgroup/kubepods/pod_1/memory.max");
  CHECK(limit("max\n", "max\n").bytes == 99 * kMiB);
  CHECK(limit("max\n", "94371840\n").name == "/sys/fs/cgroup/kubepods/pod_1/memory.high");
  CHECK(limit("max\n", "94371840\n").bytes == 89 * kMiB);
  CHECK(limit("4194304\n", "94371840\n").name == "/sys/fs/cgroup/kubepods/memory.high");
  CHECK(limit("4194304\n", "94371840\n").bytes == 4 * kMiB);
}

TEST_CASE("the limits of a group are compared with one reading of what it uses", "[fast]") {
  const ReadText files = machine({{"/proc/self/cgroup", "0::/a\n"},
                                  {"/proc/self/mountinfo", kMountV2},
                                  {"/sys/fs/cgroup/a/memory.max", "104857600\n"},
                                  {"/sys/fs/cgroup/a/memory.high", "94371840\n"},
                                  {"/sys/fs/cgroup/a/memory.current", "1048576\n"},
                                  {"/sys/fs/cgroup/a/memory.stat", "inactive_file 1024\n"}});
  std::map<std::string, int> readings;
  group_memory([&](const std::string& path) {
    ++readings[path];
    return files(path);
  });
  CHECK(readings["/sys/fs/cgroup/a/memory.current"] == 1);
  CHECK(readings["/sys/fs/cgroup/a/memory.stat"] == 1);
}

TEST_CASE("namespaces and mounts of a part of the groups", "[fast]") {
  const auto name = [](const std::string& path, const std::string& root, const std::string& mount) {
    return group_memory(machine({{"/proc/self/cgroup", "0::" + path + "\n"},
                                 {"/proc/self/mountinfo", "30 22 0:26 " + root + " " + mount + " rw - cgroup2 c rw\n"},
                                 {"/cg/memory.max", "100"},
                                 {"/cg/in/memory.max", "50"},
                                 {"/cg/docker/1/memory.max", "10"},
                                 {"/c g/memory.max", "70"}}))
        .name;
  };
  CHECK(name("/docker/1/in", "/docker/1", "/cg") == "/cg/in/memory.max");  // the container's group is the mount's root
  CHECK(name("/docker/1", "/docker/1", "/cg") == "/cg/memory.max");
  CHECK(name("/docker/11", "/docker/1", "/cg") == "/cg/memory.max");  // not below it
  CHECK(name("/", "/", "/cg") == "/cg/memory.max");
  CHECK(name("/../other", "/", "/cg") == "/cg/memory.max");  // outside of the namespace
  CHECK(name("/in", "/..", "/cg") == "/cg/memory.max");      // mounted outside of it
  CHECK(name("/", "/", "/c\\040g") == "/c g/memory.max");
  CHECK(name("/none/there", "/", "/cg") == "/cg/memory.max");  // a folder that this process cannot see
}

TEST_CASE("a machine without control groups has no such limits", "[fast]") {
  CHECK(group_memory(machine({})).bytes == kNone);
  CHECK(
      group_cpus(machine({{"/proc/self/cgroup", "junk\n:\n"}, {"/proc/self/mountinfo", "junk\n - \n"}})).name.empty());
  CHECK(memory_left(machine({}), {}).bytes == kNone);
  CHECK(own_memory_bytes(machine({})) == 0);
}

TEST_CASE("cores are those of affinity and of the groups' quota, rounded up", "[fast]") {
  const auto cores = [](const std::string& quota, int affinity) {
    return cores_within(affinity, group_cpus(machine({{"/proc/self/cgroup", "0::/a\n"},
                                                      {"/proc/self/mountinfo", kMountV2},
                                                      {"/sys/fs/cgroup/a/cpu.max", quota}})));
  };
  CHECK(cores("max 100000\n", 8) == 8);
  CHECK(cores("50000 100000\n", 8) == 1);
  CHECK(cores("150000 100000\n", 8) == 2);
  CHECK(cores("400000 100000\n", 2) == 2);
  CHECK(cores("1000 100000\n", 8) == 1);
  CHECK(cores("", 3) == 3);
  CHECK(cores("50000", 3) == 3);
}

TEST_CASE("what is left is the least of machine, groups and limits of the process, and has its name", "[fast]") {
  std::map<std::string, std::string> files = {
      {"/proc/meminfo", "MemTotal: 4096 kB\nMemAvailable:  2048 kB\nSwapFree: 1024 kB\n"},
      {"/proc/self/status",
       "VmPeak: 900 kB\nVmSize:  512 kB\nVmData: 256 kB\nRssAnon:\t  10 kB\nRssFile: 90 kB\nRssShmem: 5 kB\n"},
      {"/proc/self/cgroup", "0::/a\n"},
      {"/proc/self/mountinfo", kMountV2}};
  const auto left = [&](const ProcessLimits& limits) { return memory_left(machine(files), limits); };
  CHECK(left({}).bytes == 3072 * 1024);
  CHECK(under(left({})).empty());
  CHECK(left({.address_space = 2048 * 1024}).bytes == (2048 - 512) * 1024);
  CHECK(under(left({.address_space = 2048 * 1024})) == " under ulimit -v");
  CHECK(left({.address_space = 2048 * 1024, .data = 1024 * 1024}).name == "ulimit -d");
  CHECK(left({.data = 1024 * 1024}).bytes == (1024 - 256) * 1024);
  CHECK(left({.address_space = 1}).bytes == 0);
  CHECK(left({.address_space = 1 << 30}).name.empty());
  files["/sys/fs/cgroup/a/memory.max"] = "1048576";
  CHECK(left({.address_space = 2048 * 1024}).name == "/sys/fs/cgroup/a/memory.max");
  CHECK(own_memory_bytes(machine(files)) == 15 * 1024);
}

TEST_CASE("this process has memory, cores, and open files", "[fast]") {
  CHECK(memory_left().bytes > 0);
  CHECK(usable_cores() >= 1);
  CHECK(own_memory_bytes(read_system_file) > 0);
  require_open_files("test", 8);
  CHECK_THROWS_WITH(require_open_files("--ranks", kNone),
                    Contains("--ranks: too few files may be open (found ") &&
                        Contains("ulimit -n, expected at least 9223372036854775807"));
}

TEST_CASE("more files than memory maps are a problem with its numbers", "[fast]") {
  CHECK(maps_problem(65330, 200, 65530).empty());
  CHECK_THAT(maps_problem(140000, 330, 65530), Contains("needs 140000 memory maps") &&
                                                   Contains("found 330 in use, expected at most 65530") &&
                                                   Contains("vm.max_map_count=175412") && Contains("--shard-tokens"));
  CHECK(maps_problem(1).empty());
  CHECK_FALSE(maps_problem(int64_t{1} << 40).empty());
}

}  // namespace hebb
