// The order in which a run's files reach the disk. The program's own fsync and rename stand before those of the
// library.
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "tests/train/run_fixture.h"

namespace {

std::mutex mutex;
bool is_recording = false;
std::vector<std::string> calls;  // "fsync PATH" and "rename PATH"

void record(const char* call, const std::string& path) {
  const std::lock_guard lock(mutex);
  if (is_recording) { calls.push_back(std::string(call) + " " + path); }
}

/// The index of the last call before `end` that ends so; -1: none.
ptrdiff_t last_call(const std::string& call, const std::string& ending, ptrdiff_t end) {
  for (ptrdiff_t i = end - 1; i >= 0; --i) {
    if (calls[static_cast<size_t>(i)].starts_with(call) && calls[static_cast<size_t>(i)].ends_with(ending)) {
      return i;
    }
  }
  return -1;
}

}  // namespace

extern "C" {

int fsync(int fd) {
  char path[4096] = {};
  if (::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path - 1) > 0) { record("fsync", path); }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

int rename(const char* from, const char* to) noexcept {
  record("rename", to);
  return ::renameat(AT_FDCWD, from, AT_FDCWD, to);
}
}

FOLDER_TEST("metrics, log and events are on the disk before the checkpoint, and before a run has ended") {
  is_recording = true;
  REQUIRE(run_in(folder / "made/run", test_run(folder, R"({"train": {"checkpoint": {"every": 3, "keep": 9}}})")) == 0);
  is_recording = false;
  const auto end = static_cast<ptrdiff_t>(calls.size());
  const ptrdiff_t first = last_call("rename", "checkpoints/step_00000003", end);
  const ptrdiff_t second = last_call("rename", "checkpoints/step_00000006", end);
  REQUIRE((first >= 0 && second > first));
  const std::string events = fs::directory_iterator(folder / "made/run/tb")->path().filename().string();
  for (const std::string& file : {std::string("metrics.jsonl"), std::string("train.log"), events}) {
    INFO(file);
    CHECK(last_call("fsync", file, first) >= 0);
    CHECK(last_call("fsync", file, second) > first);
    CHECK(last_call("fsync", file, end) > second);
  }
  for (const fs::path& place : {folder.path(), folder / "made", folder / "made/run", folder / "made/run/tb"}) {
    INFO(place);
    CHECK(last_call("fsync", place.string(), first) >= 0);  // names of files and folders
  }
}
