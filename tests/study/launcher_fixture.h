#pragma once
// Stand-ins for Slurm's programs: a queue in a file, and scripts on PATH that work on it.
#include <stdlib.h>

#include "tests/study/ladder_fixture.h"

namespace hebb::testing {

class FakeSlurm {
 public:
  explicit FakeSlurm(const TempFolder& folder) : folder_(folder), path_(::getenv("PATH")) {
    const std::string f = (folder / "fake").string();
    fs::create_directories(f);
    add("sbatch", "cd " + f + R"(
[ -e refuse ] && { cat refuse >&2; exit 1; }
echo "$@" >>sbatch.log
n=$(( $(cat count 2>/dev/null || echo 0) + 1 )); echo $n >count
for word; do case $word in
  --job-name=*) name=${word#*=} ;; --chdir=*) dir=${word#*=} ;; --array=*) last=${word#*=0-} ;;
esac; script=$word; done
cp "$script" script.$n
for k in $(seq 0 ${last%\%*}); do echo "$n|$k|PENDING|Resources|$name|$dir" >>queue; done
echo "$n;cluster")");
    add("squeue", "cd " + f + R"(
[ "$1" = --me ] && exit  # the jobs are another person's
[ -e down ] && { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
cat queue 2>/dev/null; true)");
    add("scancel", "cd " + f + R"(
echo "$@" >>scancel.log
for n; do sed -i "/^$n|/d" queue; done)");
    add("scontrol", "cd " + f + "\n[ $1 = requeue ] && echo \"$@\" >>scontrol.log || cat jobs 2>/dev/null");
    add("sacct", "cat " + f + "/ends 2>/dev/null");
    add("sinfo", "printf 'small\\nlarge\\n'");
    add("srun", "cd " + f + R"(
echo "$@" >>srun.log
while [ "${1#-}" != "$1" ]; do shift; done
[ -e srun.code ] && exit $(cat srun.code)
exec "$@")");
    ::setenv("PATH", ((folder / "bin").string() + ":" + path_).c_str(), 1);
  }
  ~FakeSlurm() { ::setenv("PATH", path_.c_str(), 1); }
  FakeSlurm(const FakeSlurm&) = delete;
  FakeSlurm& operator=(const FakeSlurm&) = delete;

  void add(const std::string& name, const std::string& text) const {
    const fs::path script = folder_.write("bin/" + name, "#!/bin/sh\n" + text + "\n");
    fs::permissions(script, fs::perms::owner_all);
  }
  /// A file of the stand-ins: queue, sbatch.log, ...; "" where there is none.
  std::string file(const std::string& name) const {
    return fs::exists(folder_ / "fake" / name) ? read_file(folder_ / "fake" / name) : "";
  }
  void write(const std::string& name, const std::string& text) const { folder_.write("fake/" + name, text); }
  void remove(const std::string& name) const { fs::remove(folder_ / "fake" / name); }
  /// The exit code of a shell line.
  int shell(const std::string& line) const {
    const int status = std::system(("cd " + (folder_ / "fake").string() + "; " + line).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// What a node does: runs a task of an array, which then is in no queue.
  int run_task(int array, int place) const {
    const std::string task = std::to_string(array) + "|" + std::to_string(place) + "|";
    const int code = shell(
        "sed -i '/^" + task + "/s/PENDING/RUNNING/' queue; SLURM_ARRAY_JOB_ID=" + std::to_string(array) +
        " SLURM_ARRAY_TASK_ID=" + std::to_string(place) + " bash script." + std::to_string(array) + " >>job.log 2>&1");
    shell("sed -i '/^" + task + "/d' queue");
    return code;
  }

 private:
  const TempFolder& folder_;
  std::string path_;
};

}  // namespace hebb::testing
