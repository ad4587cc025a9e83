#include "study/ladder/launcher.h"

#include <chrono>
#include <fstream>
#include <thread>

#include "study/ladder/ladder.h"
#include "study/ladder/slurm.h"
#include "tests/study/launcher_fixture.h"

namespace {

Result submit(const TempFolder& folder, std::vector<std::string> arguments = {}) {
  arguments.insert(arguments.begin(), {"--launcher", "slurm"});
  return ladder(folder, arguments);
}

RunStatus status(const TempFolder& folder, const std::string& run) { return read_status(folder / "runs/small" / run); }

const char* const kSizes =
    R"("axes": {"size": {"s": {}, "m": {"set": {"model.hidden_size": 24}, "cluster": {"time": "60", "gpus": 2}}}},
  "grid": {"train.seed": [1, 2]}, "evals": "eval.json", "cluster": {"partition": "small", "account": "lab", "time": "10", "cpus": 4})";

const char* const kOne = R"("runs": [{"id": "a"}])";

}  // namespace

TEST_CASE("a ladder is submitted as one job array for each size and ends with the results of one machine") {
  const SweepFolder folder(kSizes), local(kSizes);
  write_evaluations(folder);
  write_evaluations(local);
  REQUIRE(ladder(local).code == 0);
  const FakeSlurm slurm(folder);
  CHECK_THAT(submit(folder, {"--dry-run"}).out, Contains("4 runs") && Contains("\nsbatch --parsable"));
  const Result first = submit(folder, {"--parallel", "3", "--cluster", "account=other", "options=--exclusive"});
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.out, Contains("0 done, 0 queued, 0 running, 4 to submit") && Contains("submitted 2 runs as job 1") &&
                            Contains("submitted 2 runs as job 2") && Contains("0 of 4 runs are done"));
  const std::string calls = slurm.file("sbatch.log");
  CHECK(std::count(calls.begin(), calls.end(), '\n') == 2);
  CHECK_THAT(calls, Contains("--array=0-1%3") && Contains("--job-name=small.0001") && Contains("--time=10 ") &&
                        Contains("--time=60 ") && Contains("--gpus-per-task=2") && Contains("--account=other") &&
                        Contains("--partition=small") && Contains("--cpus-per-task=4") && Contains("--exclusive") &&
                        Contains("--signal=B:USR1@300") && Contains("--requeue") && !Contains("--account=lab"));
  CHECK_THAT(ladder(folder, {"--status"}).out,
             Contains("job 1_0: Resources") && Contains("queued") && Contains("0 of 4 runs done, 4 queued"));
  CHECK_THAT(ladder(folder).err, Contains("4 runs are queued or running as jobs") && Contains("--cancel"));
  CHECK_THAT(submit(folder).out, Contains("4 queued, 0 running, 0 to submit"));
  CHECK(slurm.file("count") == "2\n");
  CHECK(slurm.run_task(1, 0) == 0);
  CHECK_THAT(run_hebb({"ladder", "runs/small", "--status"}, folder / "status", folder.path()).out,
             Contains("1 of 4 runs done, 3 queued"));
  for (const auto& [array, place] : {std::pair{1, 1}, std::pair{2, 0}, std::pair{2, 1}}) {
    CHECK(slurm.run_task(array, place) == 0);
  }
  CHECK_THAT(slurm.file("job.log"), Contains("start s_seed=1") && Contains("done m_seed=2 at step 12"));
  CHECK_FALSE(fs::exists(folder / "runs/small/report.md"));
  const Result last = submit(folder);  // nothing left: whoever calls next makes the tables
  CHECK(last.code == 0);
  CHECK_THAT(last.out, Contains("4 done") && Contains("report in "));
  CHECK(results(folder) == results(local));
  CHECK(fs::exists(folder / "runs/small/report.md"));
  CHECK(slurm.file("count") == "2\n");
  slurm.write("down", "");  // no question to Slurm where all is done
  CHECK(ladder(folder).code == 0);
}

TEST_CASE("what is neither finished nor queued is submitted again, with the reason why its job ended") {
  const SweepFolder folder(
      R"("runs": [{"id": "bad", "set": {"data.sources.0.path": "later.bin"}}, {"id": "gone"}, {"id": "unborn"}, {"id": "kept"}])");
  const FakeSlurm slurm(folder);
  const Result first = submit(folder);
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.out, Contains("1 of 4 runs cannot start; bad: "));
  CHECK(slurm.run_task(1, 0) == 3);
  RunStatus gone = status(folder, "gone");  // as a job leaves it whose node lost power
  gone.state = "running";
  gone.host = "elsewhere";
  gone.pid = 17;
  write_status(folder / "runs/small/gone", gone);
  folder.write("runs/small/gone/lock", "elsewhere 17 123\n");
  folder.write("runs/small/jobs/0001.2.log", "one\ntwo\nmodule: not found\n");
  slurm.write(
      "jobs",
      "JobId=3 ArrayJobId=1 ArrayTaskId=1 JobState=NODE_FAIL Requeue=1 ExitCode=0:9 x=\nJobId=4 JobState=FAILED\n");
  slurm.shell("sed -i '/|[12]|PENDING/d' queue");
  CHECK_THAT(ladder(folder, {"--status"}).out, Contains("job 1_1 was killed (NODE_FAIL, exit code 0)") &&
                                                   Contains("job 1_2 ended before hebb started\n"));
  slurm.write("ends", "1_1|NODE_FAIL|0:0\n1_2|FAILED|127:0\n");  // of accounting, where there is such
  const std::string text = ladder(folder, {"--status"}).out;
  CHECK_THAT(text, Contains("later.bin") && Contains("exit code 3") &&
                       Contains("job 1_1 was killed (NODE_FAIL, exit code 0)") &&
                       Contains("job 1_2 ended before hebb started (FAILED, exit code 127)") &&
                       Contains("job 1_3: Resources") && Contains("2 failed"));
  CHECK_THAT(text, Contains("the end of runs/small/bad/console.log:\n  ") &&
                       Contains("0001.2.log:\n  one\n  two\n  module: not found\n") &&
                       Contains("0001.1.log is not there\n"));
  fs::copy_file(folder / "tokens.bin", folder / "later.bin");
  CHECK_THAT(submit(folder).out, Contains("0 done, 1 queued, 0 running, 3 to submit"));
  CHECK_FALSE(fs::exists(folder / "runs/small/gone/lock"));
  CHECK(slurm.run_task(1, 3) == 0);
  for (int place = 0; place < 3; ++place) { CHECK(slurm.run_task(2, place) == 0); }
  CHECK_THAT(ladder(folder).out, Contains("4 done, 0 to do"));
}

TEST_CASE("the queue knows the jobs of a ladder that was killed before it wrote their number") {
  const SweepFolder folder(kOne);
  const FakeSlurm slurm(folder);
  REQUIRE(submit(folder).code == 0);
  Submission s = read_submission(folder / "runs/small", "0001");
  CHECK(s.job == "1");
  s.job = "";
  write_submission(folder / "runs/small", s);
  CHECK_THAT(submit(folder).out, Contains("1 queued, 0 running, 0 to submit"));
  CHECK_THAT(ladder(folder, {"--cancel"}).out, Contains("cancelled the jobs of 1 run"));
  CHECK(slurm.file("scancel.log") == "1\n");
}

TEST_CASE("a run that stops before its time limit goes back into the queue, and goes on from there") {
  const SweepFolder folder(R"("runs": [{"id": "a", "set": {"train.steps": 100000}}])");
  const FakeSlurm slurm(folder);
  REQUIRE(submit(folder).code == 0);
  slurm.shell(R"(SLURM_ARRAY_JOB_ID=1 SLURM_ARRAY_TASK_ID=0 bash script.1 >job.log 2>&1 & job=$!
    until [ -s ../runs/small/a/metrics.jsonl ]; do sleep 0.05; done
    kill -USR1 $job; wait $job; echo $? >code)");
  CHECK(slurm.file("code") == "75\n");
  CHECK(slurm.file("scontrol.log") == "requeue 1_0\n");
  CHECK_THAT(slurm.file("job.log"), Contains("SIGUSR1: a saves and stops"));
  const RunStatus saved = status(folder, "a");
  CHECK(saved.state == "pending");
  CHECK(saved.step > 0);
  CHECK_THAT(ladder(folder, {"--status"}).out, Contains("queued"));  // the stand-in has left it there
  // Slurm ends the job itself: it is not put back.
  slurm.shell(R"(SLURM_ARRAY_JOB_ID=1 SLURM_ARRAY_TASK_ID=0 bash script.1 >job.log 2>&1 & job=$!
    before=$(wc -l <../runs/small/a/metrics.jsonl)
    until [ $(wc -l <../runs/small/a/metrics.jsonl) -gt $before ]; do sleep 0.05; done
    kill -TERM $job $(pgrep -P $job); wait $job; echo $? >code)");
  CHECK_THAT(slurm.file("job.log"), Contains("start a at step " + std::to_string(saved.step)));
  CHECK(slurm.file("code") == "75\n");
  CHECK(slurm.file("scontrol.log") == "requeue 1_0\n");
  CHECK(status(folder, "a").step > saved.step);
}

TEST_CASE("several ranks are started by srun, and exit code 14 goes round three times without a step") {
  const SweepFolder folder(
      R"("cluster": {"ranks": 2, "cpus": 3, "nodes": 2, "stop_seconds": 0}, "runs": [{"id": "a"}])");
  const FakeSlurm slurm(folder);
  REQUIRE(submit(folder).code == 0);
  CHECK_THAT(slurm.file("sbatch.log"), Contains("--ntasks=2") && Contains("--nodes=2") && !Contains("--signal"));
  slurm.write("srun.code", "14");
  CHECK(slurm.run_task(1, 0) == 14);
  CHECK_THAT(slurm.file("srun.log"), Contains("--kill-on-bad-exit=1 --ntasks=2 --cpus-per-task=3 ") &&
                                         Contains(" train ") && Contains("--run-dir"));
  CHECK(status(folder, "a").state == "pending");
  CHECK(slurm.run_task(1, 0) == 14);
  CHECK(slurm.run_task(1, 0) == 1);
  CHECK(slurm.file("scontrol.log") == "requeue 1_0\nrequeue 1_0\n");
  CHECK(status(folder, "a").state == "failed");
  CHECK_THAT(status(folder, "a").error, Contains("3 times without a new step") && Contains("exit code 14"));
  REQUIRE(submit(folder).code == 0);
  CHECK(slurm.run_task(2, 0) == 14);  // a new submission counts from the beginning
  CHECK(status(folder, "a").state == "pending");
  slurm.remove("srun.code");
  CHECK(slurm.run_task(2, 0) == 0);
  CHECK(status(folder, "a").state == "done");
}

TEST_CASE("sbatch gets the log's path with its percent signs, and no option for zero GPUs", "[fast]") {
  const Submission submission{
      .number = "0001", .launcher = "slurm", .job = "", .runs = {"a", "b"}, .evals = "", .start = ""};
  ClusterConfig cluster;
  cluster.gpus = 0;
  const std::vector<std::string> words = sbatch_words("/runs/5%j", submission, cluster, "name", 0);
  const auto has = [&](const std::string& word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  CHECK(has("--output=/runs/5%%j/jobs/0001.%a.log"));
  CHECK(has("--chdir=/runs/5%j"));
  CHECK(has("--array=0-1"));
  CHECK(std::none_of(words.begin(), words.end(), [](const std::string& w) { return w.starts_with("--gpus"); }));
  CHECK(words.back() == "/runs/5%j/jobs/0001.sh");
}

FOLDER_TEST("submissions are counted on from the last one", "[fast]") {
  CHECK(next_submission(folder.path()) == "0001");
  for (const char* name : {"0001.json", "0002.json", "0007.json", "0009.sh", "more.json"}) {
    folder.write(std::string("jobs/") + name, "");
  }
  CHECK(next_submission(folder.path()) == "0008");
}

TEST_CASE("a requeued job takes over the lock that it left on another machine, and no other") {
  const SweepFolder folder(kOne);
  const FakeSlurm slurm(folder);
  REQUIRE(submit(folder).code == 0);
  RunStatus s = status(folder, "a");
  s.state = "running";
  s.host = "elsewhere";
  write_status(folder / "runs/small/a", s);
  const std::string holder = "elsewhere 17 123 - 0\n";
  folder.write("runs/small/a/lock", holder);
  {
    std::jthread touches([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        std::fstream(folder / "runs/small/a/lock", std::ios::in | std::ios::out) << holder;
      }
    });
    CHECK(slurm.run_task(1, 0) == 4);
  }
  CHECK_THAT(slurm.file("job.log"), Contains("in use by process 17 on elsewhere"));
  CHECK(status(folder, "a").state == "running");  // another job's word
  s.task = "0001.0";
  write_status(folder / "runs/small/a", s);
  const fs::path begun = folder.write("runs/small/a/status.json.tmp-1", "{");
  CHECK(slurm.run_task(1, 0) == 0);
  CHECK(status(folder, "a").state == "done");
  CHECK_FALSE(fs::exists(begun));
}

TEST_CASE("cancelled jobs save, stop and do not come back") {
  const SweepFolder folder(R"("runs": [{"id": "a", "set": {"train.steps": 100000}}, {"id": "b"}])");
  const FakeSlurm slurm(folder);
  REQUIRE(submit(folder).code == 0);
  slurm.shell(
      R"((SLURM_ARRAY_JOB_ID=1 SLURM_ARRAY_TASK_ID=0 bash script.1 >job.log 2>&1; echo $? >code.new; mv code.new code) &
    sed -i 's/^1|0|PENDING/1|0|RUNNING/' queue
    until [ -s ../runs/small/a/metrics.jsonl ]; do sleep 0.05; done)");
  CHECK_THAT(ladder(folder, {"--status"}).out, Contains("job 1_0 on ") && Contains("1 running, 1 queued"));
  CHECK_THAT(run_hebb({"ladder", "runs/small", "--cancel"}, folder / "cancel", folder.path()).out,
             Contains("cancelled the jobs of 2 runs"));
  slurm.shell("until [ -e code ]; do sleep 0.05; done");
  CHECK(slurm.file("code") == "0\n");
  CHECK(slurm.file("scontrol.log").empty());
  CHECK(status(folder, "a").state == "pending");
  CHECK(status(folder, "a").step > 0);
  CHECK(slurm.run_task(1, 1) == 0);  // started in spite of it
  CHECK_THAT(slurm.file("job.log"), Contains("b was cancelled"));
  CHECK(status(folder, "b").state == "pending");
  CHECK_THAT(ladder(folder, {"--cancel"}).out, Contains("no job waits or runs"));
  CHECK_THAT(submit(folder).out, Contains("2 to submit") && Contains("submitted 2 runs as job 2"));
}

TEST_CASE("what Slurm refuses is shown, and nothing is left behind") {
  const SweepFolder folder(kOne);
  {
    const FakeSlurm slurm(folder);
    slurm.write("refuse",
                "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed\n");
    const Result unknown = submit(folder, {"--cluster", "partition=nope"});
    CHECK(unknown.code == 2);
    CHECK_THAT(unknown.err, Contains("invalid partition specified: nope") && Contains("(partitions: small, large)"));
    slurm.write("refuse", "sbatch: error: Job violates accounting policy\n");
    CHECK_THAT(submit(folder).err, Contains("sbatch refused the job: ") && Contains("accounting policy"));
    CHECK(fs::is_empty(folder / "runs/small/jobs"));
    slurm.remove("refuse");
    REQUIRE(submit(folder).code == 0);
    slurm.write("down", "");
    const Result blind = submit(folder);
    CHECK(blind.code == 1);
    CHECK_THAT(blind.err, Contains("squeue: slurm_load_jobs error: Unable to contact slurm controller"));
    CHECK_THAT(ladder(folder).err, Contains("jobs may train runs of this ladder") && Contains("Unable to contact"));
    const Result text = ladder(folder, {"--status"});
    CHECK(text.code == 0);
    CHECK_THAT(text.out, Contains("the states are those of the run folders: squeue: "));
  }
  const SweepFolder other(kOne);
  const std::string path = ::getenv("PATH");
  ::setenv("PATH", (other / "nothing").c_str(), 1);
  CHECK_THAT(submit(other).err, Contains("no program sbatch on PATH"));
  ::setenv("PATH", path.c_str(), 1);
}

TEST_CASE("what a run asks of a cluster is read where it is written") {
  const SweepFolder folder(R"("cluster": {"partitoin": "x"}, "runs": [{"id": "a"}])");
  CHECK_THAT(submit(folder).err, Contains("sweep.json:1:") && Contains("cluster.partitoin") && Contains("partition"));
  write_sweep(folder, R"("runs": [{"id": "a", "cluster": {"ranks": 0}}])");
  CHECK_THAT(submit(folder).err, Contains("runs.0.cluster.ranks") && Contains(">= 1"));
  write_sweep(folder, kOne);
  CHECK_THAT(submit(folder, {"--cluster", "partitoin=x"}).err, Contains("cluster.partitoin") && Contains("partition"));
  CHECK_THAT(submit(folder, {"--cluster", "ranks=two"}).err, Contains("--cluster ranks=two"));
  CHECK_THAT(submit(folder, {"--cluster", "ranks"}).err, Contains("expected KEY=VALUE"));
  CHECK_THAT(ladder(folder, {"--cluster", "ranks=2"}).err, Contains("--cluster without --launcher"));
}

TEST_CASE("any other launcher is a command with placeholders") {
  const SweepFolder folder(
      R"("runs": [{"id": "a b"}, {"id": "c", "cluster": {"ranks": 2, "start": "sh -c 'exec \"$@\"' {ranks}"}}])");
  const FakeSlurm tools(folder);
  tools.add("queue", "cd " + (folder / "fake").string() + R"(
[ -e refuse ] && { echo no room; exit 7; }
printf '%s|' "$@" >>calls; echo >>calls; for word; do :; done; echo "$word" >>scripts; echo "ticket 5")");
  const std::string command = "queue -N {name} -n {ranks} -o {folder}/out {command}";
  const auto queue = [&](std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--launcher", command});
    return ladder(folder, more);
  };
  CHECK_THAT(queue({"--dry-run"}).out, Contains("queue -N small-c -n 2 -o "));
  tools.write("refuse", "");
  const Result refused = queue();
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("exit code 7: no room"));
  CHECK(fs::is_empty(folder / "runs/small/jobs"));
  tools.remove("refuse");
  const Result first = queue();
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.out, Contains("submitted a b as job ticket 5") && Contains("submitted c as job ticket 5"));
  const std::string runs = (fs::weakly_canonical(folder.path()) / "runs/small").string();
  CHECK_THAT(tools.file("calls"), Contains("-N|small-a-b|-n|1|-o|" + runs + "/a b/out|" + runs + "/jobs/0001.sh|"));
  CHECK_THAT(queue().out, Contains("2 queued, 0 running, 0 to submit"));
  CHECK_THAT(ladder(folder, {"--status"}).out, Contains("2 queued") && Contains("job ticket 5"));
  CHECK(tools.shell("sh \"$(sed -n 1p scripts)\" >log 2>&1") == 0);
  CHECK(status(folder, "a b").state == "done");
  CHECK_THAT(ladder(folder, {"--cancel"}).out, Contains("cancelled the jobs of 1 run"));
  CHECK(tools.shell("sh \"$(sed -n 2p scripts)\" >log 2>&1") == 0);
  CHECK_THAT(tools.file("log"), Contains("c was cancelled"));
  CHECK_THAT(queue().out, Contains("1 done, 0 queued, 0 running, 1 to submit"));
  CHECK(tools.shell("sh \"$(sed -n 3p scripts)\" >log 2>&1") == 0);
  CHECK_THAT(queue().out, Contains("2 done") && Contains("report in "));
}

TEST_CASE("nothing of a sweep is a command of the shell that a launcher runs in") {
  const SweepFolder folder("\"runs\": [{\"id\": \"" + std::string("$(touch pwn);touch pwn;' &`touch pwn` #") + "\"}]");
  const auto launch = [&](const std::string& launcher) { return ladder(folder, {"--launcher", launcher}); };
  for (const char* quoted : {"sh -c '{command}'", "echo '{name}'; {command}", "echo \"{name}\"; {command}",
                             "echo \"it's\" '{folder}'; {command}", "echo `echo {name}`; {command}"}) {
    INFO(quoted);
    const Result refused = launch(quoted);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, Contains("in quotes, expected {") && Contains("its value is quoted already"));
  }
  CHECK_FALSE(fs::exists(folder / "runs/small/jobs/0001.sh"));
  const Result done = launch("echo \"it's\" {name} {folder} \\' && {command}");
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  CHECK_THAT(launch("{command}").out, Contains("1 done"));
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder.path())) {
    CHECK(entry.path().filename() != "pwn");
  }
}

TEST_CASE("a launcher that runs the command itself is waited for, or leaves it behind") {
  const SweepFolder folder(R"("runs": [{"id": "a"}, {"id": "b"}])");
  CHECK_THAT(ladder(folder, {"--launcher", "echo {name}"}).err, Contains("a command with {command}"));
  CHECK(ladder(folder, {"--launcher", "{command}"}).code == 0);
  CHECK_THAT(ladder(folder, {"--launcher", "{command}"}).out, Contains("2 done"));
  REQUIRE(ladder(folder, {"--launcher", "{command} &", "--dir", "left"}).code == 0);
  for (const char* run : {"a", "b"}) {
    while (read_status(folder / "left" / run).state != "done") { ::usleep(20000); }
  }
  CHECK_THAT(ladder(folder, {"--dir", "left"}).out, Contains("2 done, 0 to do"));
}

TEST_CASE("a setup of which a command fails ends the job before anything trains") {
  const SweepFolder folder(
      R"("runs": [{"id": "a"}], "cluster": {"setup": "false || true\nno-such-program load cuda\necho went on"})");
  const FakeSlurm slurm(folder);
  const Result other = ladder(folder, {"--dir", "other", "--launcher", "sh {command}"});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("cluster.setup failed with exit code 127") && !Contains("went on"));
  CHECK(read_status(folder / "other/a").state == "pending");
  REQUIRE(ladder(folder, {"--launcher", "slurm"}).code == 0);
  CHECK(slurm.run_task(1, 0) == 127);
  CHECK(status(folder, "a").state == "pending");
}

TEST_CASE("a task that is none is an error") {
  const SweepFolder folder(kOne);
  const FakeSlurm slurm(folder);
  REQUIRE(submit(folder).code == 0);
  const auto task = [&](const std::string& name) {
    return run_hebb({"ladder", "runs/small", "--task", name}, folder / "task", folder.path());
  };
  CHECK_THAT(task("0002.0").err, Contains("no submission 0002"));
  CHECK_THAT(task("0001.1").err, Contains("no task 0001.1") && Contains("of 1 runs"));
  CHECK_THAT(task("x").err, Contains("no submission x"));
  folder.write("runs/small/jobs/0001.json", "{}");
  CHECK_THAT(task("0001.0").err, Contains("not a submission"));
}

TEST_CASE("jobs have the ranks of the sweep, unless the option or the cluster's words say otherwise") {
  const SweepFolder folder(R"("ranks": 4, "grid": {"train.batch_size": [12], "train.micro_batch_size": [1]},
    "runs": [{"id": "a"}, {"id": "b", "cluster": {"ranks": 2}}])");
  const auto commands = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"ladder", (folder / "sweep.json").string(), "--dry-run", "--launcher", "slurm"});
    const Result result = run_hebb(options, folder / "ladder", folder.path());
    INFO(result.out << result.err);
    REQUIRE(result.code == 0);
    return result.out;
  };
  CHECK_THAT(commands({}), Contains("--ntasks=4") && Contains("--ntasks=2"));
  const std::string given = commands({"--ranks", "3"});
  CHECK_THAT(given, Contains("--ntasks=3") && !Contains("--ntasks=4") && !Contains("--ntasks=2"));
}
