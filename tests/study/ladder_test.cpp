#include "study/ladder/ladder.h"

#include <fmt/core.h>

#include "core/parallel.h"
#include "study/report/read_metrics.h"
#include "study/report/run_results.h"
#include "tests/study/ladder_fixture.h"

namespace {

const char* const kTwoSizes = R"("runs": [
  {"id": "s", "tags": {"arch": "full", "level": 1}}, {"id": "m", "set": {"model.hidden_size": 24}, "tags": {"arch": "full", "level": 2}},
  {"id": "g", "set": {"model.pattern.0.mixer": "gdn"}, "tags": {"arch": "gdn", "level": 1}}],
  "evals": "eval.json", "fit": {"by": "arch", "fit_ids": ["s", "m"], "predict_ids": ["g"]})";

}  // namespace

TEST_CASE("a ladder trains every run, writes results and a report, and does nothing more when started again") {
  const SweepFolder folder;
  write_evaluations(folder);
  write_sweep(folder, kTwoSizes);
  const Result first = ladder(folder);
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.err, Contains("small: 0 FLOP of ") && Contains("(100%)") && Contains(", took ") &&
                            Contains(", 3 of 3 runs done"));
  const std::vector<std::string> rows = results(folder);
  REQUIRE(rows.size() == 3);
  const Json m = parse_json(rows[1], "m");
  CHECK(m.at("id").as_string() == "m");
  CHECK(m.at("level").as_int() == 2);
  CHECK(m.at("tokens").as_int() == 12 * 36);
  CHECK(m.at("flops.total").as_double() == 3 * m.at("flops.forward_per_token").as_double() * 12 * 36);
  const std::vector<double> losses = metric(folder / "runs/small/m", "loss");
  REQUIRE(losses.size() == 12);  // the last 5 % of twelve steps are one: no mean over half of the run
  CHECK(m.at("loss.final").as_double() == losses.back());
  REQUIRE(m.find("val.held") != nullptr);
  CHECK(m.at("ppl.held").as_double() == std::exp(m.at("val.held").as_double()));
  CHECK(m.find("eval.by-position.ppl") != nullptr);
  for (const char* file : {"sweep.json", "results.csv", "report.md", "index.html", "plots/loss.svg",
                           "plots/position_by-position.svg", "fit.json", "fit.csv", "fit_points.csv"}) {
    CHECK(fs::exists(folder / "runs/small" / file));
  }
  const RunStatus g = read_status(folder / "runs/small/g");
  CHECK(g.state == "done");
  CHECK(g.seconds > 0.01);  // a process starts, trains and evaluates
  CHECK(g.seconds < 600);
  const std::string lines = read_file(folder / "runs/small/results.jsonl");
  CHECK(parse_json(lines.substr(lines.rfind("\n{") + 1), "g").at("seconds").as_double() == g.seconds);
  const std::string console = read_file(folder / "runs/small/g/console.log");
  const Result again = ladder(folder);
  CHECK(again.code == 0);
  CHECK(again.err.empty());                                          // no progress of nothing
  CHECK(read_file(folder / "runs/small/g/console.log") == console);  // nothing ran again
  CHECK(results(folder) == rows);
  const Result status = ladder(folder, {"--status"});
  CHECK_THAT(status.out, Contains("12/12") && Contains("3 of 3 runs done") && Contains("(100%)") && !Contains("eta"));
  CHECK_THAT(ladder(folder, {"--dry-run", "--tflops", "0.1"}).out,
             Contains("3 runs, 1296 tokens") && Contains("FLOP/s with 1 at a time"));
  CHECK_THAT(ladder(folder, {"--dry-run", "--tflops", "0.1", "--parallel", "3"}).out,
             Contains("FLOP/s with 3 at a time"));
}

TEST_CASE("the runs of two axes are trained and reported side by side") {
  const SweepFolder folder(
      R"("max_parallel": 2, "axes": {"arch": {"full": {}, "gdn": {"set": {"model.pattern.0.mixer": "gdn"}}},
    "size": {"small": {}, "large": {"set": {"model.hidden_size": 24}}}}, "fit": {"by": "arch"},
    "published": {"source": "a paper", "columns": [{"name": "parameters", "key": "params.total"}], "rows": {"gdn-large": [12345]}})");
  const Result first = ladder(folder);
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  const std::vector<std::string> rows = results(folder);
  REQUIRE(rows.size() == 4);
  const Json last = parse_json(rows[3], "gdn-large");
  CHECK(last.at("id").as_string() == "gdn-large");
  CHECK(last.at("arch").as_string() == "gdn");
  CHECK(last.at("size").as_string() == "large");
  CHECK_THAT(read_file(folder / "runs/small/report.md"), Contains("## loss.final by size") &&
                                                             Contains("| size | full | gdn |") &&
                                                             Contains("| gdn-large | 12345 | "));
  CHECK_THAT(read_file(folder / "runs/small/published.csv"), Contains("gdn-large,12345,"));
}

TEST_CASE("runs that several ranks train have the results of one") {
  if (!has_mpi()) { return; }
  const std::string runs =
      R"("runs": [{"id": "a", "set": {"train.lanes": 2}}, {"id": "b", "set": {"train.lanes": 2, "train.seed": 6}},
         {"id": "c", "set": {"train.lanes": 2, "model.pattern.0.mixer": "gdn"}}])";
  const auto trained = [](const TempFolder& folder, std::vector<std::string> options) {
    const Result result = ladder(folder, std::move(options));
    INFO(result.out << result.err);
    REQUIRE(result.code == 0);
    return result.out;
  };
  const auto console = [](const TempFolder& folder) { return read_file(folder / "runs/small/a/console.log"); };
  const SweepFolder one(runs), by_key(runs + R"(, "ranks": 2)"), by_option(runs);
  trained(one, {});
  CHECK_THAT(console(one), !Contains("rank  host:process"));
  const std::string said = trained(by_key, {});
  CHECK_THAT(console(by_key), Contains("rank  host:process"));
  CHECK(results(by_key) == results(one));
  const std::string shared = trained(by_option, {"--ranks", "2", "--parallel", "3"});
  CHECK(results(by_option) == results(one));
  CHECK((shared.find("warning: 6 processes (3 x 2 ranks at a time)") != std::string::npos) == (6 > threads()));
  CHECK((said.find("warning: 2 processes (1 x 2 ranks at a time)") != std::string::npos) == (2 > threads()));
}

TEST_CASE("a run that fails does not stop the others and is tried again") {
  const SweepFolder folder(
      R"("max_parallel": 2, "runs": [{"id": "bad", "set": {"data.sources.0.path": "later.bin"}}, {"id": "good"}])");
  const Result first = ladder(folder);
  CHECK(first.code == 1);
  CHECK_THAT(first.out, Contains("failed bad") && Contains("later.bin") && Contains("done good"));
  const RunStatus bad = read_status(folder / "runs/small/bad");
  CHECK(bad.state == "failed");
  CHECK_THAT(bad.error, Contains("later.bin") && Contains("exit code 3"));
  CHECK_THAT(first.err, Contains("(50%)") && Contains("1 of 2 runs done, 1 failed"));
  CHECK_THAT(ladder(folder, {"--status"}).out, Contains("1 of 2 runs done, 1 failed") && Contains("(50%)"));
  CHECK(results(folder).size() == 1);
  fs::copy_file(folder / "tokens.bin", folder / "later.bin");
  CHECK(ladder(folder).code == 0);
  CHECK(results(folder).size() == 2);
  CHECK(bad.seconds > 0);
  CHECK(read_status(folder / "runs/small/bad").seconds > bad.seconds);  // of both starts
}

TEST_CASE("a run that is only planned is predicted by the fit and not trained") {
  const SweepFolder folder(
      R"("runs": [{"id": "s", "set": {"model.hidden_size": 12}}, {"id": "m", "set": {"model.hidden_size": 24}},
    {"id": "l", "set": {"model.hidden_size": 36}}, {"id": "xl", "set": {"model.hidden_size": 96}, "train": false}],
    "fit": {"fit_ids": ["?"], "predict_ids": ["xl"]})");
  CHECK_THAT(ladder(folder, {"--dry-run"}).out, Contains("3 runs") && Contains("xl is predicted and not trained: "));
  const Result result = ladder(folder);
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  CHECK_FALSE(fs::exists(folder / "runs/small/xl"));
  CHECK(results(folder).size() == 3);
  const Json fit = parse_json_file((folder / "runs/small/fit.json").string());
  const Json& held_out = fit.at("groups").items()[0].at("held_out").items()[0];
  CHECK(held_out.at("id").as_string() == "xl");
  CHECK(held_out.at("predicted").as_double() > 0);
  CHECK(held_out.at("measured").is_null());
  CHECK_THAT(read_file(folder / "runs/small/report.md"), Contains("| xl | ") && Contains(" – | – |"));
  // Its sweep has tags and a fit.
  const Result apart = run_hebb({"report", "runs/small", "-o", "apart", "--tags", "{size}", "--by", "size"},
                                folder / "output", folder.path());
  CHECK(apart.code == 2);
  CHECK_THAT(apart.err, Contains("leave out --tags, --by"));
}

TEST_CASE("runs that were trained apart take tags from their names and are fitted") {
  const SweepFolder folder;
  for (const char* name : {"a-12", "a-24", "a-36"}) {
    const std::string width(name + 2);
    REQUIRE(run_hebb({"train", "base.json", std::string("name=") + name, "model.hidden_size=" + width},
                     folder / "output", folder.path())
                .code == 0);
  }
  const auto report = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"report", "runs", "-o", "page"});
    return run_hebb(more, folder / "output", folder.path());
  };
  const Result fitted = report({"--tags", "{arch}-{width}", "--by", "arch"});
  INFO(fitted.err);
  REQUIRE(fitted.code == 0);
  const Json fit = parse_json_file((folder / "page/fit.json").string());
  CHECK(fit.at("groups").items().size() == 1);
  CHECK(fit.at("groups").items()[0].at("group").as_string() == "a");
  CHECK_THAT(report({"--tags", "b-*"}).err,
             Contains("the run a-12, which --tags b-* does not match") && Contains("letters and digits"));
  CHECK_THAT(report({"--by", "nothing"}).err, Contains("--by nothing"));
}

TEST_CASE("a ladder of which no run can start says so before any does") {
  const SweepFolder folder(R"("runs": [{"id": "a"}, {"id": "b"}], "grid": {"data.sources.0.path": ["later.bin"]})");
  const Result result = ladder(folder);
  CHECK(result.code == 3);
  CHECK_THAT(result.err, Contains("2 of 2 runs cannot start; a_path=later.bin: ") && Contains("no file matches"));
  CHECK(fs::is_empty(folder / "runs/small"));
}

TEST_CASE("a value that only resolving finds wrong is an error of the sweep before any run starts") {
  const SweepFolder folder("\n\"runs\": [{\"id\": \"a\"},\n  {\"id\": \"b\", \"set\": {\"train.fast_batch\": 3}}]");
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{}, {"--dry-run"}, {"--launcher", "sh {command}"}}) {
    const Result result = ladder(folder, how);
    CHECK(result.code == 2);
    CHECK_THAT(result.err, Contains("sweep.json:3:") && Contains("train.fast_batch: found 3, expected 2") &&
                               Contains("in the run b"));
    CHECK_FALSE(fs::exists(folder / "runs/small/a"));
  }
  const Result planned = run_hebb({"plan", "sweep.json"}, folder / "plan", folder.path());
  CHECK(planned.code == 2);
  CHECK_THAT(planned.err, Contains("train.fast_batch: found 3") && Contains("in the run b"));
}

TEST_CASE("a batch that the ranks do not divide is an error at its place in the base") {
  const SweepFolder folder(R"("runs": [{"id": "a"}, {"id": "b"}])");
  const Result result = ladder(folder, {"--ranks", "3"});
  CHECK(result.code == 2);
  CHECK_THAT(result.err, Contains("base.json:8:") && Contains("train.micro_batch_size: found 2 rows in 3 lanes") &&
                             Contains("in the run a\n") && Contains("in the run b"));
  CHECK_FALSE(fs::exists(folder / "runs/small/a"));
}

TEST_CASE("a ladder with runs that do not fit into memory starts none of them, or the others where that is asked for") {
  const SweepFolder folder;
  // Terabytes of embedding and optimizer state.
  write_sweep(
      folder,
      R"("runs": [{"id": "small"}, {"id": "huge", "set": {"model.vocab_size": 2000000000, "model.hidden_size": 120}}])");
  const auto says_so = [](const std::string& text) {
    return Contains("huge: needs ").match(text) && Contains(" bytes) of memory, ").match(text) &&
           Contains(" bytes) are available").match(text);
  };
  const Result planned = ladder(folder, {"--dry-run"});
  CHECK(planned.code == 0);
  CHECK(says_so(planned.out));
  CHECK_THAT(planned.out, Contains("cannot start: huge: ") && !Contains("cannot start: small"));
  CHECK(!fs::exists(folder / "runs"));
  const Result refused = ladder(folder);
  CHECK(refused.code == 5);
  CHECK(says_so(refused.err));
  CHECK_THAT(refused.err, Contains("1 of 2 runs cannot start; ") && Contains("--skip-unfit"));
  CHECK(fs::is_empty(folder / "runs/small"));
  const Result some = ladder(folder, {"--skip-unfit"});
  INFO(some.out << some.err);
  CHECK(some.code == 0);
  CHECK(says_so(some.out));
  CHECK_THAT(some.out, Contains("0 done, 1 to do, 1 left out") && Contains("start small") && !Contains("start huge"));
  CHECK(results(folder).size() == 1);

  write_sweep(folder, R"("runs": [{"id": "huge", "set": {"model.vocab_size": 2000000000, "model.hidden_size": 120}}])",
              "none.json");
  const Result none = run_hebb({"ladder", (folder / "none.json").string(), "--dir", "none", "--skip-unfit"},
                               folder / "none-out", folder.path());
  CHECK(none.code == 5);
  CHECK_THAT(none.err, Contains("1 of 1 runs cannot start; ") && !Contains("--skip-unfit"));
}

TEST_CASE("a ladder that is killed again and again ends with the results of an undisturbed one", "[slow]") {
  const std::string longer =
      R"("max_parallel": 2, "grid": {"train.seed": [1, 2, 3, 4]}, "derive": {"train.steps": "200"})";
  const SweepFolder calm(longer), disturbed(longer);
  REQUIRE(ladder(calm).code == 0);
  Rng random(3, "kills");
  int interrupted = 0;
  for (int kill = 0; kill < 10; ++kill) {
    Process process({"ladder", (disturbed / "sweep.json").string()}, disturbed / ("kill" + std::to_string(kill)),
                    disturbed.path());
    if (!process.ends_within(30 + static_cast<int>(random.below(120)))) {
      process.kill(kill % 2 == 0 ? SIGKILL : SIGTERM);
      ++interrupted;
    }
    const int code = process.wait();
    CHECK((code == 0 || code == 75 || code == 128 + SIGKILL || code == 128 + SIGTERM));  // the last: before it listens
  }
  CHECK(interrupted > 2);
  const Result last = ladder(disturbed);
  INFO(last.out << last.err);
  CHECK(last.code == 0);
  CHECK(results(disturbed) == results(calm));
}

TEST_CASE("a stopped ladder saves its runs and goes on from there") {
  const SweepFolder folder(R"("runs": [{"id": "a", "set": {"train.steps": 100000}}])");
  Process process({"ladder", (folder / "sweep.json").string()}, folder / "ladder", folder.path());
  const fs::path metrics = folder / "runs/small/a/metrics.jsonl";
  while (!fs::exists(metrics) || fs::file_size(metrics) == 0) { REQUIRE(!process.ends_within(2)); }
  process.kill(SIGTERM);
  CHECK(process.wait() == 75);
  const RunStatus status = read_status(folder / "runs/small/a");
  CHECK(status.state == "pending");
  CHECK(status.step > 0);
  CHECK(fs::exists(checkpoint_in(folder / "runs/small/a", status.step)));
  CHECK_THAT(ladder(folder, {"--status"}).out, Contains(" stopped ") && Contains("/100000") && Contains("eta "));
}

/// A ladder of two runs, as soon as both have done steps.
struct TwoRuns {
  SweepFolder folder{
      R"("max_parallel": 2, "runs": [{"id": "a", "set": {"train.steps": 100000}}, {"id": "b", "set": {"train.steps": 100000}}])"};
  Process process{{"ladder", (folder / "sweep.json").string()}, folder / "ladder", folder.path()};

  TwoRuns() {
    for (const char* id : {"a", "b"}) {
      while (last_logged_step(run(id)) < 3) { REQUIRE_FALSE(process.ends_within(2)); }
    }
  }
  fs::path run(const std::string& id) const { return folder / "runs/small" / id; }
  /// Both have saved their last step, and go on from there.
  void check_saved() const {
    for (const char* id : {"a", "b"}) {
      INFO(id << read_file(run(id) / "console.log"));
      const int64_t step = last_logged_step(run(id));
      CHECK(fs::exists(checkpoint_in(run(id), step)));
      const Result again = run_hebb(
          {"train", (run(id) / "ladder-config.json").string(), "--run-dir", run(id).string(), "train.max_minutes=1e-9"},
          folder / "again", folder.path());
      CHECK(again.code == 75);
      CHECK_THAT(again.out, Contains("resuming after step " + std::to_string(step)));
    }
  }
};

TEST_CASE("a signal to all processes of a ladder loses no step of its runs") {
  const int signal = GENERATE(SIGTERM, SIGHUP);
  TwoRuns runs;
  runs.process.kill(signal);
  for (const char* id : {"a", "b"}) { ::kill(static_cast<pid_t>(read_status(runs.run(id)).pid), signal); }
  runs.process.expect(75);
  for (const char* id : {"a", "b"}) {
    CHECK(read_status(runs.run(id)).state == "pending");
    CHECK_THAT(read_file(runs.run(id) / "train.log"), Contains(fmt::format(" by {};", signal_name(signal))));
  }
  runs.check_saved();
}

TEST_CASE("two stop signals to a ladder at once lose no step of its runs") {
  TwoRuns runs;
  runs.process.kill(SIGINT);
  runs.process.kill(SIGTERM);
  runs.process.expect(75);
  runs.check_saved();
}

TEST_CASE("runs save when their ladder is killed, also if they were told to stop") {
  TwoRuns runs;
  std::vector<pid_t> pids;
  for (const char* id : {"a", "b"}) { pids.push_back(static_cast<pid_t>(read_status(runs.run(id)).pid)); }
  for (const pid_t pid : pids) { ::kill(pid, SIGTERM); }
  runs.process.kill(SIGKILL);
  runs.process.wait();
  for (const pid_t pid : pids) {
    while (::kill(pid, 0) == 0) { ::usleep(1000); }
  }
  runs.check_saved();
}

TEST_CASE("a changed run is refused, and started anew with --force") {
  const SweepFolder folder(R"("runs": [{"id": "a"}, {"id": "b"}])");
  REQUIRE(ladder(folder).code == 0);
  write_sweep(folder,
              R"("runs": [{"id": "a", "set": {"optimizer.lr": 0.02, "train.steps": 13}}, {"id": "b"}, {"id": "c"}])");
  const Result refused = ladder(folder);
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("runs/small/a") && Contains("optimizer.lr: 0.01 there, 0.02 here") &&
                              Contains("train.steps: 12 there, 13 here") && Contains("--force"));
  CHECK(!fs::exists(folder / "runs/small/c"));
  const Result forced = ladder(folder, {"--force"});
  CHECK(forced.code == 0);
  CHECK_THAT(forced.out, Contains("start a") && !Contains("start b") && Contains("start c"));
  CHECK(metric(folder / "runs/small/a", "lr")[0] == 0.02);
}

TEST_CASE("a run whose process was killed is not called running") {
  const SweepFolder folder(R"("runs": [{"id": "a"}])");
  REQUIRE(ladder(folder).code == 0);
  RunStatus status = read_status(folder / "runs/small/a");
  const pid_t child = ::fork();
  if (child == 0) { ::_exit(0); }
  ::waitpid(child, nullptr, 0);
  status.state = "running";
  status.pid = child;
  write_status(folder / "runs/small/a", status);
  CHECK(was_killed(status));
  CHECK_THAT(ladder_status(folder / "runs/small"), Contains("stopped") && !Contains("running"));
  status.pid = ::getpid();
  CHECK_FALSE(was_killed(status));
  status.pid = child;
  status.host = "elsewhere";
  CHECK_FALSE(was_killed(status));
}

TEST_CASE("a folder of something else, or in use, is refused before anything runs") {
  const SweepFolder folder(R"("runs": [{"id": "a"}])");
  folder.write("runs/small/notes.txt", "mine");
  CHECK_THAT(ladder(folder).err, Contains("not the folder of this sweep") && Contains("files without sweep.json"));
  fs::remove_all(folder / "runs");
  REQUIRE(ladder(folder).code == 0);
  write_sweep(folder, R"("runs": [{"id": "z"}])");
  const Result other = ladder(folder);
  CHECK(other.code == 4);
  CHECK_THAT(other.err, Contains("the sweep \"small\" with other runs"));
  write_sweep(folder, R"("runs": [{"id": "a"}])");
  const FolderLock lock(folder / "runs/small");
  CHECK_THAT(ladder(folder).err, Contains("in use by process"));
  CHECK_THAT(run_hebb({"ladder", (folder / "sweep.json").string(), "--status", "--dir", "nowhere"}, folder / "status",
                      folder.path())
                 .err,
             Contains("no ladder here"));
}

TEST_CASE("a second start of a new ladder says who has the folder, and a killed one leaves nothing in the way") {
  const SweepFolder folder(R"("runs": [{"id": "a"}])");
  {
    const FolderLock lock(folder / "runs/small");
    const Result second = ladder(folder);
    CHECK(second.code == 4);
    CHECK_THAT(second.err, Contains("in use by process"));
  }
  folder.write("runs/small/lock", "");
  const fs::path begun = folder.write("runs/small/sweep.json.tmp-1", "{");
  CHECK(ladder(folder).code == 0);
  CHECK_FALSE(fs::exists(begun));
}

TEST_CASE("what a killed ladder had begun in the folder of a run goes at the next start") {
  const SweepFolder folder(R"("runs": [{"id": "a.tmp-b"}])");
  const std::string run = "runs/small/a.tmp-b/";
  const fs::path status = folder.write(run + "status.json.tmp-1", "{");
  const fs::path config = folder.write(run + "ladder-config.json.tmp-1", "{");
  const fs::path notes = folder.write(run + "notes.tmp-1", "of the user");
  const fs::path plot = folder.write("runs/small/plots/loss.svg.tmp-1", "<svg");
  write_file_atomic(folder / "runs/small/sweep.json", R"({"name": "small", "runs": [{"id": "a.tmp-b"}]})");
  const Result done = ladder(folder);
  INFO(done.err);
  CHECK(done.code == 0);
  CHECK_FALSE((fs::exists(status) || fs::exists(config) || fs::exists(plot)));
  CHECK(fs::exists(notes));
}

TEST_CASE("runs are planned for the ranks that train them", "[fast]") {
  const SweepFolder folder;
  folder.write("memory.json", R"({"extends": "base.json", "train": {"fast_batch": 4}, "model": {
    "layers": {"m": {"type": "fwpkm", "num_subkeys": 4, "key_dim": 4, "value_dim": 4, "top_k": 2, "chunk_size": 4}}, "at": {"1": {"memory": "m"}}}})");
  const Sweep sweep = read_sweep(
      folder.write("sweep.json", R"({"name": "s", "base": "memory.json", "ranks": 2, "runs": [{"id": "a"}]})"));
  const PlanOptions speed{.tflops = 1e-6};
  const Plan plan = plan_runs(sweep, {}, speed).at(0);
  CHECK((plan.ranks == 2 && plan.micro_batch == 2));
  CHECK(*plan.hours == Approx(plan.training_flops() / 2e6 / 3600));
  CHECK_THAT(plan.text(), Contains("by 2 ranks; the memory is that of one"));
  CHECK_THAT(describe_ladder(sweep, {}, speed),
             Contains("ranks") && Contains(" at 1e+06 FLOP/s a rank with 1 at a time"));
  LadderOptions one;
  one.ranks = 1;
  CHECK_THROWS_WITH(plan_runs(sweep, one, {}),
                    Contains("train.fast_batch: found 4, expected 2, the rows of a micro-batch; 2 ranks have 4") &&
                        Contains("in the run a"));
}

TEST_CASE("a schedule is never below its longest run", "[fast]") {
  CHECK(schedule_seconds({}, 3) == 0);
  CHECK(schedule_seconds({1, 2, 3}, 1) == 6);
  CHECK(schedule_seconds({1, 2, 10}, 8) == 10);
  CHECK(schedule_seconds({4, 3, 2, 5}, 2) == 9);  // 4 and then 5 at the first place
}
