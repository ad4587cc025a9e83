#pragma once
// Faults of the system in processes that a test starts, and what they leave.
#include <signal.h>
#include <sys/mount.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "core/files.h"
#include "tests/paths.h"
#include "tests/skip.h"
#include "tests/test.h"

namespace hebb::testing {

/// While it lives, processes that start here carry a fault. rank: on one rank alone.
class Fault {
 public:
  ~Fault() {
    for (const std::string& name : names_) { ::unsetenv(name.c_str()); }
  }
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;

  /// `signal` comes in front of the call-th of the calls that open for writing, write, flush, rename or remove below
  /// `folder`.
  static Fault at_call(const fs::path& folder, int call, int signal, const std::string& rank = "") {
    return Fault({{"FAULT_FOLDER", folder.string()},
                  {"FAULT_CALL", std::to_string(call)},
                  {"FAULT_SIGNAL", std::to_string(signal)},
                  {"FAULT_RANK", rank}});
  }
  /// That call ends with the error `number`.
  static Fault error_at(const fs::path& folder, int call, int number) {
    return Fault({{"FAULT_FOLDER", folder.string()},
                  {"FAULT_CALL", std::to_string(call)},
                  {"FAULT_ERRNO", std::to_string(number)}});
  }
  /// The system has no pieces of memory of so many bytes or more.
  static Fault no_memory(int64_t bytes, const std::string& rank = "") {
    return Fault({{"REFUSE_BYTES", std::to_string(bytes)}, {"FAULT_RANK", rank}});
  }

 private:
  explicit Fault(const std::map<std::string, std::string>& settings) {
    set("LD_PRELOAD", (fs::path(binary_path()).parent_path() / "tests" / "libfaults.so").string());
    for (const auto& [name, value] : settings) { set(name, value); }
  }
  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
  std::vector<std::string> names_;
};

/// The checkpoint that `latest` of a run folder names; empty where there is none.
inline std::string latest_checkpoint(const fs::path& run) {
  std::string name;
  std::ifstream(run / "checkpoints" / "latest") >> name;
  return name;
}

/// What a save that was cut off left in a run folder.
inline std::string leftovers(const fs::path& run) {
  std::string names;
  for (const fs::directory_entry& entry : fs::directory_iterator(run / "checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (name.find("tmp-") != std::string::npos) { names += name + " "; }
  }
  return names;
}

/// A file system of its own of so many KiB; the case is skipped where this process may not mount one.
class SmallDisk {
 public:
  SmallDisk(const fs::path& path, int kib) : path_(path) {
    fs::create_directories(path);
    is_there_ = ::mount("none", path.c_str(), "tmpfs", 0, ("size=" + std::to_string(kib) + "k").c_str()) == 0;
    if (!is_there_) { skip_case("no permission to mount a file system"); }
  }
  ~SmallDisk() {
    if (is_there_) { ::umount2(path_.c_str(), MNT_DETACH); }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool is_there() const { return is_there_; }
  /// Takes what is free.
  void fill() const {
    std::ofstream file(path_ / "filler");
    const std::string block(4096, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {}
  }
  void make_read_only() const { REQUIRE(::mount("none", path_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "") == 0); }

 private:
  fs::path path_;
  bool is_there_ = false;
};

}  // namespace hebb::testing
